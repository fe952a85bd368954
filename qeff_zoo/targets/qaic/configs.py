# SPDX-License-Identifier: Apache-2.0
"""Files that qaic-compile reads besides the graph, as text: sizes, types of states, devices, nodes in float32.

In: what was planned and the names of a graph. Out: the content of each file, in the form that QEfficient writes.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from qeff_zoo.errors import CompileError
from qeff_zoo.graph.states import State

#: Values of a state that share an exponent in MXINT8; they lie along its last axis.
MX_BLOCK = 32
#: How QEfficient's names of what an encoder has read begin.
CROSSED = ("past_key_cross.", "past_value_cross.")
#: A function of fewer nodes is inlined by the compiler; these never are.
_INLINED_BELOW = 100
_KEPT = ("CustomRMSNorm", "CastToUInt4")
_LAYER = re.compile(r"/?[A-Za-z_][\w./]*?\.(\d+)(?:[/.]|$)")


def specializations(entries: Sequence[Mapping[str, Any]]) -> str:
    """Write specializations.json, line by line as `compile.sh` expects it to remove the names for an older compiler.

    Args:
        entries: Specializations of the program's plan: a name, and sizes by symbol as digits.
    """
    return json.dumps({"specializations": [*entries]}, indent=1) + "\n"


def state_types(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the type that states are kept in, by their kind.

    Args:
        options: Options of the target.
    """
    cache = "mxint8" if options.get("mxint8_kv_cache") else "float16"
    others = dict.fromkeys(("index", "recurrent", "cross", "adapter", "features"), "float16")
    return {"growing": cache, "window": cache, **others}


def custom_io(states: Sequence[State], types: Mapping[str, str]) -> str:
    """Write custom_io.yaml: the type of every state, as it comes in and goes out.

    Args:
        states: Float states.
        types: Data types by kind of state.

    Raises:
        CompileError: A state has no blocks of MXINT8.
    """
    return io_list(((state, (state.name, state.output)) for state in states), types)


def io_list(states: Iterable[tuple[State, Sequence[str]]], types: Mapping[str, str]) -> str:
    """Write the same of states that are called something else.

    Args:
        states: Each with the names of its input and its output.
        types: Data types by kind of state.

    Raises:
        CompileError: A state has no blocks of MXINT8.
    """
    return "".join(
        f" - IOName: {name}\n   Precision: {precision_of(state, types)}\n\n"
        for state, names in states
        for name in names
    )


def precision_of(state: State, types: Mapping[str, str]) -> str:
    """Return the type that a state is kept in.

    Args:
        state: A float state.
        types: Data types by kind of state.

    Raises:
        CompileError: The state has no blocks of MXINT8.
    """
    last, precision = state.axes[-1], types[state.kind]
    if precision == "mxint8" and (not isinstance(last, int) or last % MX_BLOCK):
        raise CompileError(
            f"State {state.name!r} has rows of {last}, which are no blocks of MXINT8; expected a multiple of "
            f"{MX_BLOCK}. Leave --mxint8-kv-cache out."
        )
    return precision


# --- devices -----------------------------------------------------------------------------------


def sliced(num_devices: int, num_cores: int) -> str:
    """Write the partition config of a model whose every operator is sliced over all devices."""
    return _partitions([{"devices": _devices(range(num_devices), num_cores)}])


def pipelined(
    nodes: Sequence[tuple[int | None, str]], stages: int, num_devices: int, num_cores: int
) -> str:
    """Write the partition config of a pipeline: each stage has some of the layers, on devices of its own.

    What lies before the first layer, and between layers, goes with the layer before it.

    Args:
        nodes: The layer of each node, None for one outside of all layers, and its name; in the order of the graph.
        stages: Number of stages, at most one for each layer.
        num_devices: A multiple of `stages`.
        num_cores: Number of cores of each device.

    Raises:
        CompileError: There are fewer layers than stages.
    """
    layers = sorted({layer for layer, _ in nodes if layer is not None})
    if len(layers) < stages:
        raise CompileError(
            f"The graph has {len(layers)} layers by the names of its nodes, and --mdp-num-partitions is {stages}; "
            "expected at most one stage for each layer. Choose fewer."
        )
    stage_of = dict(zip(layers, _stages(len(layers), stages), strict=True))
    lists: list[list[str]] = [[] for _ in range(stages)]
    newest = 0
    for layer, name in nodes:
        newest = newest if layer is None else stage_of[layer]
        lists[newest].append(name)
    each = num_devices // stages
    return _partitions(
        [
            {
                "devices": _devices(range(place * each, (place + 1) * each), num_cores),
                "nodeList": names,
            }
            for place, names in enumerate(lists)
        ]
    )


