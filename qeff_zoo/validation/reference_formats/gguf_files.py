# SPDX-License-Identifier: Apache-2.0
"""GGUF files, decoded for the reference by gguf-py: for each parameter of the model, what llama.cpp made of it.

Names are those that gguf-py gives the tensors of a Hugging Face model, and what llama.cpp's converters did to values is
undone. Source: https://github.com/ggml-org/llama.cpp `convert_hf_to_gguf.py`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import torch
from torch import Tensor

from qeff_zoo.validation.reference_formats.files import Decoded

#: Architectures whose converters are known, and what they do: turn the rows of queries and keys, or add 1 to norms.
_ARCHITECTURES: Mapping[Any, str] = MappingProxyType(
    {
        gguf.MODEL_ARCH.LLAMA: "turns",
        gguf.MODEL_ARCH.QWEN2: "",
        gguf.MODEL_ARCH.QWEN2MOE: "",
        gguf.MODEL_ARCH.QWEN3: "",
        gguf.MODEL_ARCH.QWEN3MOE: "",
        gguf.MODEL_ARCH.PHI3: "",
        gguf.MODEL_ARCH.GEMMA: "adds",
        gguf.MODEL_ARCH.GEMMA2: "adds",
        gguf.MODEL_ARCH.GEMMA3: "adds",
    }
)
#: Said by the configuration too.
_ROPE = ("rope_freqs.", "rope_factors_")
_ENDS = (".weight", ".bias")


class _Tensors(Mapping[str, Tensor]):
    """The tensors of GGUF files, each decoded when it is asked for."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.readers = [gguf.GGUFReader(path) for path in paths]
        self._found = {one.name: one for reader in self.readers for one in reader.tensors}

    def __getitem__(self, name: str) -> Tensor:
        one = self._found[name]
        return torch.from_numpy(gguf.quants.dequantize(one.data, one.tensor_type).astype("f4"))

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def open_tensors(paths: Sequence[Path], config: Any, names: Sequence[str]) -> dict[str, Decoded]:
    """Find a model's parameters in GGUF files.

    Args:
        paths: Of the file, or of all parts of one that was split.
        config: Of the text model, as transformers has it.
        names: Of the model's parameters.

    Raises:
        ValueError: The architecture is not known here, or tensors are left over.
    """
    tensors = _Tensors(paths)
    told = tensors.readers[0].get_field("general.architecture")
    architecture = str(told.contents()) if told else ""
    known = {gguf.MODEL_ARCH_NAMES[one]: one for one in _ARCHITECTURES}
    if architecture not in known:
        raise ValueError(
            f"The reference cannot undo what was done to {architecture!r}; it knows {', '.join(known)}."
        )
    kind = known[architecture]
    place_of = partial(_place, gguf.get_tensor_name_map(kind, config.num_hidden_layers), tensors)
    found = {}
    for name in names:
        parts = {"value": place_of(name)}
        if name.endswith("experts.gate_up_proj"):
            halves = (name.replace("gate_up_proj", half) for half in ("gate_proj", "up_proj"))
            parts = dict(zip(("gate", "up"), map(place_of, halves), strict=True))
        sources = {part: place for part, place in parts.items() if place}
        if sources:  # a head that is not there is tied
            undo = _undo(_ARCHITECTURES[kind], name, config)
            found[name] = Decoded(tensors, sources, _joined if "gate" in sources else undo)
    used = {place for one in found.values() for place in one.sources.values()}
    if left := [name for name in tensors if name not in used and not name.startswith(_ROPE)]:
        raise ValueError(f"The reference does not know what these are for: {left[:5]}.")
    return found


def _place(names: gguf.TensorNameMap, tensors: Mapping[str, Tensor], name: str) -> str | None:
    """Return the tensor that is made of a parameter; None without one. Experts have no ".weight" in the model."""
    for prefix in ("", "model."):  # of a model without a head
        for end in ("", ".weight"):
            place = names.get_name(f"{prefix}{name}{end}", try_suffixes=_ENDS)
            if place in tensors:
                return str(place)
    return None


def _undo(done: str, name: str, config: Any) -> Callable[..., Tensor]:
    """Return what makes a parameter of its tensor."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    module = name.split(".")[-2] if "." in name else ""
    if done == "turns" and module in heads:
        return partial(_turned_back, heads[module])
    if done == "adds" and name.endswith("norm.weight"):
        return _less_one
    return _one_row if module == "shared_expert_gate" else _as_it_is


def _turned_back(heads: int, value: Tensor) -> Tensor:
    """Put the halves of each head's rows behind each other, which llama.cpp has in turns."""
    pairs: Tensor = value.unflatten(0, (heads, -1, 2))
    return pairs.transpose(1, 2).flatten(0, 2)


def _less_one(value: Tensor) -> Tensor:
    return value - 1


def _one_row(value: Tensor) -> Tensor:
    return value.reshape(1, -1)


def _as_it_is(value: Tensor) -> Tensor:
    return value


def _joined(gate: Tensor, up: Tensor) -> Tensor:
    """Return the two halves of experts in one, (experts, 2 * rows, columns)."""
    return torch.cat([gate, up], 1)
