# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of compressed-tensors ("pack-quantized"), written tensor by tensor into files laid out beforehand.

weight_packed (rows, columns * bits / 32) int32, the first column in the lowest bits, integers moved to 0 … 2**bits - 1
weight_scale  (rows, columns / group), weight_shape (2,) int64
weight_zero_point  (rows * bits / 32, columns / group) int32, where there are zero points: packed and moved likewise

Of experts that the checkpoint has in one tensor, all of these are stacks too, but for weight_shape, of three numbers.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qeff_zoo.checkpoint.safetensors_index import DTYPE_BITS, TensorInfo
from qeff_zoo.checkpoint.types import Array
from qeff_zoo.export.unstacking import Place
from qeff_zoo.quantizer.grids import Rounded, Scheme
from qeff_zoo.weights.quantization import pack

_SHARD = 5 << 30  # bytes
#: Types that scales are stored in, by that of the matrix; what is wider gets the finer of the two.
_SCALES = {"BF16": "BF16"}
_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def scale_dtype(info: TensorInfo) -> str:
    """Return the safetensors dtype of a matrix's scales: that of the matrix, of 16 bits at most."""
    return _SCALES.get(info.dtype, "F16")


def torch_dtype(dtype: str) -> torch.dtype:
    """Return torch's name of a safetensors dtype of floats."""
    return _DTYPES[dtype]


@dataclass(frozen=True)
class Planned:
    """A tensor that will be written.

    Args:
        dtype: Type in safetensors.
        shape: Lengths of the axes.
    """

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return int(np.prod(self.shape, dtype=np.int64)) * DTYPE_BITS[self.dtype] // 8


