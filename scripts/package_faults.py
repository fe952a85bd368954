#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Damage a package in many ways, and show which damage validation notices: the test of the test.

    python scripts/package_faults.py PACKAGE CHECKPOINT [--json FILE] [--only WORD]

PACKAGE is a Gemma 3 for target `ort` with integer weights; its graph is damaged in a copy, or the calls that the
runtime makes. The reference is asked once; each fault then costs one run of the package. Exits with 1 if a fault is not
noticed.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.tape import Tape

from qeff_zoo.checkpoint.opening import Checkpoint
from qeff_zoo.package import Package
from qeff_zoo.pipeline.checks import source_of
from qeff_zoo.runtime.decoder import Decoder
from qeff_zoo.validation import ladder
from qeff_zoo.validation.package_runner import try_package
from qeff_zoo.validation.reference.answers import Answers, Reference

_ATTENTION, _NORM, _PRODUCT = "GroupQueryAttention", "SimplifiedLayerNormalization", "MatMulNBits"
_BFLOAT16, _FLOAT = int(ir.DataType.BFLOAT16), int(ir.DataType.FLOAT)

#: Changes a graph in place.
Damage = Callable[[ir.Graph], None]
#: What one row of a call is given, changed: decoder, row, piece -> piece.
Change = Callable[[Decoder, int, Any], Any]


@dataclass(frozen=True, kw_only=True)
class Result:
    """Outcome of one fault.

    Args:
        fault: In words.
        noticed: Whether a check failed.
        error: Largest error of any stage, in units of the spread of its answers.
        threshold: Error that is allowed.
        stages: Those that noticed it.
    """

    fault: str
    noticed: bool
    error: float
    threshold: float
    stages: list[str]


# --- damage to graphs -----------------------------------------------------------------------------


def _find(graph: ir.Graph, kind: str, weight: str) -> ir.Node:
    """Return the node of a kind that reads a weight."""
    for node in graph:
        if node.op_type == kind and any(one and weight in str(one.name) for one in node.inputs[1:]):
            return node
    raise LookupError(f"No {kind} reads {weight!r}.")


def _insert(
    graph: ir.Graph,
    value: ir.Value,
    make: Callable[[Tape, ir.Value], ir.Value],
    only: ir.Node | None = None,
) -> None:
    """Put what `make` computes of a value in its place, for all its readers or for one."""
    readers = [(node, place) for node, place in value.uses() if only is None or node is only]
    tape = Tape()
    made = make(tape, value)
    graph.extend(tape.nodes)
    for node, place in readers:
        node.replace_input_with(place, made)
    if only is None and value in graph.outputs:
        made.name, value.name = value.name, f"{value.name}.right"
        made.type, made.shape = value.type, value.shape
        graph.outputs[graph.outputs.index(value)] = made
    graph.sort()


def _constant(tape: Tape, value: Any) -> ir.Value:
    return tape.op("Constant", [], {"value": ir.tensor(np.asarray(value))})


def _times(value: Any) -> Callable[[Tape, ir.Value], ir.Value]:
    return lambda tape, x: tape.op("Mul", [x, _constant(tape, np.float32(value))])


def _taken(order: Any) -> Callable[[Tape, ir.Value], ir.Value]:
    return lambda tape, x: tape.op(
        "Gather", [x, _constant(tape, np.asarray(order, np.int64))], {"axis": -1}
    )


def _narrow(tape: Tape, x: ir.Value) -> ir.Value:
    return tape.op("Cast", [tape.op("Cast", [x], {"to": _BFLOAT16})], {"to": _FLOAT})


def behind(weight: str, make: Callable[[Tape, ir.Value], ir.Value], kind: str = _PRODUCT) -> Damage:
    """Change the result of the node that reads a weight."""
    return lambda graph: _insert(graph, _find(graph, kind, weight).outputs[0], make)


def ahead(weight: str, make: Callable[[Tape, ir.Value], ir.Value]) -> Damage:
    """Change the left side of one product."""

    def damage(graph: ir.Graph) -> None:
        node = _find(graph, _PRODUCT, weight)
        assert node.inputs[0] is not None
        _insert(graph, node.inputs[0], make, only=node)

    return damage


