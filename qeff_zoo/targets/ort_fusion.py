# SPDX-License-Identifier: Apache-2.0
"""A residual sum and the RMS norm of it become one kernel of ONNX Runtime."""

import onnx_ir as ir
from onnx_ir.tape import Tape

_CONTRIB = "com.microsoft"
#: What makes hidden states (batch, seq, hidden); of an Add, both its terms must.
_MAKERS = (
    "FusedMatMul",
    "MatMulNBits",
    "GatherBlockQuantized",
    "SimplifiedLayerNormalization",
    "SkipSimplifiedLayerNormalization",
)


def fuse_residual_norms(graph: ir.Graph) -> int:
    """Replace Add and SimplifiedLayerNormalization by SkipSimplifiedLayerNormalization, in place.

    Args:
        graph: Lowered, of a decoder.

    Returns:
        How many.
    """
    fused = 0
    for norm in list(graph):
        x = norm.inputs[0] if norm.op_type == "SimplifiedLayerNormalization" else None
        total = x.producer() if x is not None else None
        if total is None or total.op_type != "Add" or not _is_hidden(x):
            continue
        tape = Tape()
        epsilon = {"epsilon": norm.attributes.get_float("epsilon")}
        normal, _, _, summed = tape.op_multi_out(
            "SkipSimplifiedLayerNormalization",
            [*total.inputs, norm.inputs[1]],
            epsilon,
            num_outputs=4,
            domain=_CONTRIB,
        )
        old = [norm.outputs[0], total.outputs[0]]
        ir.convenience.replace_nodes_and_values(
            graph, total, [norm, total], tape.nodes, old, [normal, summed]
        )
        fused += 1
    return fused


def _is_hidden(value: ir.Value | None) -> bool:
    node = value.producer() if value is not None else None
    if node is not None and node.op_type == "Add":
        return all(map(_is_hidden, node.inputs))
    if node is not None and node.op_type == "Gather":  # an embedding
        return node.inputs[1] is not None and node.inputs[1].name == "input_ids"
    return node is not None and node.op_type in _MAKERS
