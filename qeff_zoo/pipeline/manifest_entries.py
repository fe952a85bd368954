# SPDX-License-Identifier: Apache-2.0
"""Manifest entries that a build writes before validation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from types import MappingProxyType
from typing import Any

from qeff_zoo.checkpoint.opening import Checkpoint
from qeff_zoo.export.program_plan import ProgramPlan
from qeff_zoo.graph.numerics import STORED
from qeff_zoo.graph.states import VISION_SIZE, State, state_of
from qeff_zoo.package.manifest import name_with
from qeff_zoo.pipeline.source_tree import has_uncommitted_changes
from qeff_zoo.plan.package_plan import Plan
from qeff_zoo.targets.base import Lowered
from qeff_zoo.terminal.progress import Stopwatch, peak_rss_bytes
from qeff_zoo.weights.bound_graph import BoundGraph


@dataclass(frozen=True, kw_only=True)
class LoweredProgram:
    """One program between its plan and the package.

    Args:
        plan: Plan of the program.
        graph: Portable graph; its model may have become the lowered one.
        lowered: Program lowered for the target.
    """

    plan: ProgramPlan
    graph: BoundGraph
    lowered: Lowered


def program_entry(plan: Plan, made: LoweredProgram, tensors: str) -> dict[str, Any]:
    """Return the manifest entry of a program, without its path.

    Args:
        plan: Plan of the build.
        made: The lowered program.
        tensors: Digest of the data file, "sha256:…".
    """
    graph = made.lowered.model.graph
    inputs = [value for value in graph.inputs if not value.is_initializer()]
    states = {value.name: state for value in inputs if (state := state_of(value))}
    written = {state.output for state in states.values()}
    compiler = dict(plan.resolved.toolchain)
    name, number = next(iter(compiler.items()))
    specializations = made.plan.specialized(graph)
    size = graph.metadata_props.get(VISION_SIZE)
    return {
        "role": made.plan.role,
        "graph": {"digest": made.graph.digest, "opset": 18},
        "compiled_from": {
            "tensors": tensors,
            "flags": {
                "target": {"name": plan.target, "revision": plan.spec["target"]["revision"]},
                "quantization": plan.spec["quantization"],
                "specializations": specializations,
                **made.plan.flags,
            },
            "compiler": {"name": name, "version": number},
        },
        "specializations": specializations,
        "inputs": [tensor_entry(value) for value in inputs if value.name not in states],
        "outputs": [tensor_entry(value) for value in graph.outputs if value.name not in written],
        "states": [
            _state(states[value.name], value, plan.resolved.states)
            for value in inputs
            if value.name in states
        ],
        "numerics": made.lowered.numerics.as_dict(),
        **({"ways": dict(made.lowered.ways)} if made.lowered.ways else {}),
        **({VISION_SIZE: int(size)} if size else {}),
    }


def _state(state: State, value: Any, types: Mapping[str, str]) -> dict[str, Any]:
    dtype = _dtype(value)
    kept = types.get(state.kind, dtype) if value.dtype.is_floating_point() else dtype
    return {**state.as_dict(), "dtype": kept}


def tensor_entry(value: Any) -> dict[str, Any]:
    """Return the manifest entry of an input or an output, an `onnx_ir.Value`."""
    shape = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
    return {"name": value.name, "dtype": _dtype(value), "shape": shape}


def _dtype(value: Any) -> str:
    """Return numpy's name of a data type; ONNX calls float32 FLOAT."""
    name: str = value.dtype.name.lower()
    return {"float": "float32", "double": "float64"}.get(name, name)


def manifest(
    checkpoint: Checkpoint,
    plan: Plan,
    programs: Sequence[Mapping[str, Any]],
    tensors: int,
    watch: Stopwatch,
    left_out: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the manifest of a package, without the fields that `write_manifest` adds.

    Args:
        checkpoint: Source of the package.
        plan: Plan of the build.
        programs: Entries with their paths.
        tensors: Number of checkpoint tensors that the programs read.
        watch: Stopwatch of the build.
        left_out: Number of checkpoint tensors that no program reads, by the beginning of their names.
    """
    return {
        "name": name_with(checkpoint.name, [one.name for one in checkpoint.merged]),
        "task": plan.recipe.task,
        "model_type": plan.recipe.model_type,
        "target": {"name": plan.target, "needs": dict(plan.resolved.needs)},
        "spec": plan.spec,
        "why": plan.why,
        "programs": [*programs],
        "provenance": {
            "version": version("qeff-zoo"),
            **({"dirty": True} if has_uncommitted_changes() else {}),
            "finished": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "seconds": dict(watch.seconds),
            "peak_rss_bytes": peak_rss_bytes(),
        },
        "weights": {
            "storage": _storage(plan, programs),
            "tensors": tensors,
            **({"left_out": dict(left_out)} if left_out else {}),
            **({"gguf_file": checkpoint.gguf} if checkpoint.gguf else {}),
        },
        "validated": "none",
        "validation": [],
        "license": checkpoint.license,
    }


def _storage(plan: Plan, programs: Sequence[Mapping[str, Any]]) -> str:
    """Return the storage of matrices: the target's own format, unless the checkpoint's integers are kept."""
    requested: str = plan.spec["quantization"]["weights"]
    matrices = (one for program in programs for one in program["numerics"]["matrices"])
    if requested == STORED and any(one.get("kept") for one in matrices):
        return STORED
    return plan.resolved.storage or requested