def attribute(
    kind: str, name: str, change: Callable[[Any], Any], layer: int | None = None
) -> Damage:
    """Change an attribute of all nodes of a kind, or of the one of a layer."""

    def damage(graph: ir.Graph) -> None:
        found = [node for node in graph if node.op_type == kind and name in node.attributes]
        assert found, name
        for node in found if layer is None else [found[layer]]:
            old = node.attributes[name]
            make = ir.AttrFloat32 if old.type == ir.AttributeType.FLOAT else ir.AttrInt64
            node.attributes[name] = make(name, change(old.value))

    return damage


def weight_of(name: str, change: Callable[[Any], Any], every: bool = False) -> Damage:
    """Change an initializer, or all whose names end so."""

    def damage(graph: ir.Graph) -> None:
        names = [one for one in graph.initializers if one.endswith(name)]
        assert names, name
        for one in names if every else names[:1]:
            value = graph.initializers[one]
            assert value.const_value is not None
            array = _array(value.const_value)
            changed = change(array).astype(array.dtype)
            value.const_value = ir.tensor(changed, name=one)

    return damage


def _array(tensor: Any) -> Any:
    """Return a tensor's values, also from a file with several names, which onnx_ir does not read."""
    if not isinstance(tensor, ir.ExternalTensor):
        return np.array(tensor.numpy())
    found = np.fromfile(
        tensor.path, tensor.dtype.numpy(), count=tensor.size, offset=tensor.offset or 0
    )
    return found.reshape(tensor.shape.numpy())


def _scales(place: Any, times: float) -> Callable[[Any], Any]:
    def change(array: Any) -> Any:
        array[place] *= times
        return array

    return change


def activation(make: Callable[[Tape, ir.Value], ir.Value], layers: list[int]) -> Damage:
    """Compute the activation of a gate otherwise."""

    def damage(graph: ir.Graph) -> None:
        for layer in layers:
            gate = _find(graph, _PRODUCT, f"layers.{layer}.mlp.gate_proj").outputs[0]
            up = _find(graph, _PRODUCT, f"layers.{layer}.mlp.up_proj").outputs[0]
            ((mixed, place),) = up.uses()
            tape = Tape()
            made = make(tape, gate)
            graph.extend(tape.nodes)
            mixed.replace_input_with(1 - place, made)
            graph.sort()

    return damage


def both(*damages: Damage) -> Damage:
    """Do several things to one graph."""

    def damage(graph: ir.Graph) -> None:
        for one in damages:
            one(graph)

    return damage


def exchanged(first: str, second: str) -> Damage:
    """Exchange the results of two products."""

    def damage(graph: ir.Graph) -> None:
        one, other = (_find(graph, _PRODUCT, name).outputs[0] for name in (first, second))
        uses = [(one, [*other.uses()]), (other, [*one.uses()])]
        for value, places in uses:
            for node, place in places:
                node.replace_input_with(place, value)
        graph.sort()

    return damage


def _turning(graph: ir.Graph, layer: int) -> list[tuple[ir.Node, range]]:
    """Return the nodes that turn the heads of a layer, and the places of their angles among the inputs."""
    apart = [node for node in graph if node.op_type == "RotaryEmbedding"]
    if apart:
        return [(node, range(1, len(node.inputs))) for node in apart[2 * layer : 2 * layer + 2]]
    fused = [node for node in graph if node.op_type == "GroupQueryAttention"]
    return [(fused[layer], range(7, 9))]


def exchanged_angles(layer: int, other: int) -> Damage:
    """Give the rotary embeddings of one layer the angles of another's."""

    def damage(graph: ir.Graph) -> None:
        pairs = zip(_turning(graph, layer), _turning(graph, other), strict=True)
        for (node, places), (right, _) in pairs:
            for place in places:
                node.replace_input_with(place, right.inputs[place])

    return damage