def planned_matrix(source: Place, info: TensorInfo, scheme: Scheme) -> dict[str, Planned]:
    """Return the tensors that a matrix, or the stack that it is in, becomes.

    Args:
        source: Place of the matrix.
        info: Description of the checkpoint's tensor.
        scheme: Storage scheme of the matrix.
    """
    path, lead = source.path, () if source.expert is None else (source.experts,)
    words, groups = -(-source.rows * scheme.bits // 32), source.columns // scheme.group
    zeros = {f"{path}.weight_zero_point": Planned("I32", (*lead, words, groups))}
    packed = source.columns * scheme.bits // 32
    return {
        **(zeros if scheme.zero_points else {}),
        f"{path}.weight_packed": Planned("I32", (*lead, source.rows, packed)),
        f"{path}.weight_scale": Planned(scale_dtype(info), (*lead, source.rows, groups)),
        f"{path}.weight_shape": Planned("I64", (2 + len(lead),)),
    }


class Writer:
    """Files of a checkpoint whose tensors are written in any order.

    Args:
        folder: Folder of the files.
        planned: Every tensor, by name.
        metadata: Metadata for each file.
    """

    def __init__(
        self, folder: Path, planned: Mapping[str, Planned], metadata: Mapping[str, str]
    ) -> None:
        self._folder, self._planned = folder, planned
        self._places: dict[str, tuple[str, int]] = {}
        self._missing = set(planned)
        shards: list[list[str]] = [[]]
        size = 0
        for name in sorted(planned):
            if shards[-1] and size + planned[name].nbytes > _SHARD:
                shards.append([])
                size = 0
            shards[-1].append(name)
            size += planned[name].nbytes
        files = (
            ["model.safetensors"]
            if len(shards) == 1
            else [f"model-{n + 1:05d}-of-{len(shards):05d}.safetensors" for n in range(len(shards))]
        )
        for file, names in zip(files, shards, strict=True):
            self._lay_out(file, names, metadata)
        if len(files) > 1:
            total = sum(value.nbytes for value in planned.values())
            weight_map = {name: file for name, (file, _) in self._places.items()}
            index = {"metadata": {"total_size": total}, "weight_map": weight_map}
            path = folder / "model.safetensors.index.json"
            path.write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")

    def _lay_out(self, file: str, names: list[str], metadata: Mapping[str, str]) -> None:
        header: dict[str, Any] = {"__metadata__": {"format": "pt", **metadata}}
        end = 0
        # Wide types first, as safetensors writes them: every tensor is aligned.
        for name in sorted(names, key=lambda one: (-DTYPE_BITS[self._planned[one].dtype], one)):
            one = self._planned[name]
            offsets = [end, end + one.nbytes]
            header[name] = {"dtype": one.dtype, "shape": one.shape, "data_offsets": offsets}
            end += one.nbytes
        raw = json.dumps(header, separators=(",", ":")).encode()
        raw += b" " * (-len(raw) % 8)
        with (self._folder / file).open("wb") as opened:
            opened.write(len(raw).to_bytes(8, "little") + raw)
            opened.truncate(8 + len(raw) + end)
        for name in names:
            self._places[name] = (file, 8 + len(raw) + header[name]["data_offsets"][0])

    def put(self, name: str, values: Array, number: int = 0) -> None:
        """Write a tensor, or an item of it, to its position in the file.

        Args:
            name: A planned one.
            values: The bytes, in any shape and type.
            number: Number of the item.
        """
        raw = np.ascontiguousarray(values)
        items, rest = divmod(self._planned[name].nbytes, raw.nbytes)
        assert number < items, name
        assert not rest, name
        file, offset = self._places[name]
        with (self._folder / file).open("r+b") as opened:
            opened.seek(offset + number * raw.nbytes)
            opened.write(raw.data)
        if number == items - 1:  # they come in order
            self._missing.discard(name)

    def put_matrix(self, path: str, rounded: Rounded, number: int = 0) -> None:
        """Write the tensors of a matrix.

        Args:
            path: Path of its module, or its stack, in the checkpoint.
            rounded: Quantized matrix.
            number: Number of the matrix in the stack.
        """
        bits = rounded.scheme.bits
        half = 1 << (bits - 1)
        moved = (rounded.integers + half).to(torch.uint8).numpy()
        if rounded.scheme.zero_points:
            zeros = (rounded.zeros + half).to(torch.uint8).numpy().T
            zeros = np.pad(zeros, [(0, 0), (0, -zeros.shape[1] % (32 // bits))])
            self.put(f"{path}.weight_zero_point", pack(zeros, bits).view("<u4").T, number)
        self.put(f"{path}.weight_packed", pack(moved, bits), number)
        name = f"{path}.weight_scale"
        self.put(name, to_bytes(rounded.scales, self._planned[name].dtype), number)
        lead = self._planned[f"{path}.weight_packed"].shape[:-2]
        self.put(f"{path}.weight_shape", np.array([*lead, *moved.shape], np.int64))

    def finish(self) -> None:
        """Make sure that everything was written."""
        assert not self._missing, sorted(self._missing)


def to_bytes(values: torch.Tensor, dtype: str) -> Array:
    """Return float32 values in a safetensors dtype, as their bytes."""
    narrowed = values.to(torch_dtype(dtype)).contiguous()
    octets: Array = narrowed.view(torch.uint8).numpy()
    return octets


def quantization_config(schemes: Mapping[str, Scheme], ignored: list[str]) -> dict[str, Any]:
    """Return `quantization_config` of a checkpoint.

    Args:
        schemes: Schemes by name of the module.
        ignored: Modules that could be quantized and are not.
    """
    groups: dict[str, Any] = {}
    for number, scheme in enumerate(sorted(set(schemes.values()))):
        groups[f"group_{number}"] = {
            "format": "pack-quantized",
            "input_activations": None,
            "output_activations": None,
            "targets": [name for name, value in schemes.items() if value == scheme],
            "weights": {
                "actorder": None,
                "block_structure": None,
                "dynamic": False,
                "group_size": scheme.group,
                "num_bits": scheme.bits,
                "observer": "minmax",
                "observer_kwargs": {},
                "strategy": "group",
                "symmetric": not scheme.zero_points,
                "type": "int",
            },
        }
    return {
        "config_groups": groups,
        "format": "pack-quantized",
        "global_compression_ratio": None,
        "ignore": ignored,
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    }
