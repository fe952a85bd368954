# SPDX-License-Identifier: Apache-2.0
"""Adapters that are merged into weights: each opened by its folder or Hub id, with its weight in the sum."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from qeff_zoo.checkpoint.adapters.peft_files import Adapter, open_adapter, place_of
from qeff_zoo.checkpoint.files import some
from qeff_zoo.checkpoint.safetensors_index import TensorInfo
from qeff_zoo.disk.user_paths import is_path
from qeff_zoo.errors import AdapterError


@dataclass(frozen=True, kw_only=True)
class Merged:
    """An adapter that is to be merged into a checkpoint's weights.

    Args:
        adapter: Opened adapter, checked as far as possible without the model.
        weight: Factor of its changes.
        number: Number among the merged adapters.
    """

    adapter: Adapter
    weight: float = 1.0
    number: int = 0

    @cached_property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Tensors of the adapter, by names that no checkpoint has."""
        return {
            self.named(name): replace(info, name=self.named(name))
            for name, info in self.adapter.tensors.items()
        }

    def named(self, tensor: str) -> str:
        """Return the name of one of its tensors among those of the checkpoint."""
        return f"adapter {self.number}: {tensor}"

    @property
    def name(self) -> str:
        """Name beside its model: that on the Hub, or of its folder."""
        return self.adapter.repository or self.adapter.folder.resolve().name

    @property
    def source(self) -> dict[str, Any]:
        """Identity in a build's spec."""
        hub = {"model_id": self.adapter.repository, "revision": self.adapter.revision}
        return {
            **({name: value for name, value in hub.items() if value}),
            "digest": f"sha256:{self.adapter.digest}",
            "weight": self.weight,
        }

    @property
    def located(self) -> dict[str, Any]:
        """Location for other readers of its files."""
        return {"folder": str(self.adapter.folder.absolute()), "weight": self.weight}


def open_merged(requested: Sequence[str]) -> tuple[Merged, ...]:
    """Open adapters that are to be merged, and refuse unsupported ones.

    Args:
        requested: Folders, or `org/name` or `org/name/folder` of the Hub, each with an optional `@` and a revision, and
            an optional `=` and a weight.

    Raises:
        AdapterError: A source is no adapter, or cannot be merged.
        CheckpointError: A file is damaged, or not available.
    """
    merged = []
    for number, one in enumerate(requested):
        source, weight = _weighted(one)
        name, revision = source, None
        plainly = source.count("/") == 1 and not is_path(source)
        if plainly or place_of(source)[1]:  # of the Hub
            name, _, revision = source.partition("@")
        adapter = open_adapter(name, revision or None)
        adapter.require({})
        if (named := adapter.config.get("target_parameters")) and not adapter.stacks:
            raise adapter.refused(
                f"target_parameters is {named!r}, of which it has no matrices",
                "lora_A and lora_B of these",
            )
        merged.append(Merged(adapter=adapter, weight=weight, number=number))
        _require_sum(merged[-1], alone=len(requested) == 1)
    return tuple(merged)


def _weighted(one: str) -> tuple[str, float]:
    """Split a request into an adapter and its weight."""
    source, equals, text = one.rpartition("=")
    if not equals or Path(one).expanduser().is_dir():
        return one, 1.0
    try:
        weight = float(text)
    except ValueError:
        return one, 1.0  # of a folder's name
    if not math.isfinite(weight) or not weight:
        raise AdapterError(
            f"The weight of an adapter in --adapter {one!r} is {text}; expected a number other than 0. Correct it."
        )
    return source, weight


def _require_sum(merged: Merged, *, alone: bool) -> None:
    """Refuse adapters whose changes can only be merged alone, and with weight 1."""
    if alone and merged.weight == 1.0:
        return
    adapter = merged.adapter
    kind = "scales whole weights (DoRA)" if adapter.config.get("use_dora") else ""
    if adapter.replaced:
        kind = f"replaces {some(sorted(adapter.replaced))}"
    if kind:
        raise AdapterError(
            f"Cannot merge the adapter {adapter.name!r} with others, or with a weight of {merged.weight:g}: it {kind}, "
            "which has no weighted sum. Expected it alone, with a weight of 1. Merge it by itself, or leave it out."
        )