def theta(frequencies: str, layer: int, times: float) -> Damage:
    """Take a base so many times as large, for all layers that turn as one does."""

    def damage(graph: ir.Graph) -> None:
        if any(name.endswith(frequencies) for name in graph.initializers):
            weight_of(frequencies, _angles(times))(graph)
            return
        ((node, places),) = _turning(graph, layer)
        tables = [node.inputs[place] for place in places]
        cosines, sines = (_array(table.const_value) for table in tables if table)
        inverse = _angles(times)(np.arctan2(sines[1], cosines[1]))  # what position 1 is turned by
        angles = np.arange(len(sines))[:, None] * inverse
        for table, values in zip(tables, (np.cos(angles), np.sin(angles)), strict=True):
            assert table
            table.const_value = ir.tensor(values.astype(sines.dtype), name=table.name)

    return damage


def _angles(times: float) -> Callable[[Any], Any]:
    """Return inverse frequencies of a base that is so many times as large."""

    def change(array: Any) -> Any:
        return array / times ** (np.arange(array.size) / array.size).reshape(array.shape)

    return change


def _erf_gelu(tape: Tape, x: ir.Value) -> ir.Value:
    erf = tape.op("Erf", [_times(2**-0.5)(tape, x)])
    return _times(0.5)(
        tape, tape.op("Mul", [x, tape.op("Add", [erf, _constant(tape, np.float32(1))])])
    )


def _silu(tape: Tape, x: ir.Value) -> ir.Value:
    return tape.op("Mul", [x, tape.op("Sigmoid", [x])])


def _capped(tape: Tape, x: ir.Value) -> ir.Value:
    return _times(30)(tape, tape.op("Tanh", [_times(1 / 30)(tape, x)]))


