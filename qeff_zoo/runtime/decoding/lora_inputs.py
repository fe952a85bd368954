# SPDX-License-Identifier: Apache-2.0
"""Adapter inputs of calls: the LoRA matrices of their batch slots.

A program takes the matrices of a call's batch slots, or retains those of all adapter slots and takes the adapter slot
of each row. Adapter slots are those of `qeff_zoo.runtime.decoding.adapters`; 0 is the base model.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from qeff_zoo.checkpoint.adapters import IDS, Site, sites_of
from qeff_zoo.runtime.program import Array, HoldsLoraWeights, Program

#: Matrices (in, rank) and (rank, out) by site, with the scaling in the second.
Pairs: TypeAlias = Mapping[Site, tuple[Array, Array]]


class RowInputs:
    """LoRA matrices of a call's batch slots, each of its rank: layers that no adapter changes cost nothing.

    Batch slots that all have the same adapter share its matrices. Otherwise each has a copy, written when its adapter
    changes and not in every call, since most calls are for the same slots as the previous one.

    Args:
        program: A program whose adapter inputs have the rows and ranks of a call.
    """

    def __init__(self, program: Program) -> None:
        #: Input and output size of each site.
        self.sites: dict[Site, tuple[int, int]] = {}
        nothing: dict[str, Array] = {}
        for site in sites_of(program.inputs):
            a, b = site.inputs
            sizes = int(program.inputs[a].shape[1]), int(program.inputs[b].shape[2])
            self.sites[site] = sizes
            nothing[a] = np.zeros((1, sizes[0], 0), np.float32)
            nothing[b] = np.zeros((1, 0, sizes[1]), np.float32)
        self._own = {0: nothing}  # by adapter slot
        self._copies: dict[str, Array] = {}  # (batch slots, …)
        self._holds: dict[int, int] = {}  # batch slot -> adapter slot of its copy
        self._views: dict[
            tuple[int, int], dict[str, Array]
        ] = {}  # of copies, by the first batch slot and their number

    def write(self, slot: int, pairs: Pairs) -> None:
        """Set the matrices of an adapter slot that is not in use; other sites have none."""
        own = dict(self._own[0])
        for site, pair in pairs.items():
            for name, matrix in zip(site.inputs, pair, strict=True):
                own[name] = np.ascontiguousarray(matrix[None], np.float32)
        self.free(slot)
        self._own[slot] = own

    def free(self, slot: int) -> None:
        """Drop the matrices of an adapter slot that is not in use."""
        self._own.pop(slot, None)
        for row in [*self._holds]:
            if self._holds.get(row) == slot:
                self._holds.pop(row, None)

    def given(self, slots: Sequence[int], rows: Sequence[int]) -> Mapping[str, Array]:
        """Return the adapter inputs of a call; the same arrays as for the previous call if nothing changed.

        Args:
            slots: Adapter slot of each row.
            rows: Adjacent batch slots; empty if all rows have the same adapter slot.
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
            self._views[stretch] = {name: copy[start:stop] for name, copy in self._copies.items()}
        return self._views[stretch]

    def _make_room(self, slots: Sequence[int], rows: Sequence[int]) -> None:
        """Allocate copies with the largest ranks of these adapter slots, and for all these batch slots."""
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
            copied = self._copies[name][row]
            rows, columns = matrix.shape
            copied[:rows, :columns] = matrix
            copied[rows:], copied[:, columns:] = 0, 0
        self._holds[row] = slot


class SlotInputs:
    """LoRA matrices of all adapter slots, which the program retains; a call takes the adapter slot of each row.

    Args:
        program: A program that retains the matrices.
    """

    def __init__(self, program: Program) -> None:
        assert isinstance(program, HoldsLoraWeights)
        self._program = program
        kept = {state.name: state for state in program.matrices}
        #: Matrices (slots + 1, …), with the base model in slot 0.
        self._all = {
            name: np.zeros([int(size) for size in state.axes], np.float32)
            for name, state in kept.items()
        }
        #: Input and output size of each site.
        self.sites = {
            site: (self._all[site.inputs[0]].shape[1], self._all[site.inputs[1]].shape[2])
            for site in sites_of(kept)
        }
        program.retain(self._all)

    def write(self, slot: int, pairs: Pairs) -> None:
        """Set the matrices of an adapter slot that is not in use; other sites have none."""
        for site in self.sites:
            for name, matrix in zip(site.inputs, pairs.get(site, ()) or (None, None), strict=True):
                buffers = self._all[name][slot]
                buffers[...] = 0
                if matrix is not None:
                    buffers[: matrix.shape[0], : matrix.shape[1]] = matrix
        self._program.retain(self._all)

    def free(self, slot: int) -> None:
        """Free an adapter slot that is not in use: its matrices stay, unread, until another adapter takes it."""

    def given(self, slots: Sequence[int], rows: Sequence[int]) -> Mapping[str, Array]:
        """Return the adapter input of a call: the adapter slot of each row."""
        return {IDS: np.array(slots, np.int64)[:, None]}


def inputs_of(program: Program) -> RowInputs | SlotInputs:
    """Return the adapter inputs of a program, which are empty for a program without adapters."""
    return SlotInputs(program) if IDS in program.inputs else RowInputs(program)
