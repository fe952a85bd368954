# SPDX-License-Identifier: Apache-2.0
"""The tensors of a quantized checkpoint's files, and tensors that are decoded when transformers reads them."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor


class Files(Mapping[str, Tensor]):
    """The tensors of a folder's safetensors files, read on demand.

    Args:
        folder: Folder of the checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        index = folder / "model.safetensors.index.json"
        names = {"model.safetensors"}
        if index.is_file():
            names = set(json.loads(index.read_bytes())["weight_map"].values())
        opened: list[Any] = [safe_open(folder / name, "pt") for name in sorted(names)]
        self._holders = {name: file for file in opened for name in file.keys()}  # noqa: SIM118
        self._opened = opened

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = self._holders[name].get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._holders)

    def __len__(self) -> int:
        return len(self._holders)

    def __contains__(self, name: object) -> bool:
        return name in self._holders

    def dtype(self, name: str) -> str:
        """Return a tensor's type as safetensors names it: "F8_E4M3"."""
        return str(self._holders[name].get_slice(name).get_dtype())

    def length(self, name: str) -> int:
        """Return the length of a tensor's first axis."""
        return int(self._holders[name].get_slice(name).get_shape()[0])

    @cached_property
    def metadata(self) -> Mapping[str, str]:
        """Metadata of the files."""
        values: dict[str, str] = {}
        for file in self._opened:
            values |= file.metadata() or {}
        return values

    def modules(self, suffix: str) -> list[str]:
        """Return the paths of modules that have a tensor of a name."""
        return [name.removesuffix(f".{suffix}") for name in self if name.endswith(f".{suffix}")]

    def parts(self, path: str, *names: str) -> dict[str, str]:
        """Return those of a module's tensors that are there, by their name in it."""
        return {name: f"{path}.{name}" for name in names if f"{path}.{name}" in self}


@dataclass(frozen=True)
class Decoded:
    """A tensor that is decoded when it is read, as transformers reads a slice of safetensors.

    Args:
        files: Files of the source tensors.
        sources: Names in the files, by the names that `decode` takes them by.
        decode: Makes the float32 tensor.
    """

    files: Mapping[str, Tensor]
    sources: Mapping[str, str]
    decode: Callable[..., Tensor]

    def __getitem__(self, _: Any) -> Tensor:
        sources = {key: self.files[name] for key, name in self.sources.items()}
        return self.decode(**sources).contiguous()


def plain(value: Tensor) -> Tensor:
    """Return a tensor of floats in float32, any other as it is."""
    return value.float() if value.is_floating_point() else value


def spread(by_group: Tensor, columns: int, group: int, g_idx: Tensor | None = None) -> Tensor:
    """Give every column what its group has.

    Args:
        by_group: (..., groups).
        columns: Number of columns.
        group: Columns that share a value, in order.
        g_idx: (columns,) the group of each, where they are in another order.
    """
    if g_idx is None:
        g_idx = torch.arange(columns) // group
    return by_group[..., g_idx.long()]
