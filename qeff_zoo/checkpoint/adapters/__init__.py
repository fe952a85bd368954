# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters: low-rank matrices that change linear layers of a model, merged or loaded at run time.

A program with adapter slots has two inputs for each linear layer, which hold the matrices of several adapters, one in
each slot, and one input with the slot of every row. Slot 0 is all zeros: the base model.

IN   lora_a_<site>.<layer> (slots + 1, in, rank)    <site> is the module's path in its layer: `self_attn.q_proj`
     lora_b_<site>.<layer> (slots + 1, rank, out)   the adapter's scaling is part of it
     lora_ids (batch_size, 1) i64                   the slot of each row
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

#: Default of the largest rank of adapters.
LORA_RANK = 16
#: Input with the slot of each row.
IDS = "lora_ids"
#: Raised if graphs with adapter slots change, and no others: part of the identity of their packages.
REVISION = 2
_INPUT = re.compile(r"lora_([ab])_(.+)\.(\d+)")


@dataclass(frozen=True, kw_only=True)
class Slots:
    """Adapter slots of a program.

    Args:
        count: Number of adapters at a time.
        rank: Largest rank.
        targets: Names of linear layers, or suffixes of them; empty for all.
    """

    count: int
    rank: int = LORA_RANK
    targets: tuple[str, ...] = ()

    @classmethod
    def of_variant(cls, variant: dict[str, Any]) -> "Slots | None":
        """Remove the slot options from a program's variant; None if it has no slots."""
        count, _ = variant.pop("max_loras", None), variant.pop("lora_rev", None)
        rank, targets = variant.pop("max_lora_rank", LORA_RANK), variant.pop("lora_targets", ())
        return None if count is None else cls(count=count, rank=rank, targets=tuple(targets))

    def takes(self, module: str) -> bool:
        """Whether a module is one of the targets, by peft's comparison of names."""
        ends = (module == target or module.endswith(f".{target}") for target in self.targets)
        return not self.targets or any(ends)


@dataclass(frozen=True, order=True)
class Site:
    """A linear layer that adapters may change.

    Args:
        layer: Index of the repeated layer that it is in.
        module: Path of the layer in that repeated layer.
    """

    layer: int
    module: str

    @property
    def inputs(self) -> tuple[str, str]:
        """Names of the graph's inputs for the first and the second matrix."""
        return f"lora_a_{self.module}.{self.layer}", f"lora_b_{self.module}.{self.layer}"

    def is_of(self, module: str) -> bool:
        """Whether a module's path in the model, such as `model.layers.3.self_attn.q_proj`, ends with this one."""
        return f".{module}".endswith(f".{self.layer}.{self.module}")


def sites_of(inputs: Iterable[str]) -> list[Site]:
    """Return the sites of adapters by the names of a program's inputs, in order."""
    matches = (_INPUT.fullmatch(name) for name in inputs)
    return [Site(int(match[3]), match[2]) for match in matches if match and match[1] == "a"]
