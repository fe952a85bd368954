# SPDX-License-Identifier: Apache-2.0
"""Quantized checkpoints are decoded as the official decoders do, row by row, under the float model's names."""

import hashlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fuzzing import example_count
from hypothesis import given, settings
from hypothesis import strategies as st
from quantized import GENUINE, GOLDENS, MATRIX, Array, bfloat16, pack, spread, stored
from safetensors.numpy import load_file

from qeff_zoo.checkpoint import formats
from qeff_zoo.checkpoint.encoded import Encodings
from qeff_zoo.checkpoint.expressions import rows
from qeff_zoo.checkpoint.opening import open_checkpoint

CASES = settings(max_examples=example_count(60))
ROWS = load_file(GENUINE / "rows.safetensors")
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


@pytest.mark.parametrize("name", GOLDENS)
def test_values_are_those_of_the_official_decoder(name: str) -> None:
    checkpoint = open_checkpoint(str(GENUINE / name))
    golden = GOLDENS[name]
    assert sorted(checkpoint.logical) == sorted({MATRIX, *golden["sha256"]} & {*checkpoint.logical})
    for tensor, digest in golden["sha256"].items():
        expression = checkpoint.values.get(tensor, tensor)
        values = rows(expression, checkpoint.read, checkpoint.tensors)
        assert values.shape == checkpoint.logical[tensor].shape
        if name in ROWS:  # their last bit depends on the order of products
            np.testing.assert_allclose(
                values[::8], ROWS[name], rtol=0, atol=2e-7 * abs(values).max()
            )
        else:
            rounded = (
                values.astype(ml_dtypes.bfloat16).astype(np.float32)
                if golden["dtype"] == "bfloat16"
                else values
            )
            bits = np.ascontiguousarray(rounded) + np.float32(0)  # -0.0 is 0.0
            assert hashlib.sha256(bits.tobytes()).hexdigest() == digest


