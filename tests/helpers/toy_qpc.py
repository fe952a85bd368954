# SPDX-License-Identifier: Apache-2.0
"""Stub QPCs for the stand-in of qaicrt, and packages of them: of a decoder of exact integers, and of any ONNX file.

What the toy answers depends on every token before it and its position, by two states. A token in another request's row,
or twice, or a padding that was written, gives another answer.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import package_builder
from package_builder import draft

from qeff_zoo.checkpoint.adapters import sites_of
from qeff_zoo.package import Package, write_manifest
from qeff_zoo.recipe import Shape
from qeff_zoo.tasks.text_generation import task as text_generation

VOCAB = 13
_CONTEXT_LENGTHS = "comp_ctx_lengths"
# B rows of a call, S columns, C positions; a state has a row for each slot, or for each row of a call.
_TOY = """
<ir_version: 9, opset_import: ["": 18]>
toy (
  int64[batch_size, seq_len] input_ids, int64[batch_size, seq_len] position_ids,
  float[ROWS, 1, ctx_len, 1] past_key_0, float[ROWS, 1] recurrent_state_1{given}
) => (
  float[batch_size, 1, 13] logits,
  float[ROWS, 1, ctx_len, 1] past_key_0_RetainedState, float[ROWS, 1] recurrent_state_1_RetainedState
) {{
  nil = Constant <value_int = 0> ()
  un = Constant <value_int = 1> ()
  first = Constant <value_ints = [0]> ()
  second = Constant <value_ints = [1]> ()
  last = Constant <value_ints = [2]> ()
  none = Constant <value_float = 0.0> ()
  one = Constant <value_float = 1.0> ()
  plain = Constant <value_ints = [0, -1]> ()
  {read}
  ids = Cast <to = 1> (input_ids)
  tokens = Add (ids, one)
  is_token = GreaterOrEqual (position_ids, nil)
  kept = Where (is_token, tokens, none)
  cache = Reshape (mine, plain)
  length = Shape <start = 1> (cache)
  count = Squeeze (length, first)
  positions = Range (nil, count, un)
  wanted = Unsqueeze (position_ids, last)
  hit = Equal (wanted, positions)
  hot = Cast <to = 1> (hit)
  column = Unsqueeze (kept, last)
  each = Mul (hot, column)
  written = ReduceSum <keepdims = 0> (each, second)
  hits = ReduceSum <keepdims = 0> (hot, second)
  taken = Greater (hits, none)
  now = Where (taken, written, cache)
  four = Constant <value_ints = [0, 1, -1, 1]> ()
  present = Reshape (now, four)
  is_start = Equal (position_ids, nil)
  starts = Cast <to = 1> (is_start)
  started = ReduceMax <keepdims = 1> (starts, second)
  begins = Greater (started, none)
  before = Where (begins, none, number)
  sum = ReduceSum <keepdims = 1> (kept, second)
  after = Add (before, sum)
  {write}
  {slice}
  newest = ReduceMax <keepdims = 1> (position_ids, second)
  old = LessOrEqual (seen_positions, newest)
  weights_of = Constant <value_int = 7> ()
  by = Constant <value_int = 11> ()
  steps = Mul (seen_positions, weights_of)
  turns = Mod (steps, by)
  turned = Add (turns, un)
  weights = Cast <to = 1> (turned)
  weighed = Mul (seen, weights)
  heard = Where (old, weighed, none)
  total = ReduceSum <keepdims = 1> (heard, second)
  value = Add (total, after)
  vocabulary = Constant <value_floats = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0]> ()
  products = Mul (value, vocabulary)
  modulus = Constant <value_float = 17.0> ()
  flat = Mod <fmod = 1> (products, modulus)
  logits = Unsqueeze (flat, second)
}}
"""
_SLOTS = {
    "given": ", int64[batch_size, 1] batch_index",
    "read": """slots = Squeeze (batch_index, second)
  mine = Gather <axis = 0> (past_key_0, slots)
  number = Gather <axis = 0> (recurrent_state_1, slots)""",
    "write": """past_key_0_RetainedState = ScatterND (past_key_0, batch_index, present)
  recurrent_state_1_RetainedState = ScatterND (recurrent_state_1, batch_index, after)""",
}
_PLAIN = {
    "given": "",
    "read": """mine = Identity (past_key_0)
  number = Identity (recurrent_state_1)""",
    "write": """past_key_0_RetainedState = Identity (present)
  recurrent_state_1_RetainedState = Identity (after)""",
}
_WHOLE = """seen = Identity (now)
  seen_positions = Identity (positions)"""
_BEGINNING = """wide = Shape (comp_ctx_lengths)
  seen = Slice (now, first, wide, second)
  seen_positions = Slice (positions, first, wide, first)"""


def toy(path: Path, *, slots: bool, contexts: bool, logits: str = "logits") -> Path:
    """Write the toy's graph."""
    parts = {**(_SLOTS if slots else _PLAIN), "slice": _BEGINNING if contexts else _WHOLE}
    parts["given"] += f", int64[{_CONTEXT_LENGTHS}] {_CONTEXT_LENGTHS}" if contexts else ""
    text = (
        _TOY.format(**parts)
        .replace("ROWS", "full_batch_size" if slots else "batch_size")
        .replace("logits", logits)
    )
    model = onnx.parser.parse_model(text)
    for node in model.graph.node:
        node.input[:] = [_dotted(name) for name in node.input]
        node.output[:] = [_dotted(name) for name in node.output]
    for value in (*model.graph.input, *model.graph.output):
        value.name = _dotted(value.name)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path


