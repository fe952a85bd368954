# SPDX-License-Identifier: Apache-2.0
"""What OpenVINO 2026.4 lacks of a graph lowered for ONNX Runtime, or would compute otherwise without saying so."""

from collections.abc import Collection, Iterator

import onnx_ir as ir

from qeff_zoo.graph.states import state_of

_CONTRIB = "com.microsoft"
_ATTENTION = "GroupQueryAttention"
_KNOWN = (_ATTENTION, "FusedMatMul", "GatherBlockQuantized", "MatMulNBits")
#: Attributes of attention that it ignores, and their values where there is nothing to ignore.
_PLAIN = {"softcap": 0.0, "local_window_size": -1, "sliding_window_cache": 0}
_PLAIN_INPUTS = 9  # up to the tables of rotary embeddings
_PASTS = slice(3, 5)


def of(model: ir.Model, portable: Collection[str]) -> list[str]:
    """Return what stands in the way in a graph lowered for ONNX Runtime, one phrase each.

    Args:
        model: The graph.
        portable: Why attentions are not computed by one kernel, in words.
    """
    contrib = [node for node in model.graph.all_nodes() if node.domain == _CONTRIB]
    attentions = [node for node in contrib if node.op_type == _ATTENTION]
    cached = {value for node in attentions for value in node.inputs[_PASTS]}
    foreign = {node.op_type for node in contrib} - {*_KNOWN}
    obstacles = [f"OpenVINO has no operator {name}" for name in sorted(foreign)]
    obstacles += sorted({what for node in attentions for what in _ignored(node)})
    states = [value for value in model.graph.inputs if state_of(value)]
    if kept := next((value for value in states if value not in cached), None):
        why = "".join(f", and attention is {words}" for words in portable)
        obstacles.append(f"{kept.name} is not a cache of an attention in one kernel{why}")
    return obstacles


def _ignored(node: ir.Node) -> Iterator[str]:
    for name, plain in _PLAIN.items():
        attribute = node.attributes.get(name)
        if attribute is not None and attribute.value != plain:
            yield f"OpenVINO ignores {name} of an attention"
    if any(value is not None for value in node.inputs[_PLAIN_INPUTS:]):
        yield "OpenVINO ignores sinks of an attention"
