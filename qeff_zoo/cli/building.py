# SPDX-License-Identifier: Apache-2.0
"""Commands that make packages of models: `plan`, `build`, `adopt` and `export`."""

import argparse
import math
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qeff_zoo.cli.inputs import choices_of, saying_warnings, source_of
from qeff_zoo.cli.options import add_choices, add_gguf, add_private, add_sign_with, command
from qeff_zoo.cli.signing import signer
from qeff_zoo.contract import TEXT_GENERATION
from qeff_zoo.errors import CompileError
from qeff_zoo.terminal.printing import human_size, print_json, table

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint
    from qeff_zoo.terminal.progress import Reporter


#: How the formats of a mixture are chosen, of a decoder and of other models.
_MEASURED_FORMATS = (
    "int4 or int8, by costs of errors on random tokens (relative errors if layers do not run apart)"
)
_ESTIMATED_FORMATS = "int4 or int8, by the relative errors of each matrix"


def _request(arguments: argparse.Namespace) -> Any:
    from qeff_zoo.plan.request import Request

    return Request(**choices_of(arguments))


def plan_command(arguments: argparse.Namespace) -> None:
    """Print the options of a build with their origin, then the checkpoint and the software of its key."""
    from qeff_zoo.pipeline import commands_of, make_plan
    from qeff_zoo.plan.request import OPTIONS
    from qeff_zoo.weights.losses import nearest

    with saying_warnings():
        checkpoint, plan = make_plan(
            arguments.model, _request(arguments), need_weights=False, **source_of(arguments)
        )
    commands = commands_of(plan)
    key = None if checkpoint.is_config_alone else plan.build_key
    bits = plan.spec["quantization"].get("bits")
    values = _values_of_matrices(checkpoint) if bits and checkpoint.is_at_hand else 0
    nbytes = int(bits * values / 8) if values else None
    decodes = plan.recipe.task == TEXT_GENERATION
    losses = nearest(bits) if bits and decodes else {}
    if arguments.json:
        size: dict[str, Any] = {"matrix_bytes": nbytes} if nbytes else {}
        if losses:
            size["losses"] = {name: {"bits": at, "kl": kl} for name, (at, kl) in losses.items()}
        answer = {"build_key": key, "fields": plan.explained(), "spec": plan.spec, **size}
        print_json({**answer, **({"commands": commands} if commands else {})})
        return
    flags = {option.path: option.flag for option in OPTIONS.values()}
    options, others = [], []
    for name, field in plan.explained().items():
        if name in plan.why:
            options.append([flags[name], _shortened(field["value"]), field["by"]])
        else:
            others.append([name, _shortened(field["value"])])
    print(table(options, ["option", "value", "set by"]))
    print(
        f"\nCheckpoint and software (whole digests: --json):\n\n{table(others, ['field', 'value'])}"
    )
    if nbytes:
        print(f"\nmatrices   {values:,} values of {bits:g} bits: about {human_size(nbytes)}")
    if bits:
        print(f"formats    {_MEASURED_FORMATS if decodes else _ESTIMATED_FORMATS}")
    if losses:
        listed = (f"{name} {kl:g} (at {at:g} bits)" for name, (at, kl) in losses.items())
        print(f"cost       not known before a build; mean KL of other models: {', '.join(listed)}")
    print(f"\nbuild_key  {key or 'none: a configuration alone identifies no weights'}")
    for words in commands:
        print(f"command    {shlex.join(words)}")


def _values_of_matrices(checkpoint: "Checkpoint") -> int:
    """Count the values of all matrices of a checkpoint, as those of a package before it is traced."""
    shapes = [info.shape for info in checkpoint.logical.values()]
    return sum(math.prod(shape) for shape in shapes if len(shape) > 1)


def _shortened(value: Any) -> str:
    """Return a value with the first twelve digits of its digests."""
    return re.sub(r"(?<=sha256:)([0-9a-f]{12})[0-9a-f]+", r"\1...", str(value))


