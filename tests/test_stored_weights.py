# SPDX-License-Identifier: Apache-2.0
"""Packages of quantized checkpoints: integers stay bit for bit where a kernel takes them, all else is told."""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from safetensors.numpy import load_file

from qeff_zoo.checkpoint.safetensors_index import TensorInfo
from qeff_zoo.errors import CheckpointError
from qeff_zoo.formats.encoded import Encoded, Integers, of_integers
from qeff_zoo.numerics import FLOAT32, Format
from qeff_zoo.weights import expressions as ex
from qeff_zoo.weights import writing
from qeff_zoo.weights.storage import Storage

Array = np.ndarray[Any, Any]


# --- integers, packed anew ------------------------------------------------------------------------
class Source:
    """Tensors of integers in memory."""

    def __init__(self, encoded: dict[str, Encoded]) -> None:
        self.encoded = encoded
        self.tensors = {
            name: TensorInfo(name, "F32", one.shape, Path("none"), 0, 0)
            for name, one in encoded.items()
        }

    def read(self, name: str, start: int | None = None, stop: int | None = None) -> Array:
        one = self.encoded[name]
        return one.values(self.read_stored, start or 0, one.shape[0] if stop is None else stop)

    def read_stored(self, name: str, start: int | None = None, stop: int | None = None) -> Array:
        raise AssertionError("the parts are in memory")

    def release(self, name: str) -> None:
        pass


