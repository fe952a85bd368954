# SPDX-License-Identifier: Apache-2.0
"""Damage to the calls of a decoder: tokens, positions and states of batch slots."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from qeff_zoo.runtime.decoding.decoder import Decoder

#: Function of a decoder, a slot and its piece of a call: returns a changed piece, or the same object for no change.
Change = Callable[[Decoder, int, Any], Any]
#: First slot of those that only a single validation stage uses.
_FIRST = 4


@dataclass
class Applied:
    """Count of the changed pieces."""

    count: int = 0


def _later(when: Callable[[Any], bool], by: int = 1) -> Change:
    def change(decoder: Decoder, slot: int, piece: Any) -> Any:
        fits = piece.start + len(piece.tokens) + by <= decoder.sizes.ctx_len
        return piece._replace(start=piece.start + by) if when(piece) and fits else piece

    return change


def _overwritten(layers: int | None) -> Change:
    def change(decoder: Decoder, slot: int, piece: Any) -> Any:
        if piece.start <= 4:
            return piece
        for name in _keys(decoder)[:layers]:
            decoder.states[name][slot, :, 3] = decoder.states[name][slot, :, 2]
        return piece._replace()

    return change


def _keys(decoder: Decoder) -> list[str]:
    return [name for name in decoder.states if name.startswith("past_key")]


def _other_first_token(decoder: Decoder, slot: int, piece: Any) -> Any:
    if piece.start or len(piece.tokens) == 1:
        return piece
    return piece._replace(tokens=[piece.tokens[1], *piece.tokens[1:]])


def _other_last_token(decoder: Decoder, slot: int, piece: Any) -> Any:
    if slot < _FIRST:
        return piece
    return piece._replace(tokens=[*piece.tokens[:-1], (piece.tokens[-1] + 1) % decoder.vocab_size])


def _without_state(decoder: Decoder, slot: int, piece: Any) -> Any:
    """Clear the state of one layer in a late slot."""
    if slot < _FIRST or not piece.start:
        return piece
    decoder.states[_keys(decoder)[-1]][slot] = 0
    return piece._replace()


def _of_another(decoder: Decoder, slot: int, piece: Any) -> Any:
    """Copy the states of the first slot to a late slot."""
    if slot < _FIRST or not piece.start:
        return piece
    for state in decoder.states.values():
        state[slot] = state[0]
    return piece._replace()


CALL_FAULTS: Mapping[str, Change] = {
    "position +1 while decoding": _later(lambda one: one.start > 0 and len(one.tokens) == 1),
    "three rows of padding seen while decoding": _later(
        lambda one: one.start > 0 and len(one.tokens) == 1, by=3
    ),
    "position +1 from the second chunk on": _later(
        lambda one: one.start > 0 and len(one.tokens) > 1
    ),
    "a row of keys overwritten, one layer": _overwritten(1),
    "a row of keys overwritten, all layers": _overwritten(None),
    "another first token": _other_first_token,
}
#: Faults of packages with more than four slots.
SLOT_FAULTS: Mapping[str, Change] = {
    "another token, slots from 4 on": _other_last_token,
    "keys of one layer forgotten, slots from 4 on": _without_state,
    "states of slot 0, slots from 4 on": _of_another,
}


@contextmanager
def changed_calls(change: Change) -> Iterator[Applied]:
    """Change the pieces of calls within the context; count the changes."""
    right, applied = Decoder._call, Applied()

    def call(self: Decoder, pieces: Mapping[int, Any], rows: Any, *more: Any) -> Any:
        changed = {
            row: change(self, row, piece) if row in rows else piece for row, piece in pieces.items()
        }
        applied.count += sum(changed[row] is not pieces[row] for row in rows)
        return right(self, changed, rows, *more)

    Decoder._call = call  # type: ignore[method-assign, assignment]
    try:
        yield applied
    finally:
        Decoder._call = right  # type: ignore[method-assign]
