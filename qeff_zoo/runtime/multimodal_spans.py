# SPDX-License-Identifier: Apache-2.0
"""What the pictures or sounds of a prompt are to a language model: rows of features in place of tokens, and where."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from qeff_zoo.runtime.program import Array

Kind: TypeAlias = Literal["pictures", "sounds"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Encoded:
    """A picture or a sound as a program has read it.

    Args:
        digest: Of all that was read of it.
        features: By input of the language program, (rows, width).
        grid: Time, height and width in rows of features; or tiles, and the rows and columns in which they lie.
        seconds: That it took to read it; 0 where it was known.
        kind: What it is counted with.
        times: Rotary position of each step of a video, counted from its first; nothing where they follow one another.
        numbered: Whether it counts where pictures of a prompt have numbers.
        of_video: Whether it is a video whose frames a program of their own has read; its tokens are those of videos.
        span: Rotary positions up to what follows it; 0 for as many as the longer of its sides has.
    """

    digest: bytes
    features: Mapping[str, Array]
    grid: tuple[int, int, int] = (1, 1, 1)
    seconds: float = 0.0
    kind: Kind = "pictures"
    times: Array | None = None
    span: int = 0
    numbered: bool = True
    of_video: bool = False

    @property
    def rows(self) -> int:
        """Placeholder tokens that it takes."""
        return len(next(iter(self.features.values())))

    @property
    def nbytes(self) -> int:
        """Memory of its features."""
        return sum(array.nbytes for array in self.features.values())


@dataclass(frozen=True, kw_only=True, eq=False)
class CrossAttentionImage(Encoded):
    """A picture that a text reads by cross-attention: keys and values, (heads, rows, head_dim), of some layers.

    Args:
        tiles: (tiles,), which of those that were read are there, and do not fill up.
    """

    tiles: Array

    @property
    def rows(self) -> int:
        """One token says where it is, whose embedding is its own."""
        return 1


@dataclass(frozen=True, kw_only=True, eq=False)
class RawImage(Encoded):
    """A picture that the language program reads itself: in place of features, what a processor has prepared.

    Args:
        count: Placeholder tokens that it takes.
    """

    count: int

    @property
    def rows(self) -> int:
        """Placeholder tokens that it takes."""
        return self.count


@dataclass(frozen=True, kw_only=True, eq=False)
class MultimodalSpans:
    """The pictures or sounds of one prompt.

    Args:
        parts: In the order of the prompt.
        starts: Position of the first placeholder of each.
        places: (rows,), positions of all placeholders, ascending.
        features: By input of the language program, (rows, width).
        axes: (3, tokens), rotary positions of the prompt's tokens; None of models whose RoPE has one axis.
        stretches: Where tokens begin and end that see one another, so that they must be in one call.
        mutual: Positions of the tokens that do, where they are not all placeholders, or others.
        prompt: Names the tokens up to the end of a stretch that has all pictures of the prompt; nothing of others.
    """

    parts: tuple[Encoded, ...]
    starts: tuple[int, ...]
    places: Array
    features: Mapping[str, Array]
    axes: Array | None = None
    stretches: tuple[tuple[int, int], ...] = ()
    mutual: Array | None = None
    prompt: bytes = b""

    @property
    def together(self) -> Array:
        """Positions of the tokens that see others of their stretch."""
        return self.places if self.mutual is None else self.mutual

    @property
    def by_grid(self) -> bool:
        """Whether features and grids say all.

        Nothing is a state, no time counts otherwise than by steps, and where tokens see one another, all do that have
        rows.
        """
        alike = self.mutual is None or all(part.kind == "pictures" for part in self.parts)
        return alike and all(part.times is None and not part.span for part in self.parts)

    def end(self, start: int, stop: int) -> int:
        """Return where a call may end that is to end at `stop`: not within a stretch that must be whole."""
        for begun, ended in self.stretches:
            if begun < stop < ended:
                return begun if begun > start else ended
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
        # As `generate` does: from the last token, also where the time of a video went beyond it.
        begun = int(self.axes[:, -1].max()) + 1 + max(start - self.axes.shape[1], 0)
        behind = np.broadcast_to(np.arange(begun, begun + more), (len(known), more))
        return np.concatenate([known, behind], axis=1)

    def name(self, start: int, stop: int) -> bytes:
        """Tell what tokens at some positions see from all else: the parts among them, or all of the prompt's."""
        if self.prompt and start < self.stretches[0][1] and stop > self.stretches[0][0]:
            return b"".join((self.prompt, *(part.digest for part in self.parts)))
        return b"".join(
            part.digest
            for part, begun in zip(self.parts, self.starts, strict=True)
            if begun < stop and start < begun + part.rows
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Views(MultimodalSpans):
    """Pictures that the text of a prompt reads by cross-attention."""

    parts: tuple[CrossAttentionImage, ...]
    by_grid = False

    def seen(self, start: int, stop: int, most: int) -> Array:
        """Tell which tiles the tokens at some positions see, (tokens, most, tiles).

        A picture is seen from its own token to that of the next one; several whose tokens follow one another are seen
        together.

        Args:
            start: Position of the first token.
            stop: Position after the last.
            most: Pictures that there may be.

        Returns:
            1 for a tile that is seen, 0 for another of the prompt's pictures, -1 where there is no picture.
        """
        tokens = np.arange(start, stop)
        seen = np.full((stop - start, most, len(self.parts[0].tiles)), -1, np.int64)
        end = np.iinfo(np.int64).max
        following = [*self.starts[1:], end]
        for place in reversed(range(len(self.parts))):
            begun, following_one = self.starts[place], following[place]
            end = end if following_one == begun + 1 else following_one
            visible = (tokens >= begun) & (tokens < end)
            seen[:, place] = visible[:, None] & self.parts[place].tiles
        return seen

    def name(self, start: int, stop: int) -> bytes:
        """Tokens before the first picture attend to all of them, and those behind to what came of them."""
        return b"".join(part.digest for part in self.parts)


def arrange(
    tokens: Sequence[int],
    placeholders: Collection[int],
    parts: Sequence[Encoded],
    *,
    axes: int = 1,
    whole: str = "",
    prompt: int | None = None,
    among: Collection[int] = (),
) -> MultimodalSpans | None:
    """Give the placeholders of a prompt, in their order, the rows of its parts; None without any.

    Args:
        tokens: Of the prompt: as many placeholders as the parts have rows.
        placeholders: Ids of the tokens that have rows.
        parts: In the order of the prompt.
        axes: Of rotary positions.
        whole: What must be in one call, as a recipe says.
        prompt: Tokens that the prompt has; as many as end with its last picture, where it is not told.
        among: Ids of further tokens that see placeholders and are seen by them.
    """
    if not parts:
        return None
    places = np.flatnonzero(np.isin(tokens, [*placeholders]))
    begins = np.cumsum([0, *(part.rows for part in parts)])
    assert begins[-1] == len(places), f"{begins[-1]} rows for {len(places)} placeholders."
    starts = tuple(int(places[begun]) for begun in begins[:-1])
    if isinstance(parts[0], CrossAttentionImage):
        views = [part for part in parts if isinstance(part, CrossAttentionImage)]
        return Views(parts=tuple(views), starts=starts, places=places, features={})
    names = () if isinstance(parts[0], RawImage) else parts[0].features
    # Tokens of a sound are seen by those that follow them alone.
    stretches = [
        (start, start + one.rows)
        for start, one in zip(starts, parts, strict=True)
        if one.kind == "pictures"
    ]
    mutual = None
    if whole == "image" and len(stretches) < len(parts):
        mutual = np.array([place for span in stretches for place in range(*span)], np.int64)
    elif whole == "images":
        mutual = np.flatnonzero(np.isin(tokens, [*placeholders, *among]))
        stretches = [(int(mutual[0]), int(mutual[-1]) + 1)]
    elif whole == "prompt":
        mutual = np.arange(stretches[-1][1] if prompt is None else prompt)
        stretches = [(0, len(mutual))]
    return MultimodalSpans(
        parts=tuple(parts),
        starts=starts,
        places=places,
        features={name: np.concatenate([one.features[name] for one in parts]) for name in names},
        axes=_axes(len(tokens), parts, starts) if axes > 1 else None,
        stretches=tuple(stretches) if whole else (),
        mutual=mutual,
        prompt=_digest(tokens[: stretches[0][1]]) if whole in ("images", "prompt") else b"",
    )


def _digest(tokens: Sequence[int]) -> bytes:
    return hashlib.blake2b(np.asarray(tokens, np.int64).tobytes(), digest_size=32).digest()


def _axes(length: int, pictures: Sequence[Encoded], starts: Sequence[int]) -> Array:
    """Count text by one; a picture's tokens by time, row and column, and on from where it ends."""
    axes = np.zeros((3, length), np.int64)
    at = done = 0
    for picture, start in zip(pictures, starts, strict=True):
        axes[:, done:start] = np.arange(at, at + start - done)
        at += start - done
        lie = np.indices(picture.grid).reshape(3, -1)
        if picture.times is not None:
            lie[0] = picture.times[lie[0]]
        done = start + lie.shape[1]
        axes[:, start:done] = at + lie
        at += picture.span or max(picture.grid[1:])
    axes[:, done:] = np.arange(at, at + length - done)
    return axes
