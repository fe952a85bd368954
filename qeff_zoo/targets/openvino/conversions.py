# SPDX-License-Identifier: Apache-2.0
"""Operators of ONNX Runtime in those of OpenVINO, where its own translation is wrong or slow."""

from typing import Any

import numpy as np
import openvino
from openvino import opset13 as ops
from openvino.frontend import NodeContext
from openvino.frontend.onnx import ConversionExtension

_CONTRIB = "com.microsoft"
_HEADS_FIRST = [0, 2, 1, 3]  # (batch, seq, heads, size) <-> (batch, heads, seq, size)
_HIDDEN = np.float32(-np.inf)
_FIRST, _LAST, _ONE = np.array([0]), np.array([-1]), np.array([1])


def extensions() -> list[ConversionExtension]:
    """Return what to add to OpenVINO before it reads a graph."""
    return [
        ConversionExtension("GatherBlockQuantized", _CONTRIB, _rows),
        ConversionExtension("GroupQueryAttention", _CONTRIB, _attention),
    ]


def _attention(node: NodeContext) -> list[openvino.Output]:
    """Attend from the new tokens of one row, and return their keys and values alone.

    OpenVINO 2026.4 returns those of the whole context, and repeats them for each query head of a group, which takes
    longer than all else where a few tokens come after many. Here a group's queries are rows of one head.
    """
    query, key, value, past_key, past_value, newest = (node.get_input(place) for place in range(6))
    heads, groups = node.get_attribute("num_heads"), node.get_attribute("kv_num_heads")
    size = past_key.get_partial_shape()[3].get_length()
    length = _length(query, 1)
    # The kernel gets the position of a row's newest token.
    start = ops.subtract(
        ops.add(ops.reshape(ops.convert(newest, "i64"), _ONE, False), _ONE), length
    )
    queries, keys = _heads(query, heads, size), _heads(key, groups, size)
    values = _heads(value, groups, size)
    if node.get_attribute("do_rotary"):
        end = ops.add(start, length)
        tables = [ops.slice(node.get_input(place), start, end, _ONE, _FIRST) for place in (7, 8)]
        interleaved = bool(node.get_attribute("rotary_interleaved"))
        queries, keys = (_turned(one, tables, interleaved) for one in (queries, keys))
    several = np.array([0, groups, -1, size])
    attended = ops.scaled_dot_product_attention(
        ops.reshape(queries, several, True),
        _after(past_key, start, keys),
        _after(past_value, start, values),
        _mask(start, length, heads // groups),
        np.float32(node.get_attribute("scale")),
    )
    by_head = ops.reshape(attended, _shape(0, heads, length, size), True)
    flat = ops.reshape(ops.transpose(by_head, _HEADS_FIRST), np.array([0, 0, -1]), True)
    return [flat.output(0), keys.output(0), values.output(0)]


def _length(value: openvino.Output, axis: int) -> openvino.Node:
    return ops.gather(ops.shape_of(value), np.array([axis]), np.int64(0))


def _shape(*parts: int | openvino.Node) -> openvino.Node:
    return ops.concat([np.array([part]) if isinstance(part, int) else part for part in parts], 0)


def _heads(value: openvino.Output, count: int, size: int) -> openvino.Node:
    """Return (1, heads, seq, size)."""
    return ops.transpose(ops.reshape(value, np.array([0, 0, count, size]), True), _HEADS_FIRST)


def _after(past: openvino.Output, start: openvino.Node, new: openvino.Node) -> openvino.Node:
    """Return what the context so far has, and the new ones."""
    return ops.concat([ops.slice(past, _FIRST, start, _ONE, np.array([2])), new], 2)


def _turned(heads: openvino.Node, tables: list[openvino.Node], interleaved: bool) -> openvino.Node:
    """Turn pairs of numbers (rotary embedding): neighbours, or one of each half; what is beyond the tables stays."""
    cos, sin = tables
    pairs = cos.get_output_partial_shape(0)[1].get_length()
    size, last = heads.get_output_partial_shape(0)[3].get_length(), np.int64(-1)

    def part(begin: int, end: int, step: int) -> openvino.Node:
        return ops.slice(heads, *(np.array([one]) for one in (begin, end, step)), _LAST)

    if interleaved:
        one, other = part(0, 2 * pairs, 2), part(1, 2 * pairs, 2)
    else:
        one, other = part(0, pairs, 1), part(pairs, 2 * pairs, 1)
    turned = [
        ops.subtract(ops.multiply(one, cos), ops.multiply(other, sin)),
        ops.add(ops.multiply(other, cos), ops.multiply(one, sin)),
    ]
    if interleaved:
        both = ops.concat([ops.unsqueeze(half, last) for half in turned], -1)
        turned = [ops.reshape(both, np.array([0, 0, 0, 2 * pairs]), True)]
    return ops.concat([*turned, part(2 * pairs, size, 1)] if 2 * pairs < size else turned, -1)


def _mask(start: openvino.Node, length: openvino.Node, group: int) -> openvino.Node:
    """Return (group * seq, context): 0 where a token attends to another, -inf where it comes later."""
    scalar = np.array([], np.int64)
    first, count = (ops.reshape(one, scalar, False) for one in (start, length))
    end = ops.add(first, count)
    at = ops.unsqueeze(ops.range(first, end, np.int64(1), "i64"), _LAST)
    keys = ops.range(np.int64(0), end, np.int64(1), "i64")
    hidden = ops.select(ops.less_equal(keys, at), np.float32(0), _HIDDEN)
    return ops.concat([hidden] * group, 0)


def _rows(node: NodeContext) -> list[openvino.Output]:
    """Look up rows of integers: OpenVINO 2026.4 fails at rows with an odd number of 4-bit zero points."""
    data, indices, scales = (node.get_input(number) for number in range(3))
    bits, block = node.get_attribute("bits"), node.get_attribute("block_size")
    leading, last, first = ops.shape_of(indices), np.array([-1]), np.int64(0)
    flat = ops.concat([leading, last], 0)

    def numbers(table: openvino.Output) -> openvino.Node:
        looked_up = ops.convert(ops.gather(table, indices, first), "f32")
        if bits == 8:
            return looked_up
        high = ops.floor(ops.multiply(looked_up, np.float32(1 / 16)))
        low = ops.subtract(looked_up, ops.multiply(high, np.float32(16)))
        pairs = ops.concat([ops.unsqueeze(half, last) for half in (low, high)], -1)
        return ops.reshape(pairs, flat, special_zero=False)

    count = scales.get_partial_shape()[1].get_length()
    blocks = ops.concat([leading, np.array([count, block])], 0)
    values = ops.reshape(numbers(data), blocks, special_zero=False)
    zeros: Any = np.float32(1 << bits - 1)
    if node.get_input_size() > 3:
        begin, end, step = (np.array([number]) for number in (0, count, 1))
        kept = ops.slice(numbers(node.get_input(3)), begin, end, step, last)
        zeros = ops.unsqueeze(kept, last)
    scale = ops.unsqueeze(ops.gather(scales, indices, first), last)
    scaled = ops.multiply(ops.subtract(values, zeros), scale)
    return [*ops.reshape(scaled, flat, special_zero=False).outputs()]
