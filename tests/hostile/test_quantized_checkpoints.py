# SPDX-License-Identifier: Apache-2.0
"""Quantized checkpoints that are damaged, or of a variant that cannot be read, are refused, before they are decoded."""

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fuzzing import ODD, allocating, example_count
from quantized import GENUINE, MATRIX, Array, pack, stored

from qeff_zoo.checkpoint import formats
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.errors import CheckpointError, UnsupportedModelError, ZooError

CHANGES = example_count(200)
PATH = MATRIX.removesuffix(".weight")


def read_all(folder: Path) -> None:
    checkpoint = open_checkpoint(str(folder))
    assert checkpoint.logical
    for name, encoded in checkpoint.encoded.items():
        for start in range(0, encoded.shape[0], 61):
            part = checkpoint.read(name, start, min(start + 61, encoded.shape[0]))
            assert part.shape[1:] == encoded.shape[1:]


def parse(raw: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def changed(
    chance: random.Random, header: dict[str, Any], data: bytes, config: Any
) -> tuple[bytes, bytes]:
    """Change one to three things: an entry of a tensor, some bytes, the metadata, or the configuration."""
    octets = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        name = chance.choice([name for name in header if name != "__metadata__"])
        entry = header[name]
        first, last = entry["data_offsets"]
        match chance.randrange(9):
            case 0:
                entry["shape"] = entry["shape"][::-1]
            case 1:  # as many bytes, another shape
                count = int(np.prod(entry["shape"]))
                factor = chance.choice([n for n in (1, 2, 3, 4, 8, 32, count) if count % n == 0])
                entry["shape"] = [factor, count // factor]
            case 2:  # as many bytes, another type
                kinds = {
                    1: ["U8", "I8", "F8_E4M3", "BOOL", "F8_E8M0"],
                    2: ["F16", "BF16", "I16"],
                    4: ["F32", "I32"],
                }
                each = (last - first) // max(1, int(np.prod(entry["shape"])))
                entry["dtype"] = chance.choice(kinds.get(each, ["I64", "F64"]))
            case 3:
                header[chance.choice([name + "x", "m." + name, MATRIX, f"{PATH}.scales"])] = (
                    header.pop(name)
                )
            case 4 | 5 if last > first:
                start = chance.randrange(first, last)
                stop = min(last, start + chance.choice([1, 2, 4, 64, 1 << 20]))
                octets[start:stop] = chance.choice([b"\xff", b"\x00", b"\x7f", b"\x80"]) * (
                    stop - start
                )
            case 6 if last > first:
                octets[first:last] = chance.randbytes(last - first)
            case 7 if header.get("__metadata__"):
                key = chance.choice([*header["__metadata__"]])
                text = json.dumps(chance.choice(ODD[:20])) + chance.choice(["", "}", "\x00"])
                header["__metadata__"][key] = chance.choice([text, "{}", '{"_type": "Int8Tensor"}'])
            case _:
                place: Any = config["quantization_config"]
                while isinstance(place, dict) and place and chance.random() < 0.8:
                    key = chance.choice([*place])
                    if not isinstance(place[key], dict) or chance.random() < 0.2:
                        sizes = [1, 2, 3, 4, 8, 16, 2**40, [1, 2], [2**40, 0], "int8"]
                        place[key] = copy.deepcopy(chance.choice([*ODD, *sizes]))
                        break
                    place = place[key]
    output = json.dumps(header).encode()
    return len(output).to_bytes(8, "little") + output + bytes(octets), json.dumps(config).encode()


@pytest.mark.parametrize(
    "name",
    ["ar-auto-4", "ar-awq-4", "awq-g128", "bitnet", "bnb-int8", "bnb-nf4-double", "ct-fp8-block", "ct-nvfp4a16",
     "ct-w4a16-asym", "ct-w8a8-int", "fp8-block", "gpt-oss-mxfp4", "gptq-3-g64", "gptq-4-g128-act",
     "hqq-3", "torchao-intx4"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*all its weights are floats")  # where its types were damaged
def test_damaged_checkpoints_are_read_or_refused(name: str, tmp_path: Path) -> None:
    chance = random.Random(name)
    raw, config = (
        (GENUINE / name / "model.safetensors").read_bytes(),
        (GENUINE / name / "config.json").read_text(),
    )
    refused = 0
    # Values of 8 bits or fewer become float32, in steps; a little is for what errors and configurations hold.
    most = 32 * len(raw) + (2 << 20)
    for number in range(CHANGES):
        folder = tmp_path / str(number)
        folder.mkdir()
        weights, output = changed(chance, *parse(raw), json.loads(config))
        (folder / "model.safetensors").write_bytes(weights)
        (folder / "config.json").write_bytes(output)
        try:
            with allocating(most):
                read_all(folder)
        except ZooError:
            refused += 1
        (folder / "model.safetensors").unlink()
    assert CHANGES // 5 < refused < CHANGES


VARIANTS = {
    "gptq-marlin": (
        {"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"},
        "GPTQ in the format 'marlin'",
    ),
    "gptq-p": (
        {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_p"},
        "GPTQ in the format 'gptq_p'",
    ),
    "gptq-bits": ({"quant_method": "gptq", "bits": 5}, "GPTQ of 5 bits"),
    "gptq-bits-of-text": ({"quant_method": "gptq", "bits": "4"}, "GPTQ of 4 bits"),
    "gptq-dynamic": (
        {"quant_method": "gptq", "bits": 4, "dynamic": {"+:x": {"bits": 6}}},
        "GPTQ of 6 bits",
    ),
    "awq-gemv": ({"quant_method": "awq", "version": "gemv"}, "AWQ of version 'gemv'"),
    "awq-bits": ({"quant_method": "awq", "w_bit": 3}, "AWQ of 3 bits"),
    "auto-round": (
        {"quant_method": "auto-round", "packing_format": "auto_round:mlx"},
        "in the layout 'mlx'",
    ),
    "auto-round-rotated": (
        {"quant_method": "auto-round", "rotation_config": {"a": 1}},
        "rotations",
    ),
    "marlin-24": (
        {"quant_method": "compressed-tensors", "format": "marlin-24"},
        "format 'marlin-24'",
    ),
    "of-a-group": (
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"a": {"format": "mxfp6-pack-quantized"}},
        },
        "format 'mxfp6-pack-quantized'",
    ),
    "sparse": (
        {"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}},
        "sparse format 'sparse-24-bitmask'",
    ),
    "rotated": (
        {"quant_method": "compressed-tensors", "transform_config": {"config_groups": {"R1": {}}}},
        "rotations",
    ),
    "fp8-blocks": (
        {"quant_method": "fp8", "weight_block_size": [128]},
        r"FP8 in blocks of \[128\]",
    ),
    "bitnet-norms": ({"quant_method": "bitnet", "use_rms_norm": True}, "norms before its products"),
    "bitnet-class": (
        {"quant_method": "bitnet", "linear_class": "linear"},
        "BitNet of the class 'linear'",
    ),
    **{
        method: ({"quant_method": method}, f"quantized with '{method}'")
        for method in ("aqlm", "vptq", "spqr", "higgs", "quark", "exl3", "")
    },
}


@pytest.mark.parametrize(("config", "message"), VARIANTS.values(), ids=VARIANTS)
def test_a_variant_is_refused_by_its_configuration(
    config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    source = stored(tmp_path, config, {"m.weight": np.zeros((1, 1), np.float32)})
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        formats.find(source)
    assert str(caught.value).startswith("'tiny' is ")
    assert ". Use " in str(caught.value)


def gptq(**changes: Any) -> tuple[dict[str, Any], dict[str, Array]]:
    tensors = {
        "m.qweight": pack(np.zeros((32, 64), np.int64), 4).T,
        "m.qzeros": pack(np.ones((2, 32), np.int64), 4),
        "m.scales": np.ones((2, 32), np.float16),
        "m.g_idx": np.arange(64, dtype=np.int32) // 32,
    }
    config = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    return config, {
        name: array for name, array in {**tensors, **changes}.items() if array is not None
    }


def compressed(**changes: Any) -> tuple[dict[str, Any], dict[str, Array]]:
    tensors = {
        "m.weight_packed": pack(np.zeros((6, 64), np.int64), 4),
        "m.weight_shape": np.array([6, 64]),
        "m.weight_scale": np.ones((6, 2), np.float16),
    }
    groups = {"a": {"weights": {"num_bits": 4, "group_size": 32}}}
    config = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": groups,
    }
    return config, {
        name: array for name, array in {**tensors, **changes}.items() if array is not None
    }


def fp8(**changes: Any) -> tuple[dict[str, Any], dict[str, Array]]:
    tensors = {
        "m.weight": np.ones((5, 7), ml_dtypes.float8_e4m3fn),
        "m.weight_scale_inv": np.ones((2, 2), np.float32),
    }
    config = {"quant_method": "fp8", "weight_block_size": [4, 4]}
    return config, {
        name: array for name, array in {**tensors, **changes}.items() if array is not None
    }


Make = Callable[..., tuple[dict[str, Any], dict[str, Array]]]
DAMAGED: dict[str, tuple[Make, dict[str, Any], str]] = {
    "no-scales": (gptq, {"m.scales": None}, "tensor 'm.scales' is missing"),
    "scales-of-another-shape": (
        gptq,
        {"m.scales": np.ones((32, 2), np.float16)},
        r"is F16 \[32, 2\]",
    ),
    "scales-of-integers": (gptq, {"m.scales": np.ones((2, 32), np.int16)}, "is I16"),
    "unequal-groups": (gptq, {"m.g_idx": np.repeat(np.int32([0, 1]), [31, 33])}, "makes groups of"),
    "groups-beyond": (gptq, {"m.g_idx": np.full(64, 1 << 30, np.int32)}, "makes groups of"),
    "groups-below": (gptq, {"m.g_idx": np.full(64, -5, np.int32)}, "makes groups of"),
    "an-empty-matrix": (gptq, {"m.qweight": np.zeros((8, 0), np.int32)}, "not empty"),
    "zero-points-of-another-size": (
        gptq,
        {"m.qzeros": np.zeros((3, 4), np.int32)},
        "sizes of one of",
    ),
    "packed-scale-missing": (compressed, {"m.weight_scale": None}, "'m.weight_scale' is missing"),
    "packed-of-another-shape": (
        compressed,
        {"m.weight_shape": np.array([6, 1 << 40])},
        "the words of one",
    ),
    "packed-scales": (
        compressed,
        {"m.weight_scale": np.ones((6, 3), np.float16)},
        "as many as one of",
    ),
    "packed-groups": (compressed, {"m.weight_g_idx": np.zeros(64, np.int32)}, "makes groups of"),
    "packed-zero-points": (
        compressed,
        {"m.weight_zero_point": np.zeros((6, 2), np.int32)},
        "zero points",
    ),
    "fp8-scale-missing": (fp8, {"m.weight_scale_inv": None}, "'m.weight_scale_inv' is missing"),
    "fp8-blocks": (
        fp8,
        {"m.weight_scale_inv": np.ones((1, 2), np.float32)},
        r"are \[1, 2\].*Expected \[2, 2\]",
    ),
}


@pytest.mark.parametrize(("make", "changes", "message"), DAMAGED.values(), ids=DAMAGED)
def test_what_does_not_fit_is_refused_before_anything_is_decoded(
    make: Make, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    assert formats.find(stored(tmp_path, *make())).encoded
    with pytest.raises(CheckpointError, match=message):
        formats.find(stored(tmp_path, *make(**changes)))


SCALES = {
    "ar-auto-4": "scales",
    "awq-g128": "scales",
    "bitnet": "weight_scale",
    "bnb-int8": "SCB",
    "bnb-nf4": "weight.absmax",
    "bnb-nf4-double": "weight.nested_absmax",
    "ct-fp8-block": "weight_scale",
    "ct-mxfp4a16": "weight_scale",
    "ct-nvfp4a16": "weight_global_scale",
    "ct-w4a16": "weight_scale",
    "fp8-block": "weight_scale_inv",
    "gptq-4-g128-act": "scales",
    "hqq-4": "zero",
    "hqq-8": "scale",
    "torchao-fp8": "_weight_scale",
    "torchao-int8": "_weight_scale",
}


@pytest.mark.parametrize("name", SCALES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_scales_that_are_no_numbers_are_noticed_where_they_are_read(
    name: str, bad: float, tmp_path: Path
) -> None:
    header, data = parse((GENUINE / name / "model.safetensors").read_bytes())
    entry = header[f"{PATH}.{SCALES[name]}"]
    first, last = entry["data_offsets"]
    kinds = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
    value = b"\xff"  # of powers of two, the one that is no number
    if entry["dtype"] in kinds:
        value = np.array(bad).astype(kinds[entry["dtype"]]).tobytes()
    if name in ("bitnet", "ct-nvfp4a16") and np.isinf(bad):
        value = bytes(len(value))  # others are divided by those
    octets = data[: last - len(value)] + value + data[last:]
    output = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(
        len(output).to_bytes(8, "little") + output + octets
    )
    (tmp_path / "config.json").write_bytes((GENUINE / name / "config.json").read_bytes())
    checkpoint = open_checkpoint(str(tmp_path))
    [encoded] = checkpoint.encoded.values()
    assert first < last
    with pytest.raises(
        CheckpointError, match=r"are not all numbers, or go beyond 1e\+30. Expected finite"
    ):
        checkpoint.read(MATRIX, 100, 128)
    if encoded.integers:  # whoever takes the integers as they are sees it too
        parts = [encoded.integers.scales, encoded.integers.offsets]
        with pytest.raises(CheckpointError, match="are not all numbers"):
            [part(checkpoint.read_stored, 100, 128) for part in parts if part]


def test_integers_beyond_their_bits_are_noticed(tmp_path: Path) -> None:
    fields = {
        "_type": "IntxUnpackedToInt8Tensor",
        "_data": {"block_size": [1, 4], "target_dtype": "int4"},
    }
    tensors = {
        "m._weight_qdata": np.array([[7, -8, 0, 8]], np.int8),
        "m._weight_scale": np.ones((1, 1), np.float32),
    }
    source = stored(
        tmp_path, {"quant_method": "torchao"}, tensors, {"m.weight": json.dumps(fields)}
    )
    encoded = formats.find(source).encoded["m.weight"]
    with pytest.raises(CheckpointError, match="integers beyond 4 bits"):
        encoded.values(source.read, 0, 1)


def test_what_torchao_stores_otherwise_is_refused_by_name(tmp_path: Path) -> None:
    settings = {"m.weight": '{"_type": "Int4TilePackedTo4dTensor", "_data": {}}'}
    tensors = {"m._weight_qdata": np.zeros((1, 4), np.int8)}
    with pytest.raises(
        UnsupportedModelError, match=r"'m\.weight' as torchao's Int4TilePackedTo4dTensor"
    ):
        formats.find(stored(tmp_path, {"quant_method": "torchao"}, tensors, settings))
    with pytest.raises(CheckpointError, match="say of no tensor how it is quantized"):
        formats.find(stored(tmp_path, {"quant_method": "torchao"}, tensors))


def test_hqq_along_the_other_axis_is_refused(tmp_path: Path) -> None:
    tensors = {
        "m.W_q": np.zeros((8, 8), np.uint8),
        "m.axis": np.array(0, np.int32),
        "m.packing": np.frombuffer(b"4bit_u8", np.uint8),
    }
    with pytest.raises(
        UnsupportedModelError, match=r"packed as '4bit_u8' along axis 0\. Expected axis 1"
    ):
        formats.find(stored(tmp_path, {"quant_method": "hqq"}, tensors))
