# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters: low-rank matrices that change linear layers of a model, merged or loaded at run time.

A program that takes them has two inputs for each linear layer, which hold the matrices of several adapters, one in each
slot, and one input that names the slot of every row. Slot 0 is all zeros: the model as it is.

IN   lora_a_<site>.<layer> (slots + 1, in, rank)    <site> is the module's path in its layer: `self_attn.q_proj`
     lora_b_<site>.<layer> (slots + 1, rank, out)   the adapter's scaling is part of it
     lora_ids (batch_size, 1) i64                   the slot of each row
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

#: Largest rank of adapters, where nobody says another.
LORA_RANK = 16
#: Input with the slot of each row.
IDS = "lora_ids"
#: Raised when graphs that take adapters come to be otherwise, and no others: part of the identity of their packages.
REVISION = 2
_INPUT = re.compile(r"lora_([ab])_(.+)\.(\d+)")


@dataclass(frozen=True, kw_only=True)
class Slots:
    """What a program has for adapters.

    Args:
        count: Adapters at a time.
        rank: Rank of the largest.
        targets: Names of linear layers, or how they end; none for all.
    """

    count: int
    rank: int = LORA_RANK
    targets: tuple[str, ...] = ()

    @classmethod
    def of_variant(cls, variant: dict[str, Any]) -> "Slots | None":
        """Take the choices out of a program's variant; None where it is to take no adapters."""
        count, _ = variant.pop("max_loras", None), variant.pop("lora_rev", None)
        rank, targets = variant.pop("max_lora_rank", LORA_RANK), variant.pop("lora_targets", ())
        return None if count is None else cls(count=count, rank=rank, targets=tuple(targets))

    def takes(self, module: str) -> bool:
        """Whether a module is one of the targets, by peft's comparison of names."""
        ends = (module == one or module.endswith(f".{one}") for one in self.targets)
        return not self.targets or any(ends)


@dataclass(frozen=True, order=True)
class Site:
    """A linear layer that adapters may change.

    Args:
        layer: Index of the repeated layer that it is in.
        module: Its path there.
    """

    layer: int
    module: str

    @property
    def inputs(self) -> tuple[str, str]:
        """Names of the graph's inputs: into the rank, and out of it."""
        return f"lora_a_{self.module}.{self.layer}", f"lora_b_{self.module}.{self.layer}"

    def is_of(self, module: str) -> bool:
        """Whether a module's path in the model, as `model.layers.3.self_attn.q_proj`, ends with this one."""
        return f".{module}".endswith(f".{self.layer}.{self.module}")


def sites_of(inputs: Iterable[str]) -> list[Site]:
    """Read off the names of a program's inputs what adapters may change, in order."""
    found = (_INPUT.fullmatch(name) for name in inputs)
    return [Site(int(match[3]), match[2]) for match in found if match and match[1] == "a"]
