# SPDX-License-Identifier: Apache-2.0
"""A decoder for Cloud AI 100 that draws its tokens itself: QEfficient's `include_sampler`, behind the logits.

IN   last_accepted_output_tokens (batch_size, seq_len) i64   of a call of one token a row: it, if it is the answer's; -1
                                                             for one of the prompt
     repetition_penalties, presence_penalties, temperatures, top_ps, min_ps (batch_size, 1) f32
     top_ks (batch_size, 1) i32
     random_numbers (batch_size, max_top_k_ids) f32          between 0 and 1, the last for the likeliest token
     [token_bitmasks (batch_size, vocab) bool]               which tokens may come
     past_repetition_penalty_buffer, past_presence_penalty_buffer (batch_size | full_batch_size, vocab) bool
OUT  next_tokens (batch_size, 1, 1) i64     in place of logits
     [probs (batch_size, 1, vocab) f32]     that it was drawn by, 0 where a limit forbids a token
     and both buffers, as they are retained

Penalties, temperature, top-k, top-p and min-p follow each other as in transformers; `top_ks` and more than
`max_top_k_ids` tokens are never drawn from. A token is drawn by the Gumbel-max trick, one number for each that may be;
where the temperature is 0 it is the likeliest. Both buffers of a row are empty where its text begins, in whichever call
that is; QEfficient empties that of presence in all rows with every prompt.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import onnx.parser
import onnx_ir as ir
from onnx_ir.passes import common as onnx_passes

from qeff_zoo.graph.passes.narrowing import HIDDEN
from qeff_zoo.graph.semantic.domains import OPSET, SEMANTIC
from qeff_zoo.graph.states import mark, state_of
from qeff_zoo.targets.qaic.options import TOP_K_IDS

from . import ops

_NAME = "Sampler"
_FLOAT, _BOOL = ir.DataType.FLOAT, ir.DataType.BOOL
_INT64, _INT32 = ir.DataType.INT64, ir.DataType.INT32
_Kind: TypeAlias = tuple[ir.DataType, list[Any]]
#: Which tokens may come, one flag for each.
BITMASKS = "token_bitmasks"
_BUFFERS = ("past_repetition_penalty_buffer", "past_presence_penalty_buffer")
#: What a row is given besides, and its type.
_OF_ROWS = {
    **dict.fromkeys(("repetition_penalties", "presence_penalties", "temperatures"), _FLOAT),
    "top_ks": _INT32,
    **dict.fromkeys(("top_ps", "min_ps"), _FLOAT),
}

# In comments: B rows, S columns, F slots, V vocabulary, K tokens that may be drawn.
_CONSTANTS = f"""
    nought = Constant <value_int = 0> ()
    one_int = Constant <value_int = 1> ()
    skip = Constant <value_int = {ops.SKIP}> ()
    columns = Constant <value_ints = [1]> ()
    zero = Constant <value_float = 0.0> ()
    one = Constant <value_float = 1.0> ()
    least = Constant <value_float = {HIDDEN}> ()"""
_SLOTS = """
    rows_shape = Shape <start = 0, end = 1> (input_ids)
    rows_axis = Constant <value_ints = [0]> ()
    rows_count = Squeeze (rows_shape, rows_axis)
    rows_range = Range (nought, rows_count, one_int)
    batch_index = Unsqueeze (rows_range, columns)"""
# Both buffers (F, V): empty where a row begins (B, 1), then with the tokens of this call.
_OCCURRENCES = """
    is_token = GreaterOrEqual (position_ids, nought)
    places = Where (is_token, position_ids, skip)
    first = ReduceMin <keepdims = 1> (places, columns)
    begins = Equal (first, nought)
    begin_at = Where (begins, nought, skip)
    slots_shape = Shape <start = 0, end = 1> (past_repetition_penalty_buffer)
    flags_shape = Concat <axis = 0> (slots_shape, columns)
    no = Cast <to = 9> (nought)
    flags = Expand (no, flags_shape)
    begun = com.qualcomm.cloud.CtxScatterCB3D (flags, batch_index, begin_at, begins)
    goes_on = Not (begun)
    old_seen = And (past_repetition_penalty_buffer, goes_on)
    tokens = Where (is_token, input_ids, skip)
    seen = com.qualcomm.cloud.CtxScatterCB3D (old_seen, batch_index, tokens, is_token)
    width = Shape <start = 1, end = 2> (input_ids)
    is_single = Equal (width, columns)
    is_answer = GreaterOrEqual (last_accepted_output_tokens, nought)
    is_known = And (is_token, is_answer)
    is_said = And (is_known, is_single)
    answered = Where (is_said, last_accepted_output_tokens, skip)
    old_said = And (past_presence_penalty_buffer, goes_on)
    said = com.qualcomm.cloud.CtxScatterCB3D (old_said, batch_index, answered, is_said)"""
# Scores (B, V) after penalties.
_PENALTIES = """
    slots = Squeeze (batch_index, columns)
    scores = Squeeze (logits, columns)
    lowered = Div (scores, repetition_penalties)
    raised = Mul (scores, repetition_penalties)
    is_positive = Greater (scores, zero)
    penalized = Where (is_positive, lowered, raised)
    row_seen = Gather <axis = 0> (seen, slots)
    repeated = Where (row_seen, penalized, scores)
    less = Sub (repeated, presence_penalties)
    row_said = Gather <axis = 0> (said, slots)
    heard = Where (row_said, less, repeated)"""
_ALL = """
    judged = Identity (heard)"""
_ALLOWED = """
    judged = Where (token_bitmasks, heard, least)"""
# The K likeliest, best first (B, K), and which of them are beyond a limit; the best never is. Values are relative to
# the best, so that no small temperature takes them beyond float16.
_LIMITS = """
    greedy = ArgMax <axis = 1, keepdims = 1> (judged)
    is_greedy = Equal (temperatures, zero)
    divisor = Where (is_greedy, one, temperatures)
    best = ReduceMax <keepdims = 1> (judged, columns)
    behind = Sub (judged, best)
    scaled = Div (behind, divisor)
    count = Constant <value_ints = [{count}]> ()
    values, indices = TopK <axis = 1> (scaled, count)
    ranks = Constant <value_ints = {ranks}> ()
    asked = Cast <to = 7> (top_ks)
    beyond_k = GreaterOrEqual (ranks, asked)
    within_k = Where (beyond_k, least, values)
    shares = Softmax <axis = 1> (within_k)
    tail = CumSum <reverse = 1> (shares, one_int)
    rest = Sub (one, top_ps)
    beyond_p = LessOrEqual (tail, rest)
    largest = ReduceMax <keepdims = 1> (shares, columns)
    bound = Mul (min_ps, largest)
    beyond_min = Less (shares, bound)
    beyond_some = Or (beyond_k, beyond_p)
    beyond_any = Or (beyond_some, beyond_min)
    is_other = Greater (ranks, nought)
    beyond = And (beyond_any, is_other)"""
_DRAW = """
    mirrored = Constant <value_ints = {mirrored}> ()
    numbers = Gather <axis = 1> (random_numbers, mirrored)
    inner = Log (numbers)
    positive = Neg (inner)
    outer = Log (positive)
    noise = Neg (outer)
    noisy = Add (values, noise)
    drawable = Where (beyond, least, noisy)
    place = ArgMax <axis = 1, keepdims = 1> (drawable)
    drawn = GatherElements <axis = 1> (indices, place)
    chosen = Where (is_greedy, greedy, drawn)
    next_tokens = Unsqueeze (chosen, columns)"""
_PROBS = """
    inside = Where (beyond, least, values)
    chances = Softmax <axis = 1> (inside)
    whole = Shape (scores)
    nothing = Expand (zero, whole)
    spread = ScatterElements <axis = 1> (nothing, indices, chances)
    probs = Unsqueeze (spread, columns)"""


def attach(model: ir.Model, flags: Mapping[str, Any]) -> None:
    """Let a lowered decoder return tokens that it draws in place of logits, in place.

    Args:
        model: Without bodies of custom ops; its constants are narrow already.
        flags: Flags of the target.
    """
    graph = model.graph
    logits = next(value for value in graph.outputs if value.name == "logits")
    graph.outputs.remove(logits)
    rows, _, vocab = _sizes(logits)
    given = {str(value.name): value for value in graph.inputs}
    width = _sizes(given["input_ids"])[1]
    count = min(int(flags.get("max_top_k_ids", TOP_K_IDS)), vocab)
    of_calls: dict[str, _Kind] = {
        "last_accepted_output_tokens": (_INT64, [rows, width]),
        **{name: (dtype, [rows, 1]) for name, dtype in _OF_ROWS.items()},
        "random_numbers": (_FLOAT, [rows, count]),
    }
    if flags.get("include_guided_decoding"):
        of_calls[BITMASKS] = (_BOOL, [rows, vocab])
    slots = "full_batch_size" if "batch_index" in given else rows
    buffers = {name: _made(name, (_BOOL, [slots, vocab])) for name in _BUFFERS}
    for value in buffers.values():
        mark(value, "penalty", 0)
    added = {name: _made(name, kind) for name, kind in of_calls.items()} | buffers
    graph.inputs.extend(added.values())
    given |= {"logits": logits, **added}
    returned: dict[str, _Kind] = {"next_tokens": (_INT64, [rows, 1, 1])}
    if flags.get("return_pdfs"):
        returned["probs"] = (_FLOAT, [rows, 1, vocab])
    outputs = [_made(name, kind) for name, kind in returned.items()]
    states = [state for value in buffers.values() if (state := state_of(value)) is not None]
    outputs += [_made(state.output, (_BOOL, [slots, vocab])) for state in states]
    read = [
        name
        for name in ("logits", "input_ids", "position_ids", "batch_index", *added)
        if name in given
    ]
    function = _function(read, [*returned, "seen", "said"], count)
    graph.append(ir.Node(SEMANTIC, _NAME, [given[name] for name in read], outputs=outputs))
    graph.outputs[:0] = outputs[: len(returned)]
    graph.outputs.extend(outputs[len(returned) :])
    model.functions[function.identifier()] = function
    model.opset_imports[SEMANTIC] = 1
    onnx_passes.InlinePass(lambda one: one is function)(model)


def return_logits(graph: ir.Graph) -> None:
    """Let a graph that draws tokens return what it draws them from as well."""
    outputs = {value.name for value in graph.outputs}
    if "next_tokens" in outputs:
        values = (value for node in graph for value in node.outputs)
        graph.outputs.extend(value for value in values if value.name == "logits")


def _sizes(value: ir.Value) -> list[Any]:
    assert value.shape is not None
    return [size if isinstance(size, int) else size.value for size in value.shape]


def _made(name: str, kind: _Kind) -> ir.Value:
    dtype, shape = kind
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))


def _function(read: Sequence[str], returned: Sequence[str], count: int) -> ir.Function:
    """Write what is computed.

    Args:
        read: Names of inputs.
        returned: Names of results.
        count: Tokens that may be drawn.
    """
    ranks = [*range(count)]
    parts = [
        *(_CONSTANTS, "" if "batch_index" in read else _SLOTS, _OCCURRENCES, _PENALTIES),
        *(_ALLOWED if BITMASKS in read else _ALL, _LIMITS, _DRAW),
        _PROBS if "probs" in returned else "",
    ]
    body = "".join(parts).format(count=count, ranks=ranks, mirrored=ranks[::-1])
    text = f"""<domain: "{SEMANTIC}", opset_import: ["" : {OPSET}, "{ops.CLOUD}" : 1]>
    {_NAME} ({", ".join(read)}) => ({", ".join(returned)}) {{ {body} }}"""
    return ir.serde.deserialize_function(onnx.parser.parse_function(text))
