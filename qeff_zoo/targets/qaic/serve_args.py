# SPDX-License-Identifier: Apache-2.0
"""What vllm-qaic needs to serve a package of Cloud AI 100: its environment and its flags, as the package was compiled.

In: a package. Out: one command for each process. Names follow the ahead-of-time mode of qualcomm/vllm-qaic, as
vllm_qaic/model_loader/qaic.py reads them at 0123c3cf; its qaic_disagg takes prefill and decode as two programs:

    programs                   processes
    decoder                    vllm serve
    decoder, draft             vllm serve, with the draft model beside the model that checks its tokens
    vision_encoder, decoder    vllm serve for each
    prefill, decode            qaic_disagg; a vision_encoder may be with them. They may be packages of their own
    encoder                    vllm serve, as a pooling model
"""

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any

from qeff_zoo.contract import NAMES, find
from qeff_zoo.package import Package
from qeff_zoo.package.manifest import source_in
from qeff_zoo.targets.qaic.shapes import Compiled, refused

#: Whose packages hold QPCs: which SDK compiled one makes no difference to what runs it.
TARGETS = ("qaic", "qnn-aic")
_PROGRAM = "programqpc.bin"
#: What roles are called besides.
_OTHER_NAMES = {
    "target": "decoder",
    "language": "decoder",
    "vision": "vision_encoder",
    "embedding": "encoder",
}
#: Role -> what QEfficient calls the folder of its program.
_PATH_NAMES = {
    "decoder": "lang_qpc_path",
    "prefill": "lang_prefill_qpc_path",
    "decode": "lang_decode_qpc_path",
    "vision_encoder": "vision_qpc_path",
    "draft": "draft_qpc_path",
    "encoder": "qpc_path",
}