def _dotted(name: str) -> str:
    return name.replace("key_0", "key.0").replace("state_1", "state.1")


def toy_answer(prompt: Sequence[int], length: int) -> list[int]:
    """Return what the toy says greedily."""
    tokens = list(prompt)
    for _ in range(length):
        audio = sum((token + 1) * (at * 7 % 11 + 1) for at, token in enumerate(tokens))
        value = audio + sum(token + 1 for token in tokens)
        logits = [value * (word + 1) % 17 for word in range(VOCAB)]
        tokens.append(logits.index(max(logits)))
    return tokens[len(prompt) :]


def toy_package(folder: Path, *, sizes: Mapping[str, Any], **choices: Any) -> Package:
    """Make a package of the toy.

    Args:
        folder: Absent.
        sizes: Of `Shape`.
        choices: As `package_of` takes them.
    """
    shape = Shape(**{"ctx_len": 64, "prefill_seq_len": 8, **sizes})
    slots, contexts = bool(shape.full_batch_size), bool(shape.comp_ctx_lengths_decode)
    settings = {name: True for name in ("prefill_only", "decode_only") if sizes.get(name)}
    model = toy(folder.with_suffix(".onnx"), slots=slots, contexts=contexts)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"vocab_size": VOCAB}))
    specializations = text_generation.TASK.specializations(shape)
    return package_of(folder, model, specializations, shape=settings, **choices)


def package_of(
    folder: Path,
    model: Path,
    specializations: Sequence[Mapping[str, Any]],
    *,
    role: str = "decoder",
    task: str = "text-generation",
    custom_io: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    shape: Mapping[str, Any] | None = None,
) -> Package:
    """Make a folder a package of target `qaic`, with a stub QPC of an ONNX file.

    Args:
        folder: Has all other files.
        model: Whose outputs that are called as an input, and _RetainedState, are states.
        specializations: As in a manifest.
        role: Of the program.
        task: Of the package.
        custom_io: Precisions by name.
        flags: Of the compiler, as the manifest has them.
        options: The same, as the compiler was called.
        shape: What the spec says of it besides.
    """
    graph = onnx.load(model, load_external_data=False).graph
    inputs, outputs = (
        {one.name: _axes(one) for one in some} for some in (graph.input, graph.output)
    )
    pairs = {name: f"{name}_RetainedState" for name in inputs if f"{name}_RetainedState" in outputs}
    note = {
        "model": str(model),
        "specializations": [
            (
                specialization["name"],
                {name: int(size) for name, size in specialization["symbols"].items()},
            )
            for specialization in specializations
        ],
        "custom_io": dict(custom_io or {}),
        "pairs": pairs,
        "options": dict(options or {}),
    }
    path = folder / "qpc" / role / "programqpc.bin"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"NO QPC\n" + json.dumps(note).encode())
    like = package_builder.program()
    entry = {
        **like,
        "role": role,
        "path": f"qpc/{role}",
        "compiled_from": {**like["compiled_from"], "flags": dict(flags or {})},
        "specializations": list(specializations),
        "inputs": [_tensor(name, inputs[name]) for name in inputs if name not in pairs],
        "outputs": [_tensor(name, outputs[name]) for name in outputs if name not in pairs.values()],
        "states": [
            {
                **_tensor(name, inputs[name], "axes"),
                "kind": "adapter" if name.startswith("lora_") else "growing",
                "layer": layer,
            }
            for layer, name in enumerate(pairs)
        ],
    }
    target = {"name": "qaic", "needs": {}}
    made = draft(target=target, task=task, programs=[entry])
    made["spec"]["shape"] |= shape or {}
    if sites := sites_of(inputs):
        slots, _, rank = inputs[sites[0].inputs[0]]
        made["spec"]["task"] = {"max_loras": int(slots) - 1, "max_lora_rank": int(rank)}
    return write_manifest(folder, made, {})


def _axes(value: onnx.ValueInfoProto) -> list[int | str]:
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


def _tensor(name: str, axes: Sequence[int | str], called: str = "shape") -> dict[str, Any]:
    return {"name": name, "dtype": "float32", called: list(axes)}