def _stages(layers: int, stages: int) -> list[int]:
    """Return the stage of each layer; layers that are left over go to the stages in the middle."""
    each, over = divmod(layers, stages)
    first = (stages - over) // 2
    sizes = [each + (first <= stage < first + over) for stage in range(stages)]
    return [stage for stage, size in enumerate(sizes) for _ in range(size)]


def _devices(ids: range, num_cores: int) -> list[dict[str, int]]:
    return [{"deviceId": device, "numCores": num_cores} for device in ids]


def _partitions(parts: list[dict[str, Any]]) -> str:
    every = [device["deviceId"] for part in parts for device in part["devices"]]
    content = {
        "connections": [{"devices": every, "type": "p2p"}],
        "partitions": [{"name": f"Partition{place}", **part} for place, part in enumerate(parts)],
    }
    return json.dumps(content, indent=1) + "\n"


# --- nodes -------------------------------------------------------------------------------------


def name_nodes(model: Any) -> None:
    """Give every node a name, of its own in its graph or function.

    Args:
        model: An `onnx_ir.Model`, changed in place.
    """
    for nodes in (model.graph, *model.functions.values()):
        taken: set[str] = set()
        for number, node in enumerate(nodes):
            if not node.name or node.name in taken:
                node.name = f"{node.op_type}_{number}"
            while node.name in taken:
                node.name += "_"
            taken.add(node.name)


def nodes_of(model: Any) -> list[tuple[int | None, str]]:
    """Return the compiler's nodes, those of inlined functions as `<call>/<node>`, and the layer of each.

    Args:
        model: An `onnx_ir.Model` whose nodes have names.
    """
    return [(_layer_of(name), name) for name in _names(model, model.graph, "")]


def _names(model: Any, nodes: Any, prefix: str) -> Iterator[str]:
    for node in nodes:
        body = model.functions.get(node.op_identifier())
        yield prefix + node.name
        if body is not None and len(body) < _INLINED_BELOW and node.op_type not in _KEPT:
            yield from _names(model, body, f"{prefix}{node.name}/")


def _layer_of(name: str) -> int | None:
    match = _LAYER.match(name)
    return int(match[1]) if match else None


def check_patterns(models: Sequence[Any], patterns: Sequence[str]) -> None:
    """Check that every pattern of `matching_outputs` fits a node of some program of a package.

    Args:
        models: `onnx_ir.Model` of each program.
        patterns: See `matching_outputs`.

    Raises:
        CompileError: A pattern fits no node.
    """
    nodes = [node for model in models for node in model.graph]
    for pattern in patterns:
        if not any(_fits(node, pattern) for node in nodes):
            operators = ", ".join(sorted({node.op_type for node in nodes}))
            raise CompileError(
                f"--node-precision-info {pattern!r} fits no node of the graph; expected an operator ({operators}) or "
                "the name of a node. Correct it, or leave it out."
            )


def matching_outputs(model: Any, patterns: Sequence[str]) -> list[str]:
    """Return the outputs of floats of the graph's nodes whose operator or name fits a pattern.

    Args:
        model: An `onnx_ir.Model` whose nodes have names.
        patterns: `*` stands for any text.
    """
    return [
        value.name
        for node in model.graph
        if any(_fits(node, pattern) for pattern in patterns)
        for value in node.outputs
        if value.name and (value.dtype is None or value.dtype.is_floating_point())
    ]


def _fits(node: Any, pattern: str) -> bool:
    return fnmatchcase(node.op_type, pattern) or fnmatchcase(node.name, pattern)


def node_precision(outputs: Sequence[str]) -> str:
    """Write the node precision info: nodes that are computed in float32, by the names of their outputs."""
    names = "".join(f"\n  - {json.dumps(name)}" for name in outputs)
    return f"FP32NodeInstanceNames:{names or ' []'}\n"
