# SPDX-License-Identifier: Apache-2.0
"""Damage to the graph of a decoder for target `ort` with integer weights."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.tape import Tape

_ATTENTION, _NORM, _PRODUCT = "GroupQueryAttention", "SimplifiedLayerNormalization", "MatMulNBits"
_BFLOAT16, _FLOAT = int(ir.DataType.BFLOAT16), int(ir.DataType.FLOAT)

#: Changes a graph in place.
Damage = Callable[[ir.Graph], None]


def _find(graph: ir.Graph, kind: str, weight: str) -> ir.Node:
    """Return the node of a kind that reads a weight."""
    for node in graph:
        if node.op_type == kind and any(
            value and weight in str(value.name) for value in node.inputs[1:]
        ):
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
    """Change the result of the node that reads a weight; of several that one product makes, its own columns."""

    def damage(graph: ir.Graph) -> None:
        node = _find(graph, kind, weight)
        names = _joined(node)
        if len(names) < 2:
            _insert(graph, node.outputs[0], make)
            return
        (at,) = (place for place, name in enumerate(names) if weight in name)
        sizes = _rows_of(graph, node, names)

        def changed(tape: Tape, x: ir.Value) -> ir.Value:
            parts = tape.op_multi_out(
                "Split",
                [x, _constant(tape, np.array(sizes, np.int64))],
                {"axis": -1},
                num_outputs=len(sizes),
            )
            made = [make(tape, part) if place == at else part for place, part in enumerate(parts)]
            return tape.op("Concat", made, {"axis": -1})

        _insert(graph, node.outputs[0], changed)

    return damage


def _joined(node: ir.Node) -> list[str]:
    """Return the names of the matrices that a product multiplies by."""
    assert node.inputs[1] is not None
    return str(node.inputs[1].name).split("+")


def _rows_of(graph: ir.Graph, node: ir.Node, names: Sequence[str]) -> list[int]:
    """Return the rows of joined matrices: queries, then as many keys as values."""
    total = node.attributes.get_int("N", 0)
    if len(names) == 2:
        return [total // 2] * 2
    heads = next(one for one in graph if one.op_type == _ATTENTION)
    queries, keys = (heads.attributes.get_int(name, 0) for name in ("num_heads", "kv_num_heads"))
    size = total // (queries + 2 * keys)
    return [size * (queries if ".q_proj" in name else keys) for name in names]


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
    """Change an initializer, or all whose names end so; in place of integer scales, their floats a super block."""

    def damage(graph: ir.Graph) -> None:
        stem, _, _ = name.partition(".weight")
        names = [
            initializer
            for end in (name.replace(".scales", ".super_scales.blocks"), name)
            for initializer in graph.initializers
            if initializer.endswith(end)
            or (
                f"{stem}.weight" in initializer.split("+")
                and initializer.endswith(end.removeprefix(f"{stem}.weight"))
            )
        ]
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
        if one is other:
            rows = np.arange(_find(graph, _PRODUCT, first).attributes.get_int("N", 0))
            _insert(graph, one, _taken(np.roll(rows, rows.size // 2)))
            return
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


def swapped_data(first: str, second: str) -> Damage:
    """Let two initializers read what the other one does."""

    def damage(graph: ir.Graph) -> None:
        pairs = [
            (name, name.replace(first, second)) for name in graph.initializers if first in name
        ]
        assert pairs, first
        for name, other in pairs:
            one, another = graph.initializers[name], graph.initializers[other]
            one.const_value, another.const_value = (
                _renamed(another.const_value, name),
                _renamed(one.const_value, other),
            )

    return damage


def _renamed(tensor: Any, name: str) -> ir.ExternalTensor:
    return ir.ExternalTensor(
        tensor.location,
        tensor.offset,
        tensor.length,
        tensor.dtype,
        shape=tensor.shape,
        name=name,
        base_dir=tensor.base_dir,
    )


# --- faults -----------------------------------------------------------------------------------------


def graph_faults(config: Mapping[str, Any], names: Collection[str]) -> dict[str, Damage]:
    """Return damage to the graph of a decoder, by its words; what the model does not have is left out.

    Args:
        config: Of its text model.
        names: Of the graph's initializers.
    """

    def has(part: str) -> bool:
        return any(part in name for name in names)

    count = config["num_hidden_layers"]
    mid = f"layers.{count // 2}."
    found = _of_products(config, mid, has) | _of_attention(config, mid, count, has)
    found |= _of_angles(config, has)
    if has("mlp.gate_proj"):
        found |= _of_mlp(config, mid, count)
    if has("mlp.experts") or has("mlp.experts.gate_up_proj"):
        found |= _of_experts(mid, has)
    kinds = config.get("layer_types") or ["sliding_attention"]
    if config.get("sliding_window") and "sliding_attention" in kinds:
        found["window of one token less"] = attribute(
            _ATTENTION, "local_window_size", lambda one: one - 1 if one > 0 else one
        )
    return found


def _of_products(
    config: Mapping[str, Any], mid: str, has: Callable[[str], bool]
) -> dict[str, Damage]:
    """Return faults of products, norms, the embedding and the head."""
    vocab = config["vocab_size"]
    hidden = np.ones(config["hidden_size"], np.float32)
    hidden[:32] = 1.1
    turned = np.r_[np.arange(vocab - 8), np.roll(np.arange(vocab - 8, vocab), 1)]
    head = "lm_head" if has("lm_head") else "embed_tokens"
    found = {
        "output of an attention in bfloat16": behind(f"{mid}self_attn.o_proj", _narrow),
        "keys of one layer in bfloat16": behind(f"{mid}self_attn.k_proj", _narrow),
        "one row of values x2": weight_of(f"{mid}self_attn.v_proj.weight.scales", _scales(0, 2)),
        "32 columns of queries x1.1": ahead(f"{mid}self_attn.q_proj", _times(hidden)),
        "one weight of a norm +1 %": weight_of(
            f"{mid}input_layernorm.weight",
            lambda array: array * np.r_[1.01, np.ones(array.size - 1)],
        ),
        "eps x100 in all norms": attribute(_NORM, "epsilon", lambda one: 100 * one),
        "logits capped at 30": behind(head, _capped),
        "last rows of the head moved by one": behind(head, _taken(turned)),
    }
    if has("self_attn.k_norm"):
        found["norm of keys +1 %, one layer"] = behind(
            f"{mid}self_attn.k_norm", _times(1.01), _NORM
        )
        found["norm of queries without weight, one layer"] = weight_of(
            f"{mid}self_attn.q_norm.weight", np.ones_like
        )
    if has("embed_scale"):
        found["norm without the 1 added, one layer"] = weight_of(
            f"{mid}input_layernorm.weight", lambda array: array - 1
        )
        found["embedding scale 0.2 % off"] = weight_of(
            "embed_scale", lambda array: array * 25.25 / 25.30
        )
        found["embedding scale dropped"] = weight_of("embed_scale", np.ones_like)
    return found


def _of_attention(
    config: Mapping[str, Any], mid: str, count: int, has: Callable[[str], bool]
) -> dict[str, Damage]:
    """Return faults of attentions."""
    heads, key_heads = config["num_attention_heads"], config["num_key_value_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    swapped = np.arange(heads * size).reshape(heads, size)[[heads - 1, *range(1, heads - 1), 0]]
    keys = np.arange(key_heads * size)
    pairs = np.arange(size).reshape(2, -1).T.reshape(-1)
    other_scale = size**-0.5
    if np.isclose(other_scale, config.get("query_pre_attn_scalar", size) ** -0.5):
        other_scale *= (256 / 160) ** 0.5
    interleaved = [
        behind(f"{mid}self_attn.{one}_norm", _taken(pairs), _NORM)
        if has("self_attn.k_norm")
        else behind(
            f"{mid}self_attn.{one}_proj",
            _taken((np.arange(number)[:, None] * size + pairs).reshape(-1)),
        )
        for one, number in (("q", heads), ("k", key_heads))
    ]
    return {
        "attention scale +1 %, one layer": attribute(
            _ATTENTION, "scale", lambda one: one * 1.01, count // 2
        ),
        "another attention scale, one layer": attribute(
            _ATTENTION, "scale", lambda _: other_scale, count // 2
        ),
        "another attention scale": attribute(_ATTENTION, "scale", lambda _: other_scale),
        "attention scores capped at 50": attribute(_ATTENTION, "softcap", lambda _: 50.0),
        "rotary embedding interleaved, one layer": both(*interleaved),
        **{
            f"two heads swapped, {where} layer": ahead(
                f"layers.{layer}.self_attn.o_proj", _taken(swapped.reshape(-1))
            )
            for where, layer in (("first", 0), ("middle", count // 2), ("last", count - 1))
        },
        "halves of the key heads exchanged, one layer": behind(
            f"{mid}self_attn.k_proj", _taken(np.roll(keys, keys.size // 2))
        ),
        "an attention skipped": behind(f"{mid}self_attn.o_proj", _times(0)),
    }


def _of_angles(config: Mapping[str, Any], has: Callable[[str], bool]) -> dict[str, Damage]:
    """Return faults of rotary embeddings, of each kind of layers."""
    kinds = config.get("layer_types") or ["full_attention"]
    found: dict[str, Damage] = {}
    for kind, words in (("sliding_attention", "sliding layers"), ("full_attention", "full layers")):
        if kind in kinds:
            name = f"{kind}_inv_freq" if has(f"{kind}_inv_freq") else "rotary_emb.inv_freq"
            for times, change in ((2, "x2"), (1.01, "+1 %")):
                found[f"theta {change}, {words}"] = theta(name, kinds.index(kind), times)
    if has("sliding_attention_inv_freq"):
        window, full = kinds.index("sliding_attention"), kinds.index("full_attention")
        found["angles of a full layer for a sliding one"] = exchanged_angles(window, full)
        found["angles of a sliding layer for a full one"] = exchanged_angles(full, window)
    return found


def _of_mlp(config: Mapping[str, Any], mid: str, count: int) -> dict[str, Damage]:
    """Return faults of an MLP."""
    columns = np.ones(config["intermediate_size"], np.float32)
    columns[:32] = 2
    activations = {
        "gelu for its tanh form": _erf_gelu,
        "silu for gelu": _silu,
    }
    if "gelu" not in str(config.get("hidden_activation") or config.get("hidden_act")):
        activations = {"gelu for silu": _erf_gelu}
    return {
        **{
            f"{words}, one layer": activation(make, [count // 2])
            for words, make in activations.items()
        },
        **{words: activation(make, [*range(count)]) for words, make in activations.items()},
        "gate and up exchanged, one layer": exchanged(f"{mid}mlp.gate_proj", f"{mid}mlp.up_proj"),
        "one block of weights x2": weight_of(
            f"{mid}mlp.down_proj.weight.scales", _scales((0, 0), 2)
        ),
        "one row of the gate x2": weight_of(f"{mid}mlp.gate_proj.weight.scales", _scales(0, 2)),
        "one row of up x2": weight_of(f"{mid}mlp.up_proj.weight.scales", _scales(1, 2)),
        "a block of columns of down x2": weight_of(
            f"{mid}mlp.down_proj.weight.scales", _scales((slice(None), 0), 2)
        ),
        "scales of one matrix +1 %": weight_of(
            f"{mid}mlp.gate_proj.weight.scales", _scales(..., 1.01)
        ),
        "32 columns of down x2": ahead(f"{mid}mlp.down_proj", _times(columns)),
        "an MLP skipped": behind(f"{mid}mlp.down_proj", _times(0)),
    }


def _of_experts(mid: str, has: Callable[[str], bool]) -> dict[str, Damage]:
    """Return faults of experts and their router."""
    experts = f"{mid}mlp.experts"
    found = {
        "one row of the router x2": weight_of(f"{mid}mlp.gate.weight.scales", _scales(0, 2)),
        "scales of a router +1 %": weight_of(f"{mid}mlp.gate.weight.scales", _scales(..., 1.01)),
    }
    if has(f"{experts}.down_proj.1."):
        found["two experts exchanged in the graph"] = both(
            *(
                swapped_data(f"{experts}.{part}_proj.0.", f"{experts}.{part}_proj.1.")
                for part in ("gate_up", "down")
            )
        )
        found["an expert skipped"] = behind(f"{experts}.down_proj.1.", _times(0))
    return found
