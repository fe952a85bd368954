# SPDX-License-Identifier: Apache-2.0
"""The adapters of a session: loaded into slots of its program, named by requests, unloaded, without a new session.

The matrices of all slots are arrays that every call of the program reads. A slot that no request uses is written while
calls run, since no row of theirs has its number.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet

import numpy as np

from qeff_zoo.adapters import IDS, Site, sites_of
from qeff_zoo.checkpoint.files import some
from qeff_zoo.errors import AdapterError
from qeff_zoo.runtime.program import Array, Program
from qeff_zoo.runtime.tokenizer import read_json

if TYPE_CHECKING:
    from qeff_zoo.adapters.reading import Adapter


class Use(Protocol):
    """What runs with an adapter until it has ended."""

    @property
    def ended(self) -> bool:
        """Whether nothing more of it runs."""


@dataclass(eq=False, frozen=True)
class Loaded:
    """An adapter in a slot.

    Args:
        name: That requests have.
        slot: Its number; 0 is the model as it is.
        digest: Of the adapter's files.
        uses: What was lent it.
    """

    name: str
    slot: int
    digest: bytes = b""
    uses: WeakSet[Use] = field(default_factory=WeakSet, repr=False)

    @property
    def is_used(self) -> bool:
        """Whether something runs with it."""
        return any(not use.ended for use in [*self.uses])


#: The model as it is.
BASE = Loaded("", 0)


class Adapters(Mapping[str, Loaded]):
    """Adapters by name. Any thread may load and unload at any time.

    Args:
        program: That takes them, or takes none.
        folder: Of its package.

    Example:
        >>> session.adapters.load("sql", "adapters/sql")  # doctest: +SKIP
        >>> session.generate(["How many users?"], adapter="sql")  # doctest: +SKIP
    """

    def __init__(self, program: Program, folder: Path = Path()) -> None:
        self._folder, self._sites = folder, sites_of(program.inputs)
        #: By name of the program's inputs, (slots + 1, …); slot 0 stays zero.
        self.inputs: dict[str, Array] = {
            name: np.zeros([int(size) for size in program.inputs[name].shape], np.float32)
            for site in self._sites
            for name in site.inputs
        }
        #: Whether the program takes adapters.
        self.are_taken = IDS in program.inputs
        first = next(iter(self.inputs.values()), np.zeros((1, 0, 0)))
        #: Adapters at a time.
        self.slots: int = first.shape[0] - 1
        #: Of the largest adapter.
        self.rank: int = first.shape[2]
        self._loaded: dict[str, Loaded] = {}
        self._leaving: list[Loaded] = []  # unloaded, and still in use
        self._changing = threading.Lock()

    def __getitem__(self, name: str) -> Loaded:
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded)

    def __len__(self) -> int:
        return len(self._loaded)

    def find(self, name: str) -> Loaded:
        """Return an adapter that is loaded.

        Raises:
            AdapterError: There is none of that name.
        """
        if name not in self._loaded:
            here = ", ".join(map(repr, self._loaded)) or "none"
            raise AdapterError(
                f"There is no adapter {name!r} here; expected one of those that are loaded: {here}. Load it, or ask "
                "for another."
            )
        return self._loaded[name]

    def lend(self, name: str | None, use: Use) -> Loaded:
        """Return an adapter, whose slot stays as it is until its use has ended; for None the model as it is.

        Raises:
            AdapterError: There is none of that name.
        """
        if name is None:
            return BASE
        with self._changing:
            loaded = self.find(name)
            loaded.uses.add(use)
        return loaded

    def load(self, name: str, source: str | Path, *, revision: str | None = None) -> Loaded:
        """Load an adapter into a free slot, or over the one that has its name and is not in use.

        Args:
            name: For requests to ask for.
            source: A folder that peft wrote, or a Hub `org/name`.
            revision: Branch, tag or commit of a Hub repository.

        Raises:
            AdapterError: It does not fit this package, there is no free slot, or it is none.
            CheckpointError: Its files are damaged, or cannot be had.
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
        from qeff_zoo.adapters.reading import open_adapter

        adapter = open_adapter(source, revision)
        places = self._places(adapter)
        with self._changing:
            before = self._loaded.get(name)
            slot = before.slot if before and not before.is_used else self._free_slot(name)
            self._write(slot, adapter, places)
            if before and before.slot != slot:
                self._leaving.append(before)
            loaded = Loaded(name, slot, bytes.fromhex(adapter.digest))
            self._loaded[name] = loaded
        return loaded

    def unload(self, name: str) -> None:
        """Forget an adapter. Requests that run with it end with it; then its slot is free.

        Raises:
            AdapterError: There is none of that name.
        """
        with self._changing:
            loaded = self.find(name)
            del self._loaded[name]
            self._leaving.append(loaded)

    def given(self, slots: Sequence[int]) -> dict[str, Array]:
        """Return the inputs of a call: the matrices, and the slot of each row; nothing where none are taken."""
        if not self.are_taken:
            return {}
        return {**self.inputs, IDS: np.array(slots, np.int64)[:, None]}

    def _free_slot(self, name: str) -> int:
        self._leaving = [one for one in self._leaving if one.is_used]
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
        """Find the layers that an adapter changes, by its names for them; refuse one that does not fit."""
        from qeff_zoo.adapters.reading import MERGEABLE

        adapter.require(MERGEABLE)
        self._require_base(adapter)
        problems: list[str] = []
        places: dict[str, Site] = {}
        by_end: dict[str, list[Site]] = {}
        for site in self._sites:
            by_end.setdefault(site.module.rpartition(".")[2], []).append(site)
        for module, rank in adapter.modules.items():
            near = by_end.get(module.rpartition(".")[2], [])
            fitting = [one for one in near if one.is_of(module)]
            if not fitting:
                problems.append(
                    f"it changes {module!r}, which is no layer that this package lets adapters change"
                )
                continue
            site = places[module] = fitting[0]
            down, up = (self.inputs[name].shape for name in site.inputs)
            here, has = (down[1], up[2]), adapter.shape(module)
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
            changed = dict.fromkeys(site.module for site in self._sites)
            raise AdapterError(
                f"The adapter {adapter.name!r} does not fit package {str(self._folder)!r}: {some(problems, 4)}. "
                f"Expected an adapter of its model, of rank {self.rank} at most, for {', '.join(changed)}. "
                "Use such an adapter, or build the package with another --max-lora-rank or --lora-targets."
            )
        return places

    def _require_base(self, adapter: "Adapter") -> None:
        """Refuse an adapter of another model of the Hub."""
        manifest = read_json(self._folder / "manifest.json")
        model = manifest.get("spec", {}).get("sources", {}).get("model", {}).get("model_id")
        if adapter.is_of_another(model):
            raise AdapterError(
                f"The adapter {adapter.name!r} was trained on {adapter.base!r}, and package {str(self._folder)!r} is "
                f"of {model!r}. Expected an adapter of that model. Use one; where both are the same model, correct "
                "base_model_name_or_path in adapter_config.json."
            )

    def _write(self, slot: int, adapter: "Adapter", places: Mapping[str, Site]) -> None:
        for array in self.inputs.values():
            array[slot] = 0
        for module, site in places.items():
            down, up = (self.inputs[name][slot] for name in site.inputs)
            a, b = adapter.pair(module)
            if not (np.isfinite(a).all() and np.isfinite(b).all()):
                raise adapter.refused(
                    f"its {module!r} is infinite or not a number", "finite matrices"
                )
            rank = a.shape[1]
            down[:, :rank], up[:rank] = a, b