def in_memory(
    random: np.random.Generator,
    shape: tuple[int, ...],
    bits: int,
    group: int,
    *,
    zeros: bool = False,
    minima: bool = False,
    ordered: bool = False,
) -> Encoded:
    groups = (*shape[:-1], -(-shape[-1] // group))

    def part(array: Array) -> Any:
        return lambda read, start, stop: array[start:stop]

    def positive() -> Any:
        return part(random.random(groups, np.float32) + np.float32(0.1))

    def drawn(*shape: int) -> Any:
        return part(random.integers(0, 1 << bits, shape, np.uint8))

    order = random.permutation(shape[-1])
    integers = Integers(
        bits=bits,
        group=group,
        integers=drawn(*shape),
        scales=positive(),
        zeros=drawn(*groups) if zeros else None,
        minima=positive() if minima else None,
        order=(lambda read: order) if ordered else None,
    )
    return of_integers(shape, ("nowhere",), integers)


def fields(octets: Array, bits: int) -> Array:
    ones = np.unpackbits(octets, axis=-1, bitorder="little")
    ones = ones.reshape(*octets.shape[:-1], -1, bits)
    found: Array = (ones << np.arange(bits, dtype=np.uint8)).sum(-1, dtype=np.uint8)
    return found


def as_the_kernel_reads(stored: dict[str, Array], columns: int, format: Format) -> Array:
    """Dequantize as MatMulNBits says, less the minima, its columns where they belong."""
    scales = stored["w.scales"]
    lead, blocks = scales.shape[:-1], scales.shape[-1]
    integers = fields(stored["w"], format.bits).astype(np.float32)
    zeros = np.full(scales.shape, 1 << (format.bits - 1), np.float32)
    if format.zero_points:
        zeros = fields(stored["w.zero_points"], format.bits)[..., :blocks].astype(np.float32)
    values = (integers - zeros[..., None]) * scales[..., None]
    assert format.minima or not values.reshape(*lead, -1)[..., columns:].any()
    if format.minima:
        values -= stored["w.minima"][..., None]
    values = values.reshape(*lead, -1)[..., :columns]
    return values[..., np.argsort(stored["w.order"])] if format.ordered else values


def written(value: ex.Expression, source: Source, format: Format) -> dict[str, Array]:
    slot = writing.Slot("w", value, format, kept=True)
    layout = writing.plan_file([slot], source.tensors)
    with tempfile.TemporaryDirectory() as folder:
        writing.write(layout, source, Path(folder, "w"))
        return load_file(Path(folder, "w"))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_kept_integers_are_those_of_the_checkpoint(data: st.DataObject) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    columns = data.draw(st.integers(1, 200) | st.sampled_from([256, 512, 1024]))
    group = min(data.draw(st.sampled_from([8, 16, 24, 32, 48, 64, 96, 128, 256, 512])), columns)
    group = columns if data.draw(st.booleans()) else group
    bits, rows = data.draw(st.integers(2, 8)), data.draw(st.integers(1, 12))
    kinds = st.fixed_dictionaries(dict.fromkeys(("zeros", "minima", "ordered"), st.booleans()))
    kind = data.draw(kinds)
    how = data.draw(
        st.sampled_from(["one", "rows", "concat", "stack", "item", "expert", "interleaved", "columns"])
    )
    lead = {"item": (3,), "expert": (3,), "interleaved": (2,)}.get(how, ())
    count = {"concat": 2, "stack": 3}.get(how, 1)
    source = Source(
        {
            name: in_memory(random, (*lead, 2 * rows, columns), bits, group, **kind)
            for name in "abc"[:count]
        }
    )
    value: ex.Expression = {
        "one": "a",
        "rows": ex.cut(0, 1, rows + 1, "a"),
        "concat": ex.concat(0, *"abc"[:count]),
        "stack": ex.stack(0, *"abc"[:count]),
        "item": ex.index(1, "a"),
        "expert": ex.cut(1, 0, rows, "a"),
        "interleaved": interleaved("a", 2, rows, columns),
        "columns": ex.cut(1, 0, max(1, columns // 2), "a"),
    }[how]

    format, kept = Storage(FLOAT32, source.encoded).of("w", value, lambda _: True)

    block = next((size for size in (256, 128, 64, 32, 16) if group % size == 0), None)
    whole = group == columns
    filled = columns % (block or 128) if whole else block and columns % block
    can = (
        (block is not None or whole)
        and not (kind["ordered"] and count > 1)
        and not (kind["minima"] and filled)
        and how != "columns"
    )
    assert kept == can
    if not kept:
        assert format == FLOAT32
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "_BLOCK", data.draw(st.sampled_from([1, 300, 1 << 18])))
        stored = written(value, source, format)
    found = as_the_kernel_reads(stored, columns, format)
    expected = ex.rows(value, source.read, source.tensors)
    if kind["minima"]:  # zero points and minima are one number
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
    else:
        assert np.array_equal(found, expected)


def interleaved(name: str, count: int, inner: int, columns: int) -> ex.Expression:
    """Interleave the rows of gates and ups, as experts have them."""
    experts = []
    for number in range(count):
        both = ex.index(number, name)
        gate, up = (ex.cut(0, start, start + inner, both) for start in (0, inner))
        experts.append(ex.reshape((2 * inner, columns), ex.stack(1, gate, up)))
    return ex.stack(0, *experts)


@pytest.mark.parametrize(
    ("bits", "columns", "group", "kind"),
    [
        (2, 96, 16, {"zeros": True}),
        (3, 96, 32, {}),
        (4, 100, 100, {"zeros": True}),
        (4, 200, 48, {}),
        (5, 64, 64, {"zeros": True}),
        (8, 256, 256, {}),
    ],
    ids=str,
)
def test_the_kernel_multiplies_by_them(
    bits: int, columns: int, group: int, kind: dict[str, bool]
) -> None:
    source = Source({"a": in_memory(np.random.default_rng(0), (24, columns), bits, group, **kind)})
    format, kept = Storage(FLOAT32, source.encoded).of("w", "a", lambda _: True)
    assert kept
    stored = written("a", source, format)
    node = helper.make_node(
        *("MatMulNBits", ["x", "w", "w.scales"]),
        ["y"],
        domain="com.microsoft",
        K=columns,
        N=24,
        bits=format.bits,
        block_size=format.block,
        accuracy_level=0,
    )
    if format.zero_points:
        node.input.append("w.zero_points")
    initializers = [
        helper.make_tensor(name, helper.np_dtype_to_tensor_dtype(one.dtype), one.shape, one.tobytes(), raw=True)
        for name, one in stored.items()
        if name in node.input
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", columns])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 24])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", [x], [y], initializers)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": np.eye(columns, dtype=np.float32)})
    assert np.array_equal(found.T, source.read("a"))