@dataclass(frozen=True)
class Command:
    """How to start one process.

    Args:
        environment: Variables to set for it.
        arguments: The command, word by word.
    """

    environment: Mapping[str, str]
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        """Return a line for a shell."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*variables, shlex.join(self.arguments)])


@dataclass(frozen=True)
class ServeArgs:
    """What vllm-qaic needs.

    Args:
        qpc_paths: The programs' folders, by QEfficient's names.
        commands: One for each process.
    """

    qpc_paths: Mapping[str, str]
    commands: tuple[Command, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


def serve_args(package: Package, decode: Package | None = None) -> ServeArgs:
    """Return vllm-qaic's arguments for a package, or for a prefill package and a decode package.

    Args:
        package: Package of one of `TARGETS`.
        decode: Beside a package of --prefill-only, that of --decode-only.

    Raises:
        PackageError: The package is of another target, or compiled in a way that vllm-qaic does not support.
    """
    if decode is not None or _is_for(package, "prefill") or _is_for(package, "decode"):
        return _serve_pair(package, decode)
    folders = _folders_of(package)
    if {"encoder", "decoder"} <= folders.keys():
        raise refused(
            package,
            "has an encoder beside its decoder; expected one program of both, as QEfficient compiles Whisper, which is "
            f"all that vllm-qaic runs of such models. Run `qeff-zoo serve {shlex.quote(str(package.path))}`.",
        )
    if "heads" in package.manifest["spec"].get("task", {}):
        raise refused(
            package,
            "returns logits of the heads that draft for it beside the model's, which vllm-qaic reads by no option that "
            f"is known; expected the model's alone. Run `qeff-zoo serve {shlex.quote(str(package.path))} --draft "
            "heads`, or build it with --num-speculative-tokens in place of --draft-heads.",
        )
    if any(program.flags.get("single_program") for program in package.programs):
        raise refused(
            package,
            "reads images in its one program, for which vllm-qaic documents no argument; expected a program "
            f"for images beside it. Run `qeff-zoo serve {shlex.quote(str(package.path))}`, or build it without "
            "--single-program.",
        )
    arrange = _ARRANGEMENTS.get(frozenset(folders))
    if arrange is None:
        known = "; ".join(", ".join(sorted(roles)) for roles in _ARRANGEMENTS)
        raise refused(
            package,
            f"has the programs {', '.join(sorted(folders))}, which vllm-qaic does not serve together; expected one of: "
            f"{known}. Build it in one of these ways.",
        )
    return ServeArgs(_qpc_paths(folders), tuple(arrange(Compiled(package, folders))))


def _serve_pair(prefill: Package, decode: Package | None) -> ServeArgs:
    if decode is None or not (_is_for(prefill, "prefill") and _is_for(decode, "decode")):
        raise refused(
            prefill,
            "and what is named beside it are no pair; expected a package of --prefill-only, and one of --decode-only "
            "of the same model. Run `qeff-zoo serve-args PREFILL DECODE`.",
        )
    if source_in(prefill.manifest) != source_in(decode.manifest):
        raise refused(
            prefill,
            f"is of another checkpoint than {str(decode.path)!r}; expected the same. Build both of one.",
        )
    if len(prefill.programs) > 1:
        raise refused(
            prefill,
            "reads images beside its prompts; expected text alone, since nothing public says how vllm-qaic hands "
            "over prompts with images. Run `qeff-zoo serve` with --role prefill, and with --role decode.",
        )
    halves = {"prefill": prefill, "decode": decode}
    folders = {half: _folders_of(package)["decoder"] for half, package in halves.items()}
    compiled = {half: Compiled(package, folders) for half, package in halves.items()}
    return ServeArgs(_qpc_paths(folders), tuple(_disaggregated(compiled["prefill"], compiled)))


def _is_for(package: Package, half: str) -> bool:
    """Whether a package was built for one stage: "prefill" or "decode"."""
    shape = package.manifest["spec"].get("shape", {})
    return bool(shape.get(f"{half}_only"))


def _folders_of(package: Package) -> dict[str, str]:
    """Find the folder of each role's QPC.

    Raises:
        PackageError: The package is of another target, or has no QPC.
    """
    if package.target not in TARGETS:
        raise refused(
            package,
            f"is for target {package.target!r}; expected {' or '.join(map(repr, TARGETS))}, which vllm-qaic serves. "
            f"Run `qeff-zoo serve {shlex.quote(str(package.path))}`.",
        )
    listed = {file["path"] for file in package.manifest["files"]}
    folders = {}
    for program in package.manifest["programs"]:
        path = PurePosixPath(program["path"])
        folder = path.parent if path.name == _PROGRAM else path
        if str(folder / _PROGRAM) not in listed:
            where = f"for {program['role']!r} at {str(folder)!r}"
            raise refused(package, f"has no {_PROGRAM} {where}; expected a QPC. Build it again.")
        role = _OTHER_NAMES.get(program["role"], program["role"])
        folders[role] = str(package.path / folder)
    return folders


def _qpc_paths(folders: Mapping[str, str]) -> dict[str, str]:
    return {_PATH_NAMES[role]: folder for role, folder in folders.items()}


def _serve(
    compiled: Compiled, environment: Mapping[str, str], *flags: str, **additional: Any
) -> Command:
    """Build a `vllm serve`."""
    config = ["--additional-config", json.dumps(additional)]
    words = ("vllm", "serve", *compiled.model(), *flags, *compiled.precision(), *config)
    return Command(environment, words)


def _decoder(compiled: Compiled) -> Iterator[Command]:
    path = compiled.folders["decoder"]
    tokens = compiled.num_speculative_tokens
    if not tokens:
        environment = {"VLLM_QAIC_QPC_PATH": path}
        yield _serve(
            compiled, environment, *compiled.shapes(), override_qaic_config=compiled.config()
        )
        return
    # Compiled to check drafts, made here from the text itself: there is no model for them.
    drafts = json.dumps({"method": "ngram", "num_speculative_tokens": tokens})
    yield _serve(
        compiled,
        {"VLLM_QAIC_SPEC_TARGET_QPC_PATH": path},
        *compiled.shapes(),
        *("--speculative-config", drafts),
        override_qaic_config=compiled.config(),
    )


def _with_draft(compiled: Compiled) -> Iterator[Command]:
    tokens = compiled.num_speculative_tokens
    model = source_in(compiled.package.manifest, "draft").get("model_id")
    if not tokens or not model:
        raise refused(
            compiled.package,
            f"has the draft model {model!r} and checks {tokens} of its tokens per call; expected the model's id in its "
            "spec, and a decode of two tokens or more. Build it again.",
        )
    drafts = {"method": "draft_model", "model": model, "num_speculative_tokens": tokens}
    yield _serve(
        compiled,
        {
            "VLLM_QAIC_SPEC_TARGET_QPC_PATH": compiled.folders["decoder"],
            "VLLM_QAIC_SPEC_DRAFT_QPC_PATH": compiled.folders["draft"],
        },
        *compiled.shapes(),
        *("--speculative-config", json.dumps(drafts)),
        override_qaic_config=compiled.config(),
        # Read for the draft's own prompt calls, which no flag speaks of.
        draft_override_qaic_config={
            "device_group": compiled.devices(),
            "prefill_seq_len": compiled.largest("seq_len"),
        },
    )


def _vision(compiled: Compiled) -> Iterator[Command]:
    """Embed images in one process, which the other takes in place of them, on devices of its own."""
    for role, flag in (
        ("vision_encoder", ("--runner", "pooling")),
        ("decoder", ("--enable-mm-embeds",)),
    ):
        path = compiled.folders[role]
        if ":" in path:  # vllm-qaic would take it for two paths
            raise refused(compiled.package, "has ':' in its path; expected none. Move the package.")
        config = compiled.config()
        if role == "decoder":
            config["device_group"] = compiled.devices(after=len(compiled.devices()))
        yield _serve(
            compiled,
            {"VLLM_QAIC_QPC_PATH": path},
            *flag,
            *compiled.shapes(),
            override_qaic_config=config,
        )


def _disaggregated(
    compiled: Compiled, packages: Mapping[str, Compiled] = MappingProxyType({})
) -> Iterator[Command]:
    """Run prompts on one group of devices and answers on another; qaic_disagg starts the processes.

    Args:
        compiled: Has the programs of all stages that no other package has.
        packages: Packages by role.
    """
    slots = packages.get("decode", compiled).slots
    stages = [("prefill", "prefill", 9900, 1), ("decode", "decode", 9800, slots)]
    if "vision_encoder" in compiled.folders:
        stages.insert(0, ("encode", "vision_encoder", 9700, 1))
    contexts = [one.largest("ctx_len") for one in (compiled, *packages.values())]
    flags = ["--max-model-len", str(min(contexts))]
    first = 0
    for stage, role, port, requests in stages:
        one = packages.get(role, compiled)
        devices = one.devices(after=first)
        first = devices[-1] + 1
        config = one.config(qpc_path=one.folders[role])
        del config["device_group"]  # has a flag of its own
        if stage != "encode":
            config["prefill_seq_len"] = one.largest("seq_len") if stage == "prefill" else 1
        flags += [f"--{stage}-port", str(port)]
        flags += [f"--{stage}-device-group", ",".join(map(str, devices))]
        flags += [f"--{stage}-max-num-seqs", str(requests)]
        flags += [f"--{stage}-override-qaic-config", json.dumps(config)]
    model = ["--model", *compiled.model()]
    yield Command({}, ("python", "-m", "qaic_disagg", *model, *flags, *compiled.precision()))


def _encoder(compiled: Compiled) -> Iterator[Command]:
    served = {name: find(name).vllm_task for name in NAMES if find(name).vllm_task}
    task = served.get(compiled.package.task)
    if task is None:
        raise refused(
            compiled.package,
            f"is for {compiled.package.task}, which vllm-qaic has no API for; expected one of "
            f"{', '.join(served)}. Run it with QEfficient's runtime.",
        )
    pooling = compiled.planned("task", "pooling") or "mean"
    if pooling == "none":
        raise refused(
            compiled.package,
            "has no pooling, which vllm-qaic requires; expected one with a pooling. Build it with --pooling mean.",
        )
    lengths = {"embed_seq_len": compiled.seq_lens} if len(compiled.seq_lens) > 1 else {}
    answers = {"pooling_method": pooling} if task == "embed" else {"task": task}
    # The QPC pools and scores: what it gives is the answer.
    config = compiled.config(pooling_device="qaic", **answers, **lengths)
    yield _serve(
        compiled,
        {"VLLM_QAIC_QPC_PATH": compiled.folders["encoder"]},
        *("--runner", "pooling"),
        *("--max-model-len", str(compiled.largest("seq_len"))),
        *("--max-num-seqs", str(compiled.largest("batch_size"))),
        override_qaic_config=config,
    )


_ARRANGEMENTS: Mapping[frozenset[str], Callable[[Compiled], Iterator[Command]]] = {
    frozenset({"decoder"}): _decoder,
    frozenset({"decoder", "draft"}): _with_draft,
    frozenset({"vision_encoder", "decoder"}): _vision,
    frozenset({"prefill", "decode"}): _disaggregated,
    frozenset({"vision_encoder", "prefill", "decode"}): _disaggregated,
    frozenset({"encoder"}): _encoder,
}
