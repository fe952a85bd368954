# SPDX-License-Identifier: Apache-2.0
"""A graph as target `qaic` lowers them, in small: a decoder of a cache of two states, with weights of a checkpoint."""

from typing import Any

import onnx_ir as ir
from onnx import parser

from qeff_zoo.checkpoint.expressions import transpose
from qeff_zoo.graph.external_data import placeholder, read_slot
from qeff_zoo.graph.numerics import Numerics
from qeff_zoo.graph.states import mark
from qeff_zoo.targets.base import Lowered
from qeff_zoo.weights.layout import Slot

_TEXT = """
<ir_version: 8, opset_import: ["": 17, "com.qualcomm.cloud": 1, "stub.layers": 1]>
decoder (int64[batch_size, seq_len] input_ids, int64[batch_size, seq_len] position_ids,
         float[batch_size, 1, ctx_len, WIDTH] past_key_0, float[batch_size, 1, ctx_len, WIDTH] past_value_0,
         float[VOCAB, WIDTH] embed, float[WIDTH, VOCAB] head)
     => (float[batch_size, 1, VOCAB] logits, float[batch_size, 1, ctx_len, WIDTH] past_key_0_RetainedState,
         float[batch_size, 1, ctx_len, WIDTH] past_value_0_RetainedState)
{
  embedded = Gather (embed, input_ids)
  one = Constant <value_ints = [1]> ()
  new = Unsqueeze (embedded, one)
  other = Neg (new)
  past_key_0_RetainedState = com.qualcomm.cloud.CtxScatter (past_key_0, position_ids, new)
  past_value_0_RetainedState = com.qualcomm.cloud.CtxScatter (past_value_0, position_ids, other)
  first = Constant <value_ints = [0]> ()
  row = Unsqueeze (first, one)
  indices = Unsqueeze (row, one)
  seen = Constant <value_int = 1> ()
  keys = com.qualcomm.cloud.CtxGather (past_key_0_RetainedState, indices, seen)
  values = com.qualcomm.cloud.CtxGather (past_value_0_RetainedState, indices, seen)
  sum = Add (keys, values)
  flat = Squeeze (sum, one)
  hidden = stub.layers.Layer (flat)
  normed = stub.layers.Layer (hidden)
  logits = MatMul (normed, head)
}
<domain: "com.qualcomm.cloud", opset_import: ["": 17]>
CtxScatter (data, position_ids, updates) => (result)
{
  axes = Constant <value_ints = [1, 3]> ()
  positions = Unsqueeze (position_ids, axes)
  shape = Shape (updates)
  index = Expand (positions, shape)
  result = ScatterElements <axis = 2> (data, index, updates)
}
<domain: "com.qualcomm.cloud", opset_import: ["": 17]>
CtxGather (data, ctx_indices, comp_ctx_len) => (result)
{
  flat = Constant <value_ints = [-1]> ()
  rows = Reshape (ctx_indices, flat)
  result = Gather <axis = 2> (data, rows)
}
<domain: "stub.layers", opset_import: ["": 17]>
Layer (x) => (y)
{
  y = Relu (x)
}
"""


def model(vocab: int, width: int) -> Any:
    """Return the graph as an `onnx_ir.Model`, without weights.

    Args:
        vocab: Tokens.
        width: Of a row of the cache.
    """
    text = _TEXT.replace("WIDTH", str(width)).replace("VOCAB", str(vocab))
    made = ir.from_proto(parser.parse_model(text))
    for _ in range(2):
        value = made.graph.inputs.pop()
        value.const_value = placeholder(value.name, value.dtype, value.shape)
        made.graph.register_initializer(value)
        read_slot(value, value.name)
    for value in (*made.graph.inputs, *made.graph.outputs):
        value.name = value.name.replace("_0", ".0")
    for value in made.graph.inputs[2:]:
        mark(value, "growing", 0)
    for place, node in enumerate(node for node in made.graph if node.domain == "stub.layers"):
        node.name = f"model.layers.{place}"
    return made


def lower(graph: Any, program: Any, _: object = None) -> Lowered:
    """Take the place of the target's `lower`: the embedding of the checkpoint is all that is read of it."""
    name, expression = next(
        (name, expression)
        for name, expression in graph.bindings.items()
        if "embed_tokens" in name or "lm_head" in name
    )
    vocab, width = graph.model.graph.initializers[name].shape
    slots = (Slot("embed", expression), Slot("head", transpose(0, 1, expression)))
    return Lowered(model=model(vocab, width), slots=slots, numerics=Numerics(), ways={})
