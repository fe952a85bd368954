# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters of a session: loaded into slots of its program, selected by requests, and unloaded at runtime.

A slot that no request uses can be written while calls run, since none of their batch slots selects it. The adapter
inputs of calls are in `qeff_zoo.runtime.decoding.lora_inputs`.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet

import numpy as np

from qeff_zoo.checkpoint.adapters import Site
from qeff_zoo.checkpoint.files import some
from qeff_zoo.contract import FEATURE_EXTRACTION
from qeff_zoo.errors import AdapterError
from qeff_zoo.package.files import read_json
from qeff_zoo.runtime.decoding.lora_inputs import inputs_of
from qeff_zoo.runtime.program import Array, Program

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.adapters.peft_files import Adapter


class Use(Protocol):
    """User of an adapter, until it has ended."""

    @property
    def ended(self) -> bool:
        """Whether it has ended."""


@dataclass(eq=False, frozen=True)
class Loaded:
    """LoRA adapter in an adapter slot.

    Args:
        name: Name in requests.
        slot: Number of the adapter slot; 0 for the base model.
        digest: Digest of the adapter's files.
        uses: Running requests that use the adapter.
    """

    name: str
    slot: int
    digest: bytes = b""
    uses: WeakSet[Use] = field(default_factory=WeakSet, repr=False)

    @property
    def is_used(self) -> bool:
        """Whether a running request uses the adapter."""
        return any(not use.ended for use in [*self.uses])


#: The base model.
BASE = Loaded("", 0)


