# SPDX-License-Identifier: Apache-2.0
"""Semantic ops: ops that a target may lower as a whole; name, signature and ONNX body of each, without torch.

The body is an ONNX function that makes the portable graph run in any ONNX runtime. The same in torch stands in
`export.ops`.
"""

from collections.abc import Collection
from typing import Any

from qeff_zoo.graph.semantic.domains import OPSET, SEMANTIC

from . import attention, experts, linear, recurrence, rotary, states

ALL = (
    linear.LINEAR,
    linear.LORA,
    linear.RMS_NORM,
    states.CACHE_WRITE,
    states.SLOT_WRITE,
    states.SLOT_READ,
    states.SLOT_REPLACE,
    states.CONTEXT_READ,
    states.STATE_BEFORE,
    states.CONVOLUTION_WINDOW,
    recurrence.LINEAR_RECURRENCE,
    recurrence.DELTA_RECURRENCE,
    attention.CAUSAL_MASK,
    attention.WINDOW_MASK,
    attention.HELD_MASK,
    attention.ATTENTION,
    attention.SOFTCAP_ATTENTION,
    attention.SINK_ATTENTION,
    experts.ROUTED_LINEAR,
    experts.EXPERTS,
    experts.INTERLEAVED_EXPERTS,
    *rotary.ROTARY_EMBEDDINGS,
)


def functions(used: Collection[str] | None = None) -> list[Any]:
    """Bodies of semantic ops as `onnx_ir.Function`s.

    Args:
        used: Names of ops; None for all.
    """
    import onnx.parser
    import onnx_ir as ir

    ops = [op for op in ALL if used is None or op.name in used]
    header = f'<domain: "{SEMANTIC}", opset_import: ["" : {OPSET}]>'
    return [ir.from_proto(onnx.parser.parse_function(header + op.body)) for op in ops]
