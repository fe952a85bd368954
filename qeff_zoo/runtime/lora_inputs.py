# SPDX-License-Identifier: Apache-2.0
"""What calls of a program are given of adapters: the matrices of their rows.

A program takes the matrices of a call's rows, or keeps those of all slots and is told the slot of each row. Slots are
those of `qeff_zoo.runtime.adapters`; 0 is the model as it is.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from qeff_zoo.checkpoint.adapters import IDS, Site, sites_of
from qeff_zoo.runtime.program import Array, HoldsLoraWeights, Program

#: By site (in, rank) and (rank, out), the scaling in the second.
Pairs: TypeAlias = Mapping[Site, tuple[Array, Array]]


class RowInputs:
    """Matrices of the rows of each call alone, each of its own rank: what a layer does not change costs nothing.

    Rows that all have the same adapter share its matrices. Of others each row has a copy, made when its adapter changes
    and not in every call, since most calls are for the rows of the one before.

    Args:
        program: With inputs of as many rows and ranks as a call has.
    """

    def __init__(self, program: Program) -> None:
        #: From how many numbers of a token to how many.
        self.sites: dict[Site, tuple[int, int]] = {}
        nothing: dict[str, Array] = {}
        for site in sites_of(program.inputs):
            a, b = site.inputs
            sizes = int(program.inputs[a].shape[1]), int(program.inputs[b].shape[2])
            self.sites[site] = sizes
            nothing[a] = np.zeros((1, sizes[0], 0), np.float32)
            nothing[b] = np.zeros((1, 0, sizes[1]), np.float32)
        self._own = {0: nothing}  # by slot
        self._copies: dict[str, Array] = {}  # (rows, …) of the program's states
        self._holds: dict[int, int] = {}  # row -> the slot whose matrices it has a copy of
        self._views: dict[
            tuple[int, int], dict[str, Array]
        ] = {}  # of copies, by the first row and their number

    def write(self, slot: int, pairs: Pairs) -> None:
        """Let a slot that no row uses have other matrices; those of sites that are not among them are nothing."""
        own = dict(self._own[0])
        for site, pair in pairs.items():
            for name, matrix in zip(site.inputs, pair, strict=True):
                own[name] = np.ascontiguousarray(matrix[None], np.float32)
        self.free(slot)
        self._own[slot] = own

    def free(self, slot: int) -> None:
        """Forget the matrices of a slot that no row uses."""
        self._own.pop(slot, None)
        for row in [*self._holds]:
            if self._holds.get(row) == slot:
                self._holds.pop(row, None)

    def given(self, slots: Sequence[int], rows: Sequence[int]) -> Mapping[str, Array]:
        """Return the inputs of a call; the same arrays as for the call before where nothing changed.

        Args:
            slots: Slot of each row.
            rows: Adjacent rows of the program's states; empty if all rows have the same slot.
        """
        first, *others = dict.fromkeys(slots)
        if not others:
            return self._own[first]
        if any(self._holds.get(row) != slot for row, slot in zip(rows, slots, strict=True)):
            self._make_room(slots, rows)
            for row, slot in zip(rows, slots, strict=True):
                self._copy(row, slot)
        stretch = rows[0], len(rows)
        if stretch not in self._views:
            start, stop = rows[0], rows[0] + len(rows)
            self._views[stretch] = {name: one[start:stop] for name, one in self._copies.items()}
        return self._views[stretch]

    def _make_room(self, slots: Sequence[int], rows: Sequence[int]) -> None:
        """Let copies have the largest ranks of those slots, and all these rows."""
        for name in self._own[0]:
            known = self._copies.get(name)
            shapes = [self._own[slot][name].shape[1:] for slot in slots]
            shapes += [known.shape[1:]] if known is not None else []
            count = max(*rows, len(known) - 1 if known is not None else 0) + 1
            shape = count, *map(max, zip(*shapes, strict=True))
            if known is None or known.shape != shape:
                self._copies[name] = np.zeros(shape, np.float32)
                self._holds.clear()
                self._views.clear()

    def _copy(self, row: int, slot: int) -> None:
        if self._holds.get(row) == slot:
            return
        for name, (matrix,) in self._own[slot].items():
            place = self._copies[name][row]
            rows, columns = matrix.shape
            place[:rows, :columns] = matrix
            place[rows:], place[:, columns:] = 0, 0
        self._holds[row] = slot


class SlotInputs:
    """Matrices of all slots, which the program retains from call to call; a call has the slot of each row.

    Args:
        program: Program that retains them.
    """

    def __init__(self, program: Program) -> None:
        assert isinstance(program, HoldsLoraWeights)
        self._program = program
        kept = {state.name: state for state in program.matrices}
        #: (slots + 1, …), the model as it is in slot 0.
        self._all = {
            name: np.zeros([int(size) for size in state.axes], np.float32)
            for name, state in kept.items()
        }
        #: From how many numbers of a token to how many.
        self.sites = {
            site: (self._all[site.inputs[0]].shape[1], self._all[site.inputs[1]].shape[2])
            for site in sites_of(kept)
        }
        program.retain(self._all)

    def write(self, slot: int, pairs: Pairs) -> None:
        """Let a slot that no row uses have other matrices; those of sites that are not among them are nothing."""
        for site in self.sites:
            for name, matrix in zip(site.inputs, pairs.get(site, ()) or (None, None), strict=True):
                place = self._all[name][slot]
                place[...] = 0
                if matrix is not None:
                    place[: matrix.shape[0], : matrix.shape[1]] = matrix
        self._program.retain(self._all)

    def free(self, slot: int) -> None:
        """Free a slot that no row uses: its matrices stay, unread, until another adapter takes it."""

    def given(self, slots: Sequence[int], rows: Sequence[int]) -> Mapping[str, Array]:
        """Return the input of a call: the slot of each row."""
        return {IDS: np.array(slots, np.int64)[:, None]}


def inputs_of(program: Program) -> RowInputs | SlotInputs:
    """Return what calls of a program are given, which is nothing where it takes no adapters."""
    return SlotInputs(program) if IDS in program.inputs else RowInputs(program)
