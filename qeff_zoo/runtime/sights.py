# SPDX-License-Identifier: Apache-2.0
"""What the pictures of a prompt are to a language model: rows of features in place of tokens, and where they lie."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from qeff_zoo.runtime.program import Array


@dataclass(frozen=True, kw_only=True, eq=False)
class Picture:
    """A picture as a vision program has read it.

    Args:
        digest: Of its pixels and its geometry.
        features: By input of the language program, (rows, width).
        grid: Time, height and width in rows of features; or tiles, and the rows and columns in which they lie.
        seconds: That it took to read it; 0 where it was known.
    """

    digest: bytes
    features: Mapping[str, Array]
    grid: tuple[int, int, int] = (1, 1, 1)
    seconds: float = 0.0

    @property
    def rows(self) -> int:
        """Placeholder tokens that it takes."""
        return len(next(iter(self.features.values())))

    @property
    def nbytes(self) -> int:
        """Memory of its features."""
        return sum(array.nbytes for array in self.features.values())


@dataclass(frozen=True, kw_only=True, eq=False)
class Sights:
    """The pictures of one prompt.

    Args:
        pictures: In the order of the prompt.
        starts: Position of the first placeholder of each.
        places: (rows,), positions of all placeholders, ascending.
        features: By input of the language program, (rows, width).
        axes: (3, tokens), rotary positions of the prompt's tokens; None of models whose RoPE has one axis.
        whole: Whether a picture must be in one call, since its tokens see one another.
    """

    pictures: tuple[Picture, ...]
    starts: tuple[int, ...]
    places: Array
    features: Mapping[str, Array]
    axes: Array | None = None
    whole: bool = False

    def end(self, start: int, stop: int) -> int:
        """Return where a call may end that is to end at `stop`: not within a picture that must be whole."""
        for picture, begun in zip(self.pictures, self.starts, strict=True):
            if self.whole and begun < stop < begun + picture.rows:
                return begun if begun > start else begun + picture.rows
        return stop

    def between(self, start: int, stop: int) -> tuple[Array, dict[str, Array]]:
        """Return of some positions the placeholders among them, counted from the first, and their rows."""
        first, last = np.searchsorted(self.places, (start, stop))
        rows = {name: array[first:last] for name, array in self.features.items()}
        return self.places[first:last] - start, rows

    def positions(self, start: int, stop: int) -> Array:
        """Return the rotary positions of tokens, (3, tokens); after the prompt they go on by one."""
        assert self.axes is not None
        known = self.axes[:, start:stop]
        if (more := stop - max(start, self.axes.shape[1])) <= 0:
            return known
        begun = int(self.axes.max()) + 1 + max(start - self.axes.shape[1], 0)
        behind = np.broadcast_to(np.arange(begun, begun + more), (len(known), more))
        return np.concatenate([known, behind], axis=1)

    def name(self, start: int, stop: int) -> bytes:
        """Tell the pictures that have placeholders at some positions from all others."""
        return b"".join(
            picture.digest
            for picture, begun in zip(self.pictures, self.starts, strict=True)
            if begun < stop and start < begun + picture.rows
        )


def arrange(
    tokens: Sequence[int],
    placeholder: int,
    pictures: Sequence[Picture],
    *,
    axes: int = 1,
    whole: bool = False,
) -> Sights | None:
    """Give the placeholders of a prompt, in their order, the rows of its pictures; None without any.

    Args:
        tokens: Of the prompt: as many placeholders as the pictures have rows.
        placeholder: Token id.
        pictures: In the order of the prompt.
        axes: Of rotary positions.
        whole: Whether a picture must be in one call.
    """
    if not pictures:
        return None
    places = np.flatnonzero(np.asarray(tokens) == placeholder)
    begins = np.cumsum([0, *(picture.rows for picture in pictures)])
    assert begins[-1] == len(places), f"{begins[-1]} rows for {len(places)} placeholders."
    starts = tuple(int(places[begun]) for begun in begins[:-1])
    names = pictures[0].features
    return Sights(
        pictures=tuple(pictures),
        starts=starts,
        places=places,
        features={name: np.concatenate([one.features[name] for one in pictures]) for name in names},
        axes=_axes(len(tokens), pictures, starts) if axes > 1 else None,
        whole=whole,
    )


def _axes(length: int, pictures: Sequence[Picture], starts: Sequence[int]) -> Array:
    """Count text by one; a picture's tokens by time, row and column, and on from the larger of its sides."""
    axes = np.zeros((3, length), np.int64)
    at = done = 0
    for picture, start in zip(pictures, starts, strict=True):
        axes[:, done:start] = np.arange(at, at + start - done)
        at += start - done
        lie = np.indices(picture.grid).reshape(3, -1)
        done = start + lie.shape[1]
        axes[:, start:done] = at + lie
        at += max(picture.grid[1:])
    axes[:, done:] = np.arange(at, at + length - done)
    return axes