@pytest.mark.parametrize("name", GOLDENS)
def test_rows_are_those_of_the_whole(name: str) -> None:
    checkpoint = open_checkpoint(str(GENUINE / name))
    for tensor, encoded in checkpoint.encoded.items():
        whole, length = checkpoint.read(tensor), encoded.shape[0]
        assert whole.dtype == np.float32
        assert whole.shape == encoded.shape == checkpoint.tensors[tensor].shape
        for start, stop in [(0, 1), (length // 3, length - 1), (length - 1, length), (2, 2)]:
            assert np.array_equal(checkpoint.read(tensor, start, stop), whole[start:stop])


ABOUT = {
    "ar-auto-4": "int4 in groups of 128, zero points",
    "ar-mxfp4": "mxfp4",
    "bitnet": "int2, per-channel, zero points",
    "bnb-fp4": "fp4 in blocks of 64",
    "bnb-int8": "int8, per-channel",
    "bnb-nf4-double": "nf4 in blocks of 64, nested scales",
    "ct-fp8-block": "fp8 in blocks of 128 by 128",
    "ct-fp8-dynamic": "fp8, per-channel",
    "ct-nvfp4a16": "nvfp4",
    "ct-w8a16": "int8 in groups of 128",
    "gpt-oss-mxfp4": "mxfp4",
    "gptq-4-g128-act": "int4 in groups of 128, zero points, act-order",
    "hqq-3": "int3 in groups of 64, offsets",
    "mlx-4": "int4 in groups of 64, offsets",
    "mlx-mxfp8": "mxfp8",
    "torchao-intx4": "int4, per-channel, zero points",
}


@pytest.mark.parametrize(("name", "about"), ABOUT.items(), ids=ABOUT)
def test_a_tensor_has_a_description(name: str, about: str) -> None:
    encoded = open_checkpoint(str(GENUINE / name)).encoded
    assert {value.about for value in encoded.values()} == {about}


def decoded(
    data: st.DataObject,
    config: Mapping[str, Any],
    tensors: Mapping[str, Array],
    expected: Array,
    metadata: Mapping[str, str] | None = None,
    name: str = "m.weight",
) -> Encodings:
    """Decode a tensor, whole and in part; both must be what is expected, bit for bit."""
    with tempfile.TemporaryDirectory() as folder:
        source = stored(Path(folder), config, tensors, metadata)
        found = formats.find(source)
        encoded = found.encoded[name]
        length = encoded.shape[0]
        assert encoded.shape == expected.shape
        assert expected.dtype == np.float32
        assert np.array_equal(encoded.values(source.read, 0, length), expected)
        start = data.draw(st.integers(0, length))
        stop = data.draw(st.integers(start, length))
        assert np.array_equal(encoded.values(source.read, start, stop), expected[start:stop])
        assert {*encoded.sources} | found.beside == {*tensors}
        return found


def random(data: st.DataObject) -> np.random.Generator:
    return np.random.default_rng(data.draw(st.integers(0, 1 << 32)))


def scales(generator: np.random.Generator, *shape: int) -> Array:
    return generator.standard_normal(shape).astype(np.float16)


def integers_times_scales(integers: Array, zeros: Array | float, scale: Array, group: int) -> Array:
    """Decode in the plainest way: `(integer - zero) * scale`, element by element."""
    over = [
        spread(np.asarray(one, np.float32), integers.shape, 1, group) if np.ndim(one) else one
        for one in (zeros, scale)
    ]
    values: Array = (integers.astype(np.float32) - np.float32(over[0]) * np.float32(1)) * over[1]
    return values.astype(np.float32)


@CASES
@given(st.data())
def test_gptq(data: st.DataObject) -> None:
    generator = random(data)
    bits = data.draw(st.sampled_from([2, 3, 4, 8]))
    height, columns = (32 * data.draw(st.integers(1, 3)) for _ in range(2))
    group = data.draw(st.sampled_from([-1, 8, 24, 32, 64]))
    size = columns if group == -1 else min(group, columns)
    groups = -(-columns // size)
    version = data.draw(st.sampled_from(["gptq", "gptq_v2"]))
    integers = generator.integers(0, 1 << bits, (height, columns))
    zeros = generator.integers(0, 1 << bits, (height, groups))
    scale = scales(generator, height, groups)
    index = np.arange(columns) // size
    if data.draw(st.booleans()):
        generator.shuffle(index)
    words = pack(zeros.T, bits).view(np.uint32)
    if version == "gptq":  # the whole word, as GPTQModel does; of 3 bits, field by field
        less = sum(1 << place for place in range(0, 32, bits))
        words = pack((zeros.T - 1) % 8, 3) if bits == 3 else words - np.uint32(less)
    tensors = {
        "m.qweight": pack(integers.T.swapaxes(0, 1), bits).T,
        "m.qzeros": words.view(np.int32),
        "m.scales": scale.T,
        "m.g_idx": index.astype(np.int32),
    }
    expected = (integers - zeros[:, index]).astype(np.float32) * scale.astype(np.float32)[:, index]
    config = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "checkpoint_format": version,
    }
    found = decoded(data, config, tensors, expected)
    sorted_already = np.array_equal(index, np.arange(columns) // size)
    assert (found.encoded["m.weight"].integers.order is None) == sorted_already  # type: ignore[union-attr]


@CASES
@given(st.data())
def test_awq(data: st.DataObject) -> None:
    generator = random(data)
    height, columns = 8 * data.draw(st.integers(1, 6)), data.draw(st.integers(1, 70))
    group = data.draw(st.sampled_from([-1, 8, 32, 128]))
    size = columns if group == -1 else min(group, columns)
    groups = -(-columns // size)
    integers = generator.integers(0, 16, (height, columns))
    zeros = generator.integers(0, 16, (height, groups))
    scale = scales(generator, height, groups)

    def words(fields: Array) -> Array:  # AutoAWQ: of eight outputs, these are in the places 0 to 7
        by_word = fields.T.reshape(fields.shape[1], -1, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]]
        return pack(by_word.reshape(fields.shape[1], -1), 4)

    tensors = {
        "m.qweight": words(integers),
        "m.qzeros": words(zeros),
        "m.scales": bfloat16(scale.T),
    }
    rounded = bfloat16(scale).astype(np.float32)
    expected = integers_times_scales(integers, zeros, rounded, size)
    layout = data.draw(st.sampled_from(["awq", "auto-round"]))
    config = {
        "quant_method": layout,
        "packing_format": "auto_round:auto_awq",
        "bits": 4,
        "group_size": group,
    }
    decoded(data, config, tensors, expected)


@pytest.mark.parametrize(
    ("layout", "version"), [("auto_gptq", 1), ("gptq", 1), ("gptqmodel", 2), ("exllamav2", 2)]
)
@given(st.data())
@settings(max_examples=5)
def test_auto_round_has_zero_points_of_either_version_of_gptq(
    layout: str, version: int, data: st.DataObject
) -> None:
    generator = random(data)
    integers, zeros = generator.integers(0, 16, (32, 64)), generator.integers(1, 16, (32, 2))
    scale = scales(generator, 32, 2)
    tensors = {
        "m.qweight": pack(integers, 4).T,
        "m.qzeros": pack(zeros.T - (version == 1), 4),
        "m.scales": scale.T,
    }
    config = {
        "quant_method": "auto-round",
        "packing_format": f"auto_round:{layout}",
        "bits": 4,
        "group_size": 32,
    }
    decoded(
        data, config, tensors, integers_times_scales(integers, zeros, scale.astype(np.float32), 32)
    )


@CASES
@given(st.data())
def test_modules_may_have_bits_and_groups_of_their_own(data: st.DataObject) -> None:
    generator = random(data)
    bits, group = data.draw(st.sampled_from([(4, 32), (8, 32), (2, 64), (4, 64)]))
    integers = generator.integers(0, 1 << bits, (32, 128))
    zeros = generator.integers(0, 1 << bits, (32, 128 // group))
    scale = scales(generator, 32, 128 // group)
    tensors = {
        "m.qweight": pack(integers, bits).T,
        "m.qzeros": pack(zeros.T, bits),
        "m.scales": scale.T,
    }
    own = {
        "a": {"bits": 8},
        "b": {"bits": 2, "group_size": 64},
        "c": {"bits": 16},
        "d": {"group_size": 64},
    }
    key, method = data.draw(st.sampled_from([("dynamic", "gptq"), ("extra_config", "auto-round")]))
    config = {
        "quant_method": method, "bits": 4, "group_size": 32, key: own,
        "checkpoint_format": "gptq_v2", "packing_format": "auto_round:gptqmodel",
    }  # fmt: skip
    expected = integers_times_scales(integers, zeros, scale.astype(np.float32), group)
    decoded(data, config, tensors, expected)


def of_compressed(kind: str, *weights: dict[str, Any]) -> dict[str, Any]:
    groups = {
        f"group_{n}": {"targets": ["Linear"], "weights": weight} for n, weight in enumerate(weights)
    }
    return {"quant_method": "compressed-tensors", "format": kind, "config_groups": groups}


@CASES
@given(st.data())
def test_packed_integers_of_compressed_tensors(data: st.DataObject) -> None:
    generator = random(data)
    bits = data.draw(st.integers(2, 8))
    lead = data.draw(st.sampled_from([(), (3,)]))
    height, columns = data.draw(st.integers(1, 40)), data.draw(st.integers(40, 90))
    group = data.draw(st.sampled_from([None, 16, 32]))
    size = group or columns
    groups = -(-columns // size)
    shape = (*lead, height, columns)
    integers = generator.integers(0, 1 << bits, shape)
    scale = scales(generator, *lead, height, groups)
    zeros: Array | float = 1 << (bits - 1)
    tensors = {
        "m.weight_packed": pack(integers, bits),
        "m.weight_shape": np.array(shape, np.int64),
        "m.weight_scale": scale,
        "m.input_scale": np.ones(1, np.float32),
    }
    if data.draw(st.booleans()):
        zeros = generator.integers(0, 1 << bits, (*lead, height, groups))
        tensors["m.weight_zero_point"] = pack(zeros.swapaxes(-1, -2), bits).swapaxes(-1, -2)
    scheme = {"num_bits": bits, "group_size": group, "strategy": "group" if group else "channel"}
    other = {"num_bits": 12 - bits if bits != 6 else 3, "group_size": 8}
    expected = integers_times_scales(integers, zeros, scale.astype(np.float32), size)
    decoded(data, of_compressed("pack-quantized", other, scheme), tensors, expected)


@CASES
@given(st.data())
def test_columns_of_compressed_tensors_may_be_in_an_order_of_their_own(data: st.DataObject) -> None:
    generator = random(data)
    integers, scale = generator.integers(0, 16, (5, 64)), scales(generator, 5, 4)
    index = np.repeat(np.arange(4), 16)
    generator.shuffle(index)
    tensors = {
        "m.weight_packed": pack(integers, 4),
        "m.weight_shape": np.array([5, 64]),
        "m.weight_scale": scale,
        "m.weight_g_idx": index.astype(np.int32),
    }
    expected = (integers.astype(np.float32) - 8) * scale.astype(np.float32)[:, index]
    if data.draw(st.booleans()):
        tensors["m.weight_g_idx"] = np.full(64, -1, np.int32)  # there, and not used
        expected = integers_times_scales(integers, 8, scale.astype(np.float32), 16)
    decoded(
        data, of_compressed("pack-quantized", {"num_bits": 4, "group_size": 16}), tensors, expected
    )


@CASES
@given(st.data())
def test_plain_integers_of_compressed_tensors(data: st.DataObject) -> None:
    generator = random(data)
    height, columns = data.draw(st.integers(2, 9)), data.draw(st.integers(2, 20))
    integers = generator.integers(-128, 128, (height, columns)).astype(np.int8)
    shape = data.draw(st.sampled_from([(), (1,), (height,), (height, 1)]))
    scale = bfloat16(scales(generator, *shape))
    tensors = {"m.weight": integers, "m.weight_scale": scale}
    by_row = np.broadcast_to(scale.astype(np.float32).reshape(-1, 1), (height, 1))
    zeros: Array = np.zeros((height, 1), np.float32)
    if data.draw(st.booleans()):
        drawn = generator.integers(-128, 128, shape).astype(np.int8)
        tensors["m.weight_zero_point"] = np.asarray(drawn)
        zeros = np.broadcast_to(np.asarray(drawn, np.float32).reshape(-1, 1), (height, 1))
    schemes = {"num_bits": 8, "strategy": "tensor"}, {"num_bits": 8, "strategy": "channel"}
    kind = data.draw(st.sampled_from(["int-quantized", "naive-quantized"]))
    decoded(
        data,
        of_compressed(kind, *schemes),
        tensors,
        integers_times_scales(integers, zeros, by_row, columns),
    )


@CASES
@given(st.data())
def test_blocks_of_fp8_may_be_smaller_at_the_ends(data: st.DataObject) -> None:
    generator = random(data)
    kind = data.draw(st.sampled_from([ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]))
    lead = data.draw(st.sampled_from([(), (3,)]))
    shape = (*lead, *(data.draw(st.integers(1, 40)) for _ in range(2)))
    tall, wide = (data.draw(st.integers(1, 16)) for _ in range(2))
    grid = (*lead, -(-shape[-2] // tall), -(-shape[-1] // wide))
    weight, scale = (
        (generator.standard_normal(shape) * 9).astype(kind),
        generator.standard_normal(grid),
    )
    scale = scale.astype(np.float32)
    expected = weight.astype(np.float32) * spread(scale, shape, tall, wide)
    if data.draw(st.booleans()) or grid == (1, 1):
        config = of_compressed("float-quantized", {"num_bits": 8, "block_structure": [tall, wide]})
        tensors = {"m.weight": weight, "m.weight_scale": scale}
    else:
        config = {"quant_method": "fp8", "weight_block_size": [tall, wide]}
        tensors = {"m.weight": weight, "m.weight_scale_inv": scale}
    decoded(data, config, tensors, expected)


@CASES
@given(st.data())
def test_fp8_has_one_scale_for_rows_for_columns_or_for_all(data: st.DataObject) -> None:
    generator = random(data)
    lead = data.draw(st.sampled_from([(), (3,)]))
    height, columns = (data.draw(st.integers(2, 12)) for _ in range(2))
    shape = (*lead, height, columns)
    stored_as, grid = data.draw(
        st.sampled_from(
            [(one, one) for one in [(*lead, height, 1), (*lead, 1, columns), (*lead, 1, 1)]]
        )
    )
    method = data.draw(st.sampled_from(["fp8", "fbgemm_fp8"]))
    if lead and method == "fbgemm_fp8":  # as transformers turns the scales of Llama 4's experts
        stored_as, grid = (
            data.draw(st.sampled_from([(*lead, columns, 1), (*lead, 1, columns)])),
            (*lead, 1, columns),
        )
    if not lead and grid == (1, 1):
        stored_as = data.draw(st.sampled_from([(), (1,), (1, 1)]))
    weight = (generator.standard_normal(shape) * 9).astype(ml_dtypes.float8_e4m3fn)
    scale = generator.standard_normal(grid).astype(np.float32)
    name, end = data.draw(st.sampled_from([("m.weight", "_scale"), ("m.up_proj", "_scale_inv")]))
    tensors = {
        name: weight,
        name + end: scale.reshape(stored_as),
        "m.input_scale": np.ones((), np.float32),
    }
    expected = weight.astype(np.float32) * scale
    decoded(data, {"quant_method": method}, tensors, expected, name=name)


def pairs(codes: Array) -> Array:
    """Pack E2M1, the first of two in the low half."""
    return (codes[..., ::2] | codes[..., 1::2] << 4).astype(np.uint8)


@CASES
@given(st.data())
def test_e2m1(data: st.DataObject) -> None:
    generator = random(data)
    kind = data.draw(st.sampled_from(["mxfp4-pack", "nvfp4-pack", "fp8", "llm_compressor"]))
    group = 16 if kind.startswith("nv") else 32
    lead = data.draw(st.sampled_from([(), (3,)]))
    groups = data.draw(st.integers(1, 4))
    shape = (*lead, data.draw(st.integers(1, 9)), groups * group)
    codes = generator.integers(0, 16, shape)
    name = "m.weight" if kind == "fp8" else "m.weight_packed"
    tensors = {name: pairs(codes)}
    if kind.startswith("nv"):
        scale = (generator.standard_normal((*shape[:-1], groups)) * 99).astype(
            ml_dtypes.float8_e4m3fn
        )
        whole = np.array([2.5], np.float32)
        tensors |= {"m.weight_scale": scale, "m.weight_global_scale": whole}
        factor = scale.astype(np.float32) / whole
    else:
        powers = generator.integers(97, 157, (*shape[:-1], groups)).astype(np.uint8)
        tensors["m.weight_scale_inv" if kind == "fp8" else "m.weight_scale"] = powers
        factor = np.exp2(powers.astype(np.float32) - 127)
    config: dict[str, Any] = of_compressed(
        f"{kind}-quantized", {"num_bits": 4, "group_size": group}
    )
    if kind == "fp8":
        tensors[name] = tensors[name].view(np.int8)
        config = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    elif kind == "llm_compressor":
        config = {
            "quant_method": "auto-round",
            "packing_format": "auto_round:llm_compressor",
            "bits": 4,
        }
    decoded(data, config, tensors, E2M1[codes] * spread(factor, shape, 1, group))


@CASES
@given(st.data())
def test_experts_of_gpt_oss(data: st.DataObject) -> None:
    generator = random(data)
    experts, height, groups = (data.draw(st.integers(1, 5)) for _ in range(3))
    codes = generator.integers(0, 16, (experts, height, groups, 32))
    powers = generator.integers(97, 157, (experts, height, groups)).astype(np.uint8)
    tensors = {"m.up_proj_blocks": pairs(codes), "m.up_proj_scales": powers}
    values = E2M1[codes] * np.exp2(powers.astype(np.float32) - 127)[..., None]
    expected = values.reshape(experts, height, -1).astype(np.float32)
    found = decoded(data, {"quant_method": "mxfp4"}, tensors, expected, name="m.up_proj_blocks")
    assert found.values == {"m.up_proj": ["transpose", 1, 2, "m.up_proj_blocks"]}


@CASES
@given(st.data())
def test_tables_of_bitsandbytes(data: st.DataObject) -> None:
    generator = random(data)
    shape = tuple(data.draw(st.lists(st.integers(1, 30), min_size=2, max_size=3)))
    size, kind = data.draw(st.sampled_from([32, 64])), data.draw(st.sampled_from(["nf4", "fp4"]))
    count = int(np.prod(shape))
    codes, blocks = generator.integers(0, 16, count), -(-count // size)
    table = np.sort(generator.standard_normal(16).astype(np.float32))
    octets = np.pad(codes, (0, count % 2)).reshape(-1, 2)
    packed = (octets[:, 0] << 4 | octets[:, 1]).astype(np.uint8)[:, None]
    state: dict[str, Any] = {
        "quant_type": kind,
        "blocksize": size,
        "dtype": "bfloat16",
        "shape": list(shape),
    }
    tensors = {"m.weight.quant_map": table}
    largest = np.abs(generator.standard_normal(blocks).astype(np.float32))
    if data.draw(st.booleans()):
        inner, outer = (
            generator.standard_normal(256).astype(np.float32),
            data.draw(st.sampled_from([4, 256])),
        )
        index = generator.integers(0, 256, blocks).astype(np.uint8)
        of_blocks = np.abs(generator.standard_normal(-(-blocks // outer)).astype(np.float32))
        state |= {"nested_blocksize": outer, "nested_dtype": "float32", "nested_offset": 0.25}
        tensors |= {"m.weight.nested_absmax": of_blocks, "m.weight.nested_quant_map": inner}
        tensors["m.weight.absmax"] = index
        largest = inner[index] * of_blocks[np.arange(blocks) // outer] + np.float32(0.25)
    else:
        tensors["m.weight.absmax"] = largest
    output = np.frombuffer(json.dumps(state).encode(), np.uint8)
    tensors[f"m.weight.quant_state.bitsandbytes__{kind}"] = output
    even = packed.size % 2 == 0
    tensors["m.weight"] = (
        packed.reshape(-1).view(np.float16) if even and data.draw(st.booleans()) else packed
    )
    expected = (table[codes] * largest[np.arange(count) // size]).reshape(shape)
    decoded(data, {"quant_method": "bitsandbytes"}, tensors, expected)


@CASES
@given(st.data())
def test_integers_of_torchao(data: st.DataObject) -> None:
    generator = random(data)
    bits = data.draw(st.integers(2, 8))
    height, columns = data.draw(st.integers(1, 9)), 32 * data.draw(st.integers(1, 3))
    group = data.draw(st.sampled_from([16, 32, columns]))
    half = 1 << (bits - 1)
    integers = generator.integers(-half, half, (height, columns)).astype(np.int8)
    zeros = generator.integers(-half, half, (height, columns // group)).astype(np.int8)
    scale = bfloat16(scales(generator, height, columns // group))
    tensors = {"m._weight_qdata": integers, "m._weight_scale": scale, "m._weight_zero_point": zeros}
    fields: dict[str, Any] = {"block_size": [1, group]}
    kind = "Int8Tensor" if bits == 8 else "IntxUnpackedToInt8Tensor"
    if bits < 8:
        fields["target_dtype"] = {"_type": "torch.dtype", "_data": f"int{bits}"}
    content = {
        "m.weight": json.dumps({"_type": kind, "_data": fields}),
        "format": "pt",
        "tensor_names": '["m.weight"]',
    }
    expected = integers_times_scales(integers, zeros, scale.astype(np.float32), group)
    decoded(data, {"quant_method": "torchao"}, tensors, expected, metadata=content)


@CASES
@given(st.data())
def test_hqq(data: st.DataObject) -> None:
    generator = random(data)
    packing, bits, fields, word = data.draw(
        st.sampled_from(
            [("8bit_u8", 8, 1, np.uint8), ("4bit_u8", 4, 2, np.uint8), ("3bit_32", 3, 10, np.int32),
             ("2bit_u8", 2, 4, np.uint8)]
        )
    )  # fmt: skip
    height, across, group = 4 * data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3)), 8
    groups = height * across
    integers = generator.integers(0, 1 << bits, (groups, group))
    step = -(-groups // fields)
    padded = np.pad(integers, ((0, step * fields - groups), (0, 0))).reshape(fields, step, group)
    packed = sum(padded[place] << (bits * (fields - 1 - place)) for place in range(fields))
    scale, zero = (
        np.abs(scales(generator, groups, 1)),
        scales(generator, groups, 1) + (1 << (bits - 1)),
    )
    tensors = {
        "m.W_q": np.asarray(packed).astype(word),
        "m.scale": scale,
        "m.zero": zero.astype(np.float16),
        "m.shape": np.array([height, across * group]),
        "m.axis": np.array(1, np.int32),
        "m.packing": np.frombuffer(packing.encode(), np.uint8),
        "m.nbits": np.array(bits, np.int32),
    }
    if word is np.uint8 and data.draw(st.booleans()):
        tensors["m.W_q"] = tensors["m.W_q"].view(np.float16)  # `view_as_float`
    middle, factor = np.float32(1 << (bits - 1)), scale.astype(np.float32)
    minimum = (tensors["m.zero"].astype(np.float32) - middle) * factor
    values = (integers.astype(np.float32) - middle) * factor - minimum
    plain = (integers - tensors["m.zero"].astype(np.float64)) * scale.astype(np.float64)
    np.testing.assert_allclose(values, plain, rtol=1e-5, atol=1e-5 * abs(plain).max())
    decoded(data, {"quant_method": "hqq"}, tensors, values.reshape(height, -1).astype(np.float32))


@CASES
@given(st.data())
def test_bitnet(data: st.DataObject) -> None:
    generator = random(data)
    height, columns = 4 * data.draw(st.integers(1, 8)), data.draw(st.integers(1, 20))
    ternary = generator.integers(-1, 2, (height, columns))
    quarters = (ternary + 1).reshape(4, height // 4, columns)  # transformers' pack_weights
    packed = sum(quarters[place] << (2 * place) for place in range(4))
    scale = bfloat16(np.array([data.draw(st.floats(0.015625, 64))]))
    tensors = {"m.weight": np.asarray(packed).astype(np.uint8), "m.weight_scale": scale}
    kind = data.draw(st.sampled_from(["bitlinear", "autobitlinear"]))
    one = scale.astype(np.float32)
    factor = one if kind == "autobitlinear" else np.float32(1) / one
    expected = (ternary * factor).astype(np.float32)
    decoded(data, {"quant_method": "bitnet", "linear_class": kind}, tensors, expected)


def test_bitnet_rounds_what_is_stored_as_floats(tmp_path: Path) -> None:
    weight = bfloat16(np.random.default_rng(0).standard_normal((24, 40)))
    tensors = {
        f"{name}.weight": weight
        for name in ("m.q_proj", "m.k_proj", "lm_head", "model.embed_tokens")
    }
    config = {
        "quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online",
        "modules_to_not_convert": ["k_proj"],
    }  # fmt: skip
    source = stored(tmp_path, config, tensors)
    found = formats.find(source)
    assert [*found.encoded] == ["m.q_proj.weight"]
    values = found.encoded["m.q_proj.weight"].values(source.read, 0, 24)
    mean = np.abs(weight.astype(np.float64)).mean()
    expected = np.clip(np.rint(weight.astype(np.float64) / mean), -1, 1) * mean
    np.testing.assert_allclose(values, expected, rtol=1e-6)
    assert np.array_equal(found.encoded["m.q_proj.weight"].values(source.read, 5, 9), values[5:9])
