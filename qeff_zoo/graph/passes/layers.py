# SPDX-License-Identifier: Apache-2.0
"""The layer of a node: kept when functions of layers are inlined, and encoded in the nodes' names.

`/model/layers.3/self_attn/q_proj/MatMul` reads the weight `model.layers.3.self_attn.q_proj.weight`;
`/model/layers.3/Softmax_1` is the second of its kind in that layer that reads none; `/Range` is of no layer.
"""

import re
from collections import Counter

import onnx_ir as ir
from onnx_ir.passes import common as onnx_passes

from qeff_zoo.graph.external_data import is_placeholder
from qeff_zoo.graph.semantic.domains import LAYERS

_PATH = "qeff_zoo.layer_path"
_NUMBERED = re.compile(r"^(.*?\.(\d+))\.")


def inline(model: ir.Model) -> None:
    """Inline the functions of layers, in place; each node keeps the path of its layer, as `model.layers.3`."""
    calls = [node for node in model.graph if node.domain == LAYERS]
    for call in calls:
        call.metadata_props[_PATH] = call.name or ""
    onnx_passes.InlinePass(lambda function: function.domain == LAYERS)(model)
    if not calls:
        _find(model.graph)


def _find(graph: ir.Graph) -> None:
    """Find out the layers of a graph without functions of them: by weights that nodes read, else by their inputs."""
    for node in graph:
        weights = _weights(node)
        if weights:
            numbered = [match[1] for name in weights if (match := _NUMBERED.match(name))]
            path = max(numbered, key=_index, default=None)
        else:
            makers = [value.producer() for value in node.inputs if value is not None]
            paths = [
                maker.metadata_props[_PATH]
                for maker in makers
                if maker and _PATH in maker.metadata_props
            ]
            path = max(paths, key=_index, default=None)
        if path:
            node.metadata_props[_PATH] = path


def _weights(node: ir.Node) -> list[str]:
    """Name the weights that a node reads."""
    given = [value for value in node.inputs if value is not None and is_placeholder(value)]
    return [(value.name or "").removesuffix(".blocks") for value in given]  # of integers


def _index(path: str) -> int:
    return int(path.rpartition(".")[2])


def name_nodes(model: ir.Model) -> None:
    """Give every node a unique name with its layer and, for a node that reads a weight, its module."""
    used: Counter[str] = Counter()
    for node in model.graph:
        layer = node.metadata_props.get(_PATH, "")
        modules = [name.partition(":")[0].rpartition(".")[0] for name in _weights(node)]
        module = next((one for one in modules if f"{one}.".startswith(layer)), layer)
        scope = re.sub(r"\.(?!\d+(\.|$))", "/", module)
        name = f"/{scope}/{node.op_type}" if scope else f"/{node.op_type}"
        used[name] += 1
        node.name = name if used[name] == 1 else f"{name}_{used[name] - 1}"


def layers_of(model: ir.Model) -> list[tuple[int | None, str]]:
    """Return the layer and the name of every node of the graph, in order; None for a node of no layer.

    Args:
        model: Lowered model, or one read from its file.
    """
    paths = [(node.metadata_props.get(_PATH), node.name or "") for node in model.graph]
    return [(None if path is None else _index(path), name) for path, name in paths]