class Adapters(Mapping[str, Loaded]):
    """Adapters by name. Loading and unloading are thread-safe.

    Args:
        program: Program with or without support for adapters.
        folder: Folder of its package.

    Example:
        >>> session.adapters.load("sql", "adapters/sql")  # doctest: +SKIP
        >>> session.generate(["How many users?"], adapter="sql")  # doctest: +SKIP
    """

    def __init__(self, program: Program, folder: Path = Path()) -> None:
        self._folder = folder
        self._inputs = inputs_of(program)
        #: Layers that adapters may change, with their input and output sizes.
        self.sites: Mapping[Site, tuple[int, int]] = self._inputs.sites
        spec = read_json(folder / "manifest.json").get("spec", {}) if self.are_taken else {}
        self._model = spec.get("sources", {}).get("model", {}).get("model_id")
        room = spec.get("task", {})
        self._pools = room.get("name") == FEATURE_EXTRACTION
        #: Number of adapter slots.
        self.slots = int(room.get("max_loras", 0))
        #: Maximum rank of an adapter.
        self.rank = int(room.get("max_lora_rank", 0))
        self._loaded: dict[str, Loaded] = {}
        self._leaving: list[Loaded] = []  # unloaded, but still in use
        self._changing = threading.Lock()

    @property
    def are_taken(self) -> bool:
        """Whether the program supports adapters."""
        return bool(self.sites)

    def __getitem__(self, name: str) -> Loaded:
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded)

    def __len__(self) -> int:
        return len(self._loaded)

    def find(self, name: str) -> Loaded:
        """Return a loaded adapter.

        Raises:
            AdapterError: If no adapter has that name.
        """
        if name not in self._loaded:
            here = ", ".join(map(repr, self._loaded)) or "none"
            raise AdapterError(
                f"There is no adapter {name!r} here; expected one of those that are loaded: {here}. Load it, or ask "
                "for another."
            )
        return self._loaded[name]

    def lend(self, name: str | None, use: Use) -> Loaded:
        """Return an adapter, whose slot is reserved until its use has ended; for None the base model.

        Raises:
            AdapterError: If no adapter has that name.
        """
        if name is None:
            return BASE
        with self._changing:
            loaded = self.find(name)
            loaded.uses.add(use)
        return loaded

    def load(
        self,
        name: str,
        source: str | Path,
        *,
        revision: str | None = None,
        anonymous: bool = False,
    ) -> Loaded:
        """Load an adapter into a free slot, or over the adapter of that name if it is not in use.

        Args:
            name: Name for requests.
            source: A folder in PEFT's format, or a Hub `org/name`.
            revision: Branch, tag or commit of a Hub repository.
            anonymous: Whether Hub requests omit the user's token, as on behalf of another user.

        Raises:
            AdapterError: If the adapter does not fit this package, no slot is free, or the folder has no adapter.
            CheckpointError: If its files are damaged, or cannot be downloaded.
        """
        if not self.slots:
            raise AdapterError(
                f"Package {str(self._folder)!r} takes no adapters, and cannot load {name!r}; expected one that was "
                "built with --max-loras. Build the model with that."
            )
        if not name:
            raise AdapterError(
                f"Cannot load {str(source)!r} by the name ''; expected a name. Give one."
            )
        from qeff_zoo.checkpoint.adapters.peft_files import open_adapter

        adapter = open_adapter(source, revision, anonymous=anonymous)
        pairs = _finite(adapter, self._places(adapter))
        with self._changing:
            before = self._loaded.get(name)
            slot = before.slot if before and not before.is_used else self._free_slot(name)
            self._inputs.write(slot, pairs)
            if before and before.slot != slot:
                self._leaving.append(before)
            loaded = Loaded(name, slot, bytes.fromhex(adapter.digest))
            self._loaded[name] = loaded
        return loaded

    def unload(self, name: str) -> None:
        """Unload an adapter. Running requests keep it until they end; then its slot is free.

        Raises:
            AdapterError: If no adapter has that name.
        """
        with self._changing:
            loaded = self.find(name)
            del self._loaded[name]
            self._leaving.append(loaded)
            self._let_go()

    def given(self, slots: Sequence[int], rows: Sequence[int] = ()) -> Mapping[str, Array]:
        """Return the adapter inputs of a call; empty if the program has none.

        Args:
            slots: Adapter slot of each row of the call.
            rows: Batch slots of the call; empty if all rows of the call have the same adapter slot.
        """
        return self._inputs.given(slots, rows)

    def _let_go(self) -> None:
        """Free the slots of unloaded adapters that are no longer in use."""
        for one in self._leaving:
            if not one.is_used:
                self._inputs.free(one.slot)
        self._leaving = [one for one in self._leaving if one.is_used]

    def _free_slot(self, name: str) -> int:
        self._let_go()
        taken = {one.slot for one in (*self._loaded.values(), *self._leaving)}
        free = [slot for slot in range(1, self.slots + 1) if slot not in taken]
        if not free:
            held = ", ".join(repr(one.name) for one in (*self._loaded.values(), *self._leaving))
            raise AdapterError(
                f"There is no room for the adapter {name!r}: {held} have all {self.slots} slots; expected a free one. "
                "Unload another first, or build the package with a larger --max-loras."
            )
        return free[0]

    def _places(self, adapter: "Adapter") -> dict[str, Site]:
        """Map the adapter's module names to the layers that it changes; reject an adapter that does not fit."""
        from qeff_zoo.checkpoint.adapters.peft_files import MERGEABLE

        adapter.require(MERGEABLE)
        problems: list[str] = []
        sites: dict[str, Site] = {}
        by_end: dict[str, list[Site]] = {}
        for site in self.sites:
            by_end.setdefault(site.module.rpartition(".")[2], []).append(site)
        for module, rank in adapter.modules.items():
            if self._pools and f".{module}".endswith(".pooler.dense"):
                continue  # transformers' pooling head for the first token, which embeddings do not use
            near = by_end.get(module.rpartition(".")[2], [])
            fitting = [one for one in near if one.is_of(module)]
            if not fitting:
                problems.append(
                    f"it changes {module!r}, which is no layer that this package lets adapters change"
                )
                continue
            # The longest match: `layer.1.ffn.0.dense` is not a `dense` of layer 0.
            site = sites[module] = max(fitting, key=lambda one: len(one.module))
            here, has = self.sites[site], adapter.shape(module)
            if has != here:
                problems.append(
                    f"its {module!r} is from {has[0]} to {has[1]}, here from {here[0]} to {here[1]}"
                )
            elif rank > self.rank:
                problems.append(
                    f"its {module!r} has rank {rank}, and here the largest is {self.rank}"
                )
        problems += [f"it has {name!r}" for name in adapter.others]
        if problems:
            changed = dict.fromkeys(site.module for site in self.sites)
            raise AdapterError(
                f"The adapter {adapter.name!r} does not fit package {str(self._folder)!r}: {some(problems, 4)}. "
                f"Expected an adapter of its model, of rank {self.rank} at most, for {', '.join(changed)}. "
                "Use such an adapter, or build the package with another --max-lora-rank or --lora-targets."
            )
        adapter.warn_of_another(self._model)
        return sites


def _finite(adapter: "Adapter", sites: Mapping[str, Site]) -> dict[Site, tuple[Array, Array]]:
    """Return the matrices of an adapter by layer; reject matrices that are not finite."""
    pairs = {}
    for module, site in sites.items():
        pair = pairs[site] = adapter.pair(module)
        if not all(np.isfinite(matrix).all() for matrix in pair):
            raise adapter.refused(f"its {module!r} is infinite or not a number", "finite matrices")
    return pairs
