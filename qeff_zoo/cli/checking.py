# SPDX-License-Identifier: Apache-2.0
"""Commands that check packages: `validate` and `inspect`."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qeff_zoo import registry
from qeff_zoo.cli.building import reporter
from qeff_zoo.cli.inputs import usable_package
from qeff_zoo.cli.options import add_package, command
from qeff_zoo.disk.regular import is_here
from qeff_zoo.disk.text_files import read_text
from qeff_zoo.errors import GenerationError, PackageError
from qeff_zoo.terminal.printing import print_json

if TYPE_CHECKING:
    from qeff_zoo.pipeline.checks import Outcome


def validate_command(arguments: argparse.Namespace) -> int:
    """Compare a package with Hugging Face; return 1 if they disagree."""
    if arguments.stale:
        return _stale(arguments)
    if arguments.package is None:
        arguments.parser.error("PACKAGE or MODEL_TYPE is required without --stale")
    if arguments.perplexity is not None:
        return _perplexity(arguments)
    if useless := [name for name in ("window", "stride", "graph") if getattr(arguments, name)]:
        raise GenerationError(
            f"--{useless[0]} applies to --perplexity only; expected --perplexity FILE as well. Add that, or leave "
            "it out."
        )
    from qeff_zoo.cli.description import evidence

    outcome = _outcome(arguments)
    if arguments.json:
        print_json(outcome.as_dict())
    else:
        print(
            f"{outcome.subject}: {'agrees' if outcome.passed else 'DISAGREES'} with Hugging Face ({outcome.level})"
        )
        print(evidence(outcome.checks))
        for one in outcome.reported:
            if "refused" in one:
                print(f"{one['model']}: {one['refused']}")
        if outcome.recorded:
            print(f"\nRecorded in {outcome.recorded}")
    return 0 if outcome.passed else 1


def _outcome(arguments: argparse.Namespace) -> "Outcome":
    """Check a package, or a recipe if its model type is given."""
    from qeff_zoo.api import find_package
    from qeff_zoo.pipeline import checks

    subject = arguments.package
    own: dict[str, Any] = {"record": arguments.record, "reporter": reporter(arguments)}
    if not is_here(subject) and registry.file_name(subject) in registry.list_model_types():
        if arguments.checkpoint or arguments.adapter:
            given = "--checkpoint" if arguments.checkpoint else "--adapter"
            raise PackageError(
                f"{subject!r} is a recipe; {given} is for packages. Leave it out, or name a package."
            )
        return checks.check_recipe(subject, target=arguments.target, **own)
    if arguments.target is not None:
        raise PackageError(
            f"{subject!r} is a package of one target; --target is for recipes. Leave it out, or name a recipe."
        )
    return checks.check_package(
        find_package(subject), checkpoint=arguments.checkpoint, adapters=arguments.adapter, **own
    )


def _stale(arguments: argparse.Namespace) -> int:
    """Validate packages with stale evidence again; return 1 if one disagrees or cannot be validated."""
    from qeff_zoo.api import find_package
    from qeff_zoo.errors import ZooError
    from qeff_zoo.pipeline.proving import validate_again
    from qeff_zoo.store import Store
    from qeff_zoo.validation.judgement.freshness import staleness

    store = Store()
    named = [find_package(arguments.package)] if arguments.package else store.packages()
    stale = []
    for package in named:
        if package.validated == "none" or not (why := staleness(package, store)):
            continue
        one: dict[str, Any] = {
            "package": package.name,
            "build_key": package.build_key,
            "stale": why,
        }
        try:
            record = validate_again(package, store, reporter=reporter(arguments))
            one |= {"passed": record.passed, "failures": record.failures}
        except ZooError as error:
            one |= {"passed": False, "failures": [str(error)]}
        stale.append(one)
        if not arguments.json:
            name = f"{package.name} {package.build_key[:12]}"
            print(f"{name}: stale: {'; '.join(why)}")
            print(
                f"{name}: {'agrees' if one['passed'] else 'FAILS: ' + '; '.join(one['failures'])}"
            )
    if arguments.json:
        print_json(stale)
    elif not stale:
        print("No evidence is stale.")
    return int(not all(one["passed"] for one in stale))


def _perplexity(arguments: argparse.Namespace) -> int:
    from qeff_zoo.pipeline import comparison
    from qeff_zoo.validation import perplexity

    if arguments.record:
        raise GenerationError(
            "--record does not apply to --perplexity, which is not evidence about a package. Leave it out."
        )
    text = read_text(arguments.perplexity)
    package = usable_package(arguments.package)
    scoring = perplexity.prepare(
        package,
        text,
        window=arguments.window,
        stride=arguments.stride,
        batch_size=arguments.batch_size,
    )
    result = comparison.compare(
        {"package": package},
        scoring,
        checkpoint=arguments.checkpoint,
        adapters=arguments.adapter,
        graph=arguments.graph,
        reporter=reporter(arguments),
    )
    if arguments.json:
        print_json(result.as_dict())
    else:
        print(result)
    return 0


def inspect_command(arguments: argparse.Namespace) -> int:
    """Print the contents of a package; return 1 if a file has changed."""
    from qeff_zoo.api import find_package
    from qeff_zoo.cli.description import describe

    package = find_package(arguments.package)
    problems = package.verify() if arguments.verify else []
    if arguments.json:
        verified = {"intact": not problems, "problems": problems} if arguments.verify else {}
        print_json({"path": str(package.path), "manifest": package.manifest, **verified})
    else:
        print(describe(package), end="")
        if arguments.verify:
            print(
                "\nEvery file is what the manifest says."
                if not problems
                else "\n" + "\n".join(problems)
            )
    return 1 if problems else 0


# --- arguments ----------------------------------------------------------------------------------


def _add_validate(commands: Any) -> None:
    parser = command(
        commands,
        "validate",
        "compare a package, or a recipe's tiny models, with Hugging Face",
    )
    parser.add_argument(
        "package",
        nargs="?",
        metavar="PACKAGE|MODEL_TYPE",
        help="package, or model type of a recipe, for its tiny models (with --stale: default all of the store)",
    )
    parser.add_argument(
        "--stale",
        action="store_true",
        help="validate packages again whose evidence was made with other versions than those installed",
    )
    parser.add_argument(
        "--checkpoint", metavar="MODEL", help="current location of the package's checkpoint"
    )
    parser.add_argument(
        "--adapter",
        action="append",
        default=[],
        metavar="DIR",
        help="current location of a LoRA adapter merged into the package; repeatable",
    )
    parser.add_argument("--target", help="target for the tiny models of a recipe")
    parser.add_argument(
        "--record",
        action="store_true",
        help="write validated_models/ORG/NAME.json, or for a recipe validated_models/_tiny/MODEL_TYPE.json "
        "(_targets/TARGET.json with --target)",
    )
    group = parser.add_argument_group(
        "perplexity", "measurement of a package, instead of the checks"
    )
    group.add_argument(
        "--perplexity",
        type=Path,
        metavar="FILE",
        help="text for the perplexity of the package and of Hugging Face's model",
    )
    group.add_argument(
        "--window", type=int, metavar="N", help="tokens per window (default: the context length)"
    )
    group.add_argument(
        "--stride",
        type=int,
        metavar="N",
        help="tokens from one window to the next (default: half a window)",
    )
    group.add_argument(
        "--batch-size",
        type=int,
        default=1,
        metavar="N",
        help="windows per call of Hugging Face's model (default: 1); a package uses all its slots",
    )
    group.add_argument(
        "--graph", action="store_true", help="also measure the portable graph, in float32"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bars")


def _add_inspect(commands: Any) -> None:
    parser = command(commands, "inspect", "describe a package")
    add_package(parser)
    parser.add_argument("--verify", action="store_true", help="compare every byte with its digest")


#: Functions that add the arguments of commands, and their handlers.
COMMANDS = (
    (_add_validate, {"validate": validate_command}),
    (_add_inspect, {"inspect": inspect_command}),
)