def graph_faults(config: Mapping[str, Any]) -> dict[str, Damage]:
    """Return damage to the graph of a Gemma 3, by its words.

    Args:
        config: Of its text model.
    """
    count, heads = config["num_hidden_layers"], config["num_attention_heads"]
    size, vocab = config["head_dim"], config["vocab_size"]
    kinds = config["layer_types"]
    window, full = kinds.index("sliding_attention"), kinds.index("full_attention")
    layers, middle = [*range(count)], count // 2
    at = {layer: f"layers.{layer}." for layer in (0, middle, count - 1)}
    mid = at[middle]
    columns = np.ones(config["intermediate_size"], np.float32)
    columns[:32] = 2
    hidden = np.ones(config["hidden_size"], np.float32)
    hidden[:32] = 1.1
    swapped = np.arange(heads * size).reshape(heads, size)[[heads - 1, *range(1, heads - 1), 0]]
    keys = np.arange(config["num_key_value_heads"] * size)
    pairs = np.arange(size).reshape(2, -1).T.reshape(-1)
    turned = np.r_[np.arange(vocab - 8), np.roll(np.arange(vocab - 8, vocab), 1)]
    other_scale = size**-0.5
    if np.isclose(other_scale, config["query_pre_attn_scalar"] ** -0.5):
        other_scale *= (256 / 160) ** 0.5
    return {
        "gelu for its tanh form, one layer": activation(_erf_gelu, [middle]),
        "gelu for its tanh form": activation(_erf_gelu, layers),
        "silu for gelu, one layer": activation(_silu, [middle]),
        "gate and up exchanged, one layer": exchanged(f"{mid}mlp.gate_proj", f"{mid}mlp.up_proj"),
        "output of an attention in bfloat16": behind(f"{mid}self_attn.o_proj", _narrow),
        "keys of one layer in bfloat16": behind(f"{mid}self_attn.k_proj", _narrow),
        "one block of weights x2": weight_of(
            f"{mid}mlp.down_proj.weight.scales", _scales((0, 0), 2)
        ),
        "one row of the gate x2": weight_of(f"{mid}mlp.gate_proj.weight.scales", _scales(0, 2)),
        "one row of up x2": weight_of(f"{mid}mlp.up_proj.weight.scales", _scales(1, 2)),
        "one row of values x2": weight_of(f"{mid}self_attn.v_proj.weight.scales", _scales(0, 2)),
        "a block of columns of down x2": weight_of(
            f"{mid}mlp.down_proj.weight.scales", _scales((slice(None), 0), 2)
        ),
        "scales of one matrix +1 %": weight_of(
            f"{mid}mlp.gate_proj.weight.scales", _scales(..., 1.01)
        ),
        "32 columns of down x2": ahead(f"{mid}mlp.down_proj", _times(columns)),
        "32 columns of queries x1.1": ahead(f"{mid}self_attn.q_proj", _times(hidden)),
        "norm of keys +1 %, one layer": behind(f"{mid}self_attn.k_norm", _times(1.01), _NORM),
        "norm of queries without weight, one layer": weight_of(
            f"{mid}self_attn.q_norm.weight", np.ones_like
        ),
        "one weight of a norm +1 %": weight_of(
            f"{mid}input_layernorm.weight",
            lambda array: array * np.r_[1.01, np.ones(array.size - 1)],
        ),
        "norm without the 1 added, one layer": weight_of(
            f"{mid}input_layernorm.weight", lambda array: array - 1
        ),
        "eps x100 in all norms": attribute(_NORM, "epsilon", lambda one: 100 * one),
        "attention scale +1 %, one layer": attribute(
            _ATTENTION, "scale", lambda one: one * 1.01, middle
        ),
        "another attention scale, one layer": attribute(
            _ATTENTION, "scale", lambda _: other_scale, middle
        ),
        "another attention scale": attribute(_ATTENTION, "scale", lambda _: other_scale),
        "attention scores capped at 50": attribute(_ATTENTION, "softcap", lambda _: 50.0),
        "logits capped at 30": behind("lm_head", _capped),
        "window of one token less": attribute(
            _ATTENTION, "local_window_size", lambda one: one - 1 if one > 0 else one
        ),
        "embedding scale 0.2 % off": weight_of("embed_scale", lambda array: array * 25.25 / 25.30),
        "embedding scale dropped": weight_of("embed_scale", np.ones_like),
        "last rows of the head moved by one": behind("lm_head", _taken(turned)),
        "theta x2, sliding layers": theta("sliding_attention_inv_freq", window, 2),
        "theta x2, full layers": theta("full_attention_inv_freq", full, 2),
        "theta +1 %, sliding layers": theta("sliding_attention_inv_freq", window, 1.01),
        "theta +1 %, full layers": theta("full_attention_inv_freq", full, 1.01),
        "angles of a full layer for a sliding one": exchanged_angles(window, full),
        "angles of a sliding layer for a full one": exchanged_angles(full, window),
        "rotary embedding interleaved, one layer": both(
            *(behind(f"{mid}self_attn.{one}_norm", _taken(pairs), _NORM) for one in "qk")
        ),
        **{
            f"two heads swapped, layer {layer}": ahead(
                f"{name}self_attn.o_proj", _taken(swapped.reshape(-1))
            )
            for layer, name in at.items()
        },
        "halves of the key heads exchanged, one layer": behind(
            f"{mid}self_attn.k_proj", _taken(np.roll(keys, keys.size // 2))
        ),
        "an attention skipped": behind(f"{mid}self_attn.o_proj", _times(0)),
        "an MLP skipped": behind(f"{mid}mlp.down_proj", _times(0)),
    }


# --- damage to calls ------------------------------------------------------------------------------


def _later(when: Callable[[Any], bool], by: int = 1) -> Change:
    def change(decoder: Decoder, row: int, piece: Any) -> Any:
        fits = piece.start + len(piece.tokens) + by <= decoder.sizes.ctx_len
        return replace(piece, start=piece.start + by) if when(piece) and fits else piece

    return change


def _overwritten(layers: int | None) -> Change:
    def change(decoder: Decoder, row: int, piece: Any) -> Any:
        names = [name for name in decoder.states if name.startswith("past_key")]
        for name in names[:layers]:
            if piece.start > 4:
                decoder.states[name][row, :, 3] = decoder.states[name][row, :, 2]
        return piece

    return change


def _other_first_token(decoder: Decoder, row: int, piece: Any) -> Any:
    if piece.start or len(piece.tokens) == 1:
        return piece
    return replace(piece, tokens=[piece.tokens[1], *piece.tokens[1:]])


CALL_FAULTS: Mapping[str, Change] = {
    "position +1 while decoding": _later(lambda one: one.start > 0 and len(one.tokens) == 1),
    "three rows of padding seen while decoding": _later(
        lambda one: one.start > 0 and len(one.tokens) == 1, by=3
    ),
    "position +1 from the second chunk on": _later(
        lambda one: one.start > 0 and len(one.tokens) > 1
    ),
    "a row of keys overwritten, one layer": _overwritten(1),
    "a row of keys overwritten, all layers": _overwritten(None),
    "another first token": _other_first_token,
}


@contextmanager
def changed_calls(change: Change) -> Iterator[None]:
    """Change what calls are given for a while."""
    right = Decoder._call

    def call(self: Decoder, pieces: Mapping[int, Any], rows: Any, *more: Any) -> Any:
        changed = {
            row: change(self, row, one) if row in rows else one for row, one in pieces.items()
        }
        return right(self, changed, rows, *more)

    Decoder._call = call  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Decoder._call = right  # type: ignore[method-assign]


# --- trying them ----------------------------------------------------------------------------------


def damaged(package: Package, damage: Damage, folder: Path) -> Package:
    """Return a package with a damaged graph, whose other files are links to those of the right one."""
    (program,) = package.programs
    shutil.copytree(package.path, folder, copy_function=os.link)
    path = folder / program.path
    model = ir.load(path)
    path.unlink()
    damage(model.graph)
    ir.save(model, path)
    return Package(folder, package.manifest)


def results(
    package: Package, checkpoint: Checkpoint | Path, only: str = "", threads: int = 1
) -> Iterator[Result]:
    """Try every fault; yield what came of it, first of no fault at all."""
    config = json.loads((package.path / "config.json").read_bytes())
    config = config.get("text_config", config)

    def silent(_: int) -> None:
        pass

    with Reference(threads) as process:
        trial = try_package(package, threads, silent, ladder.unrounded(package))
        reference = ladder.run_reference(process, package, checkpoint, trial, progress=silent)
    yield _result("nothing", package, reference, trial)
    for name, damage in graph_faults(config).items():
        if only in name:
            with tempfile.TemporaryDirectory(dir=package.path.parent) as folder:
                wrong = damaged(package, damage, Path(folder) / "package")
                tried = try_package(wrong, threads, silent, ladder.unrounded(wrong))
                yield _result(name, wrong, reference, tried)
    for name, change in CALL_FAULTS.items():
        if only in name:
            with changed_calls(change):
                tried = try_package(package, threads, silent, ladder.unrounded(package))
            yield _result(name, package, reference, tried)


def _result(fault: str, package: Package, reference: Answers, trial: Any) -> Result:
    record = ladder.judge(package, trial, reference, level="tiny")
    errors = [check for check in record.checks if check["metric"] == "max_relative_error"]
    return Result(
        fault=fault,
        noticed=not record.passed,
        error=max(np.inf if one["value"] is None else one["value"] for one in errors),
        threshold=errors[0]["threshold"],
        stages=[one["stage"] for one in errors if not one["passed"]],
    )


def main(arguments: list[str]) -> int:
    """Try the faults that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", type=Path)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--only", default="", metavar="WORD", help="faults with this word alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    given = parser.parse_args(arguments)
    found = []
    package = Package.open(given.package)
    for one in results(package, source_of(package, str(given.checkpoint)), given.only):
        found.append(one)
        times = one.error / one.threshold
        print(
            f"{one.fault:46} {'noticed' if one.noticed else '-':8} {times:10.4g} times what is allowed"
        )
    if given.json:
        given.json.write_text(json.dumps([vars(one) for one in found], indent=1) + "\n")
    return int(found[0].noticed or not all(one.noticed for one in found[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
