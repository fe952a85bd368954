# SPDX-License-Identifier: Apache-2.0
"""A graph that QEfficient exported, compiled as it is, for QEfficient's own runtime.

In: the graph, sizes and flags. Out: a folder with what qaic-compile reads, the script that calls it, and, where the SDK
is, its QPC. That is no package: the graph does not relate its weights to tensors of a checkpoint, so that no
validation can compare its outputs with Hugging Face's model.
"""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qeff_zoo.disk.digests import sha256_file
from qeff_zoo.disk.regular import open_regular, read_text
from qeff_zoo.disk.staging import settle, staged_beside
from qeff_zoo.errors import CompileError
from qeff_zoo.graph.states import State, StateKind
from qeff_zoo.package.manifest import MANIFEST_LIMIT, parse
from qeff_zoo.package.prepared import NOTE, PROGRAM, SCRIPT, SUMS
from qeff_zoo.targets.qaic.command import COMPILER, Files, compiler_arguments
from qeff_zoo.targets.qaic.preparing import chosen_configs, write_script

from . import configs, driver, sdk

#: What an output that holds a state is called, after the state.
_SUFFIXES = ("_RetainedState", "_InternalRetainedState")
#: Folder of the QPC, as QEfficient calls it.
_QPC = "qpcs"
_AFTER = f"QEfficient's runtime takes what comes of it, {_QPC}."


def compile_foreign(
    graph: Path, folder: Path, sizes: Mapping[str, int], options: Mapping[str, Any]
) -> Path:
    """Write what the compiler reads, and compile where it is; what was made of the same is found.

    Args:
        graph: Graph of a model that generates text, its weights beside it.
        folder: Folder that is empty, or has the result of the same graph and options.
        sizes: `prefill_seq_len`, `ctx_len`, `batch_size`, and `full_batch_size` or `num_speculative_tokens` if chosen.
        options: Target options that are on, by name.

    Returns:
        Folder of the QPC; the given one where there is no compiler.

    Raises:
        CompileError: The graph has sizes or states without a value, the folder is taken, or the compiler refuses.
    """
    import onnx_ir as ir
    from google.protobuf.message import DecodeError

    try:
        model = ir.load(graph)
    except (OSError, ValueError, DecodeError) as error:
        raise CompileError(
            f"Cannot read {str(graph)!r}: {error}. Expected an ONNX graph. Export it again."
        ) from error
    content = dict(_configs(model, graph, sizes, options))
    arguments = compiler_arguments(
        Files("graph"), options, decodes=True, model=str(graph.resolve())
    )
    commands = [["compile", _QPC, *arguments]]
    content[SCRIPT] = driver.script(COMPILER, [_QPC], commands, after=_AFTER)
    sums = [(hashlib.sha256(text.encode()).hexdigest(), name) for name, text in content.items()]
    sums.append((sha256_file(graph), str(graph.resolve())))
    content[SUMS] = "".join(f"{digest}  {name}\n" for digest, name in sums)
    if not _is_there(folder, content):
        with staged_beside(folder) as staged:
            write_script(content[SCRIPT], staged)
            for name in content.keys() - {SCRIPT}:
                (staged / name).write_text(content[name], encoding="utf-8")
            settle(staged)
            staged.rename(folder)
    if (folder / _QPC / PROGRAM).is_file():
        _check(folder, content[SUMS])
        return folder / _QPC
    if sdk.compiler() is None:
        return folder
    driver.run(folder)
    return folder / _QPC


def _configs(
    model: Any, graph: Path, sizes: Mapping[str, int], options: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield name and content of each file that the compiler reads."""
    files, states = Files("graph"), _states(model, graph)
    yield files.specializations, configs.specializations(_specializations(model, graph, sizes))
    types = configs.state_types(options)
    named = ((state, (state.name, output)) for state, output in states)
    yield files.custom_io, configs.io_list(named, types)
    configs.check_patterns([model], options.get("node_precision_info", ()))
    yield from chosen_configs(options, model, files)


def _states(model: Any, graph: Path) -> list[tuple[State, str]]:
    """Return each retained state of the graph, and the name of its output."""
    outputs = {value.name for value in model.graph.outputs}
    states = []
    for value in model.graph.inputs:
        output = next((value.name + end for end in _SUFFIXES if value.name + end in outputs), None)
        if output is not None:
            axes = tuple(_axis(axis) for axis in value.shape)
            kind: StateKind = "growing" if "ctx_len" in axes else "window"
            states.append((State(name=value.name, kind=kind, layer=0, axes=axes), output))
    if not states:
        raise CompileError(
            f"Cannot compile {str(graph)!r}: it retains no state, so it generates no text. Expected inputs such as "
            "past_key.0, with an output past_key.0_RetainedState each. Export a model that does."
        )
    return states


def _axis(axis: Any) -> int | str:
    return axis if isinstance(axis, int) else str(axis.value)


def _specializations(model: Any, graph: Path, sizes: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return prefill and decode, with the sizes that the graph has."""
    axes = {_axis(axis) for value in model.graph.inputs for axis in value.shape}
    symbols = {axis for axis in axes if isinstance(axis, str)}
    slots, drafted = sizes.get("full_batch_size"), sizes.get("num_speculative_tokens")
    decoded = (drafted or 0) + 1
    chosen = {"full_batch_size"} if slots else set()
    chosen |= {"num_logits_to_keep"} if drafted else set()
    known = {"seq_len", "ctx_len", "batch_size"} | chosen
    if symbols - known or chosen - symbols:
        raise CompileError(
            f"Cannot compile {str(graph)!r}: its sizes are {', '.join(sorted(symbols))}, and those that were chosen "
            f"are {', '.join(sorted(known))}. Expected the same. Give full_batch_size for a graph of continuous "
            "batching and num_speculative_tokens for one that checks drafts, or export the model by qeff-cloud-export."
        )
    calls = {
        "Prefill": {
            "batch_size": 1 if slots else sizes["batch_size"],
            "seq_len": sizes["prefill_seq_len"],
            "num_logits_to_keep": 1,
        },
        "Decode": {
            "batch_size": slots or sizes["batch_size"],
            "seq_len": decoded,
            "num_logits_to_keep": decoded,
        },
    }
    same = {"ctx_len": sizes["ctx_len"], "full_batch_size": slots}
    return [
        {"name": name, "symbols": {key: str(n) for key, n in (own | same).items() if key in known}}
        for name, own in calls.items()
    ]


def _is_there(folder: Path, content: Mapping[str, str]) -> bool:
    """Whether a folder has exactly this content; refuse a folder with other content."""
    try:
        if read_text(folder / SUMS) == content[SUMS]:
            return True
        taken = True
    except (OSError, ValueError):
        taken = folder.is_dir() and any(folder.iterdir())
    if taken:
        raise CompileError(
            f"{str(folder)!r} holds something else; expected a folder that is new, or what came of the same graph "
            "and choices. Name another --qpc_path, or remove it."
        )
    return False


def _check(folder: Path, sums: str) -> None:
    """Refuse a QPC that was not made of what lies beside it."""
    try:
        with open_regular(folder / _QPC / NOTE) as file:
            of = parse(file.read(MANIFEST_LIMIT))["sums"]
    except (OSError, ValueError, KeyError, TypeError):
        of = None
    if of != hashlib.sha256(sums.encode()).hexdigest():
        raise CompileError(
            f"{str(folder / _QPC)!r} was not compiled from what lies beside it; expected the script's own QPC. Remove "
            "it, and compile again."
        )