def build_command(arguments: argparse.Namespace) -> None:
    """Build a package and print its path; publish it on request."""
    from qeff_zoo import pipeline

    _check_publication(arguments)
    if arguments.prepare_only:
        _prepare(arguments)
        return
    with saying_warnings():
        built = pipeline.build(
            arguments.model,
            _request(arguments),
            **source_of(arguments),
            validate=not arguments.no_validate,
            output=arguments.output,
            reporter=reporter(arguments),
        )
    package = built.package
    took = sum(built.seconds.values())
    state = "was in the store already" if built.hit else f"built, validated: {package.validated}"
    if not arguments.json:
        print(f"{package.name}: {state} ({took:.1f} s)", file=sys.stderr)
        _print_errors(package.manifest)
    published = _published(package, arguments)
    if arguments.json:
        answer = {"path": str(package.path), "build_key": package.build_key, "hit": built.hit}
        answer |= {"seconds": built.seconds, "peak_rss_bytes": built.peak_rss_bytes}
        print_json({**answer, **_proved(package.manifest), **published})
        return
    print(package.path)


def _proved(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the level of a validation, and the largest error from each reference in units of the outputs' spread."""
    errors: dict[str, float] = {}
    for check in manifest["validation"]:
        if check["metric"] == "max_relative_error" and check["value"] is not None:
            reference = check["against"]["dtype"]
            errors[reference] = max(errors.get(reference, 0.0), check["value"])
    return {"validated": manifest["validated"], "largest_errors": errors}


def _print_errors(manifest: Mapping[str, Any]) -> None:
    """Print the emulated errors from Hugging Face's model, which no run on a device has measured."""
    if manifest["validated"] == "emulated":
        errors = _proved(manifest)["largest_errors"].items()
        shown = ", ".join(f"{error:.2g} ({reference})" for reference, error in errors)
        print(f"emulated: largest errors from Hugging Face's model: {shown}", file=sys.stderr)


def _prepare(arguments: argparse.Namespace) -> None:
    """Prepare a folder, and print the next steps."""
    from qeff_zoo import pipeline
    from qeff_zoo.package.prepared import manifest_of

    if arguments.output is None or arguments.publish is not None:
        wrong = "without --output" if arguments.output is None else "beside --publish"
        raise CompileError(
            f"--prepare-only is there {wrong}; expected --output DIR for what is prepared, which is no package and "
            "cannot be published. Correct that."
        )
    with saying_warnings():
        folder = pipeline.prepare(
            arguments.model,
            arguments.output,
            request=_request(arguments),
            **source_of(arguments),
            validate=not arguments.no_validate,
            reporter=reporter(arguments),
        )
    manifest = manifest_of(folder)
    if arguments.json:
        print_json({"prepared": str(folder), **_proved(manifest)})
        return
    _print_errors(manifest)
    shown = shlex.quote(str(folder))
    print(
        f"Prepared, which is no package yet. Run {shown}/compile.sh where the compiler is, then `qeff-zoo adopt "
        f"{shown} {shown}/qpc`.",
        file=sys.stderr,
    )
    print(folder)


def adopt_command(arguments: argparse.Namespace) -> None:
    """Assemble a package from a prepared folder and its compiled programs, and print its path."""
    from qeff_zoo.store import Store
    from qeff_zoo.store.adoption import adopt
    from qeff_zoo.store.copies import copy_out

    package = adopt(arguments.folder, arguments.program, Store(), unchecked=arguments.unchecked)
    if arguments.output is not None:
        package = copy_out(package, arguments.output)
    if arguments.json:
        print_json({"path": str(package.path), "build_key": package.build_key})
        return
    print(f"{package.name}: adopted, validated: {package.validated}", file=sys.stderr)
    print(package.path)


def _check_publication(arguments: argparse.Namespace) -> None:
    """Refuse an impossible publication before the build."""
    from qeff_zoo.errors import PublishError

    if arguments.publish is None:
        if arguments.private:
            raise PublishError(
                "--private applies to publishing only; expected --publish REMOTE beside it. Leave it out."
            )
        return
    from qeff_zoo.hub.publish.plan import check_destination

    if arguments.no_validate:
        raise PublishError(
            "--publish and --no-validate exclude each other: what was not compared with Hugging Face is not published. "
            "Expected one of them. Leave one out."
        )
    check_destination(arguments.publish, private=arguments.private)


def _published(package: Any, arguments: argparse.Namespace) -> dict[str, str]:
    if arguments.publish is None:
        return {}
    from qeff_zoo.hub.publish import publish
    from qeff_zoo.hub.publish.plan import plan_publication

    bars = reporter(arguments)
    plan = plan_publication(package, arguments.publish, private=arguments.private, reporter=bars)
    print(plan.summary, file=sys.stderr)
    url = publish(plan, reporter=bars, sign=signer(arguments))
    print(f"published: {url}", file=sys.stderr)
    return {"published": url}


def export_command(arguments: argparse.Namespace) -> None:
    """Export a portable graph and print its path."""
    from qeff_zoo import pipeline

    exported = pipeline.export(
        arguments.model,
        arguments.output,
        request=_request(arguments),
        **source_of(arguments),
        graph_only=arguments.graph_only,
        reporter=reporter(arguments),
    )
    if arguments.json:
        print_json(
            {
                "path": str(exported.path),
                "seconds": exported.seconds,
                "peak_rss_bytes": exported.peak_rss_bytes,
            }
        )
        return
    print(exported.path)


def reporter(arguments: argparse.Namespace) -> "Reporter":
    """Return a reporter with progress bars for a terminal, and a silent one for a pipe."""
    from qeff_zoo.terminal import progress_bars as bars

    return bars.reporter(quiet=arguments.quiet)


# --- arguments ----------------------------------------------------------------------------------


def _add_plan(commands: Any) -> None:
    parser = command(
        commands,
        "plan",
        "show all options of a build and where each value comes from, without building",
        applicable=True,
    )
    add_choices(parser)
    add_gguf(parser)


def _add_build(commands: Any) -> None:
    parser = command(
        commands, "build", "build a validated package from a checkpoint", applicable=True
    )
    add_choices(parser)
    add_gguf(parser)
    parser.add_argument(
        "--no-validate", action="store_true", help="skip the comparison with Hugging Face"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="also copy the package to this folder"
    )
    parser.add_argument(
        "--prepare-only",
        action="store_true",
        help="prepare a folder (--output) for compilation on a machine with the target's compiler, instead of a "
        "package",
    )
    parser.add_argument(
        "--publish",
        metavar="REMOTE",
        help="also publish the package to this Hub repository or remote",
    )
    add_private(parser)
    add_sign_with(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bars")


def _add_adopt(commands: Any) -> None:
    parser = command(
        commands, "adopt", "make a package from a prepared folder and its compiled program"
    )
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="folder written by `build --prepare-only`"
    )
    parser.add_argument(
        "program",
        type=Path,
        metavar="PROGRAM",
        help="compiled program, written by compile.sh: FOLDER/qpc",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="also copy the package to this folder"
    )
    parser.add_argument(
        "--unchecked",
        action="store_true",
        help="accept a program without a record of its sources",
    )


def _add_export(commands: Any) -> None:
    parser = command(
        commands, "export", "write the portable ONNX graph of a model", applicable=True
    )
    add_choices(parser)
    add_gguf(parser)
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", required=True, help="a new or empty folder"
    )
    parser.add_argument(
        "--graph-only", action="store_true", help="graph without weights; requires config.json only"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bars")


#: Functions that add the arguments of commands, and their handlers.
COMMANDS = (
    (_add_build, {"build": build_command}),
    (_add_plan, {"plan": plan_command}),
    (_add_export, {"export": export_command}),
    (_add_adopt, {"adopt": adopt_command}),
)
