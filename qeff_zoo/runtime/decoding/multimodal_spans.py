# SPDX-License-Identifier: Apache-2.0
"""Images or audio of a prompt for the language model: features that replace token embeddings, and positions."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.program import Array

Kind: TypeAlias = Literal["images", "audio"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Encoded:
    """Image or audio input, encoded by a program.

    Args:
        digest: Digest of all encoder inputs.
        features: Features by input of the language program, (placeholder tokens, width).
        grid: Time, height and width in image tokens; or the number of tiles, and their rows and columns.
        seconds: Encoding time; 0 for cached features.
        kind: Modality, for statistics.
        times: Rotary positions of a video's temporal steps, relative to the first; None if they are consecutive.
        numbered: Whether it counts in the numbering of a prompt's images.
        of_video: Whether it is a video whose frames a separate program encoded, with the placeholder tokens of
            videos.
        span: Number of rotary positions up to the following token; 0 for the longer side of the grid.
    """

    digest: bytes
    features: Mapping[str, Array]
    grid: tuple[int, int, int] = (1, 1, 1)
    seconds: float = 0.0
    kind: Kind = "images"
    times: Array | None = None
    span: int = 0
    numbered: bool = True
    of_video: bool = False

    @property
    def rows(self) -> int:
        """Number of placeholder tokens."""
        return len(next(iter(self.features.values())))

    @property
    def nbytes(self) -> int:
        """Bytes of the features."""
        return sum(array.nbytes for array in self.features.values())


@dataclass(frozen=True, kw_only=True, eq=False)
class CrossAttentionImage(Encoded):
    """Image for cross-attention: keys and values, (heads, image tokens, head_dim), of some layers.

    Args:
        tiles: Mask (tiles,) of tiles without padding tiles.
    """

    tiles: Array

    @property
    def rows(self) -> int:
        """Number of placeholder tokens: one, which keeps its embedding."""
        return 1


@dataclass(frozen=True, kw_only=True, eq=False)
class RawImage(Encoded):
    """Image that the language program encodes itself: the output of a processor in place of features.

    Args:
        count: Number of placeholder tokens.
    """

    count: int

    @property
    def rows(self) -> int:
        """Number of placeholder tokens."""
        return self.count


@dataclass(frozen=True, kw_only=True, eq=False)
class MultimodalSpans:
    """Images or audio of one prompt.

    Args:
        parts: Encoded images or audio in the order of the prompt.
        starts: Position of the first placeholder token of each.
        places: Positions of all placeholder tokens (n,), ascending.
        features: Features by input of the language program, (n, width).
        axes: Rotary positions of the prompt's tokens (3, tokens); None for models with a single RoPE axis.
        stretches: Start and end of spans with bidirectional attention, which must be in one call.
        mutual: Positions of tokens with bidirectional attention, if these are not exactly the placeholder tokens.
        prompt: Digest of the tokens up to the end of a span over all images of the prompt; empty for other spans.
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
        """Positions of tokens with bidirectional attention in their span."""
        return self.places if self.mutual is None else self.mutual

    @property
    def by_grid(self) -> bool:
        """Whether features and grids determine everything.

        No part is a state, rotary positions of time are consecutive, and bidirectional attention, if any, covers all
        placeholder tokens.
        """
        alike = self.mutual is None or all(part.kind == "images" for part in self.parts)
        return alike and all(part.times is None and not part.span for part in self.parts)

    def end(self, start: int, stop: int) -> int:
        """Return the end of a call that should end at `stop`, outside of spans that must be whole."""
        for begun, ended in self.stretches:
            if begun < stop < ended:
                return begun if begun > start else ended
        return stop

    def between(self, start: int, stop: int) -> tuple[Array, dict[str, Array]]:
        """Return the placeholder tokens in a range, relative to its start, and their features."""
        first, last = np.searchsorted(self.places, (start, stop))
        rows = {name: array[first:last] for name, array in self.features.items()}
        return self.places[first:last] - start, rows

    def positions(self, start: int, stop: int) -> Array:
        """Return the rotary positions of tokens, (3, tokens); after the prompt they increase by one."""
        assert self.axes is not None
        known = self.axes[:, start:stop]
        if (more := stop - max(start, self.axes.shape[1])) <= 0:
            return known
        # As in `generate`: from the last token, even if the time of a video exceeds it.
        begun = int(self.axes[:, -1].max()) + 1 + max(start - self.axes.shape[1], 0)
        behind = np.broadcast_to(np.arange(begun, begun + more), (len(known), more))
        return np.concatenate([known, behind], axis=1)

    def name(self, start: int, stop: int) -> bytes:
        """Return the digest of the media that tokens in a range attend to: parts in it, or all of the prompt."""
        if self.prompt and start < self.stretches[0][1] and stop > self.stretches[0][0]:
            return b"".join((self.prompt, *(part.digest for part in self.parts)))
        return b"".join(
            part.digest
            for part, begun in zip(self.parts, self.starts, strict=True)
            if begun < stop and start < begun + part.rows
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Views(MultimodalSpans):
    """Images of a prompt for cross-attention."""

    parts: tuple[CrossAttentionImage, ...]
    by_grid = False

    def tile_mask(self, start: int, stop: int, most: int) -> Array:
        """Return the image tiles that tokens in a range attend to, (tokens, most, tiles).

        Tokens attend to an image from its placeholder token to that of the next one; images with adjacent placeholder
        tokens are attended to together.

        Args:
            start: Position of the first token.
            stop: Position after the last token.
            most: Maximum number of images.

        Returns:
            A mask with 1 for an attended tile, 0 for other tiles of the prompt's images, -1 without an image.
        """
        tokens = np.arange(start, stop)
        mask = np.full((stop - start, most, len(self.parts[0].tiles)), -1, np.int64)
        end = np.iinfo(np.int64).max
        following = [*self.starts[1:], end]
        for number in reversed(range(len(self.parts))):
            begun, following_one = self.starts[number], following[number]
            end = end if following_one == begun + 1 else following_one
            visible = (tokens >= begun) & (tokens < end)
            mask[:, number] = visible[:, None] & self.parts[number].tiles
        return mask

    def name(self, start: int, stop: int) -> bytes:
        """Return the digest of all images: tokens before the first attend to all, later tokens to their states."""
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
    """Return the features of a prompt's images or audio at its placeholder tokens; None without any.

    Args:
        tokens: Token ids of the prompt, with as many placeholder tokens as features.
        placeholders: Ids of placeholder tokens.
        parts: Encoded images or audio in the order of the prompt.
        axes: Number of RoPE axes.
        whole: Extent of bidirectional attention in the recipe, which must be in one call.
        prompt: Number of tokens in the prompt; by default it ends with the last image.
        among: Ids of further tokens with bidirectional attention to placeholder tokens.

    Raises:
        GenerationError: The numbers of placeholder tokens and of features differ.
    """
    if not parts:
        return None
    positions = np.flatnonzero(np.isin(tokens, [*placeholders]))
    begins = np.cumsum([0, *(part.rows for part in parts)])
    if begins[-1] != len(positions):
        raise GenerationError(
            f"The prompt has {len(positions)} placeholder tokens, and {begins[-1]} rows of features; expected as many "
            "of both. The processor of the checkpoint uses that token for something else, too: correct its settings in "
            "processor_config.json, and build again."
        )
    starts = tuple(int(positions[begun]) for begun in begins[:-1])
    if isinstance(parts[0], CrossAttentionImage):
        views = [part for part in parts if isinstance(part, CrossAttentionImage)]
        return Views(parts=tuple(views), starts=starts, places=positions, features={})
    names = () if isinstance(parts[0], RawImage) else parts[0].features
    # Audio tokens have causal attention.
    stretches = [
        (start, start + part.rows)
        for start, part in zip(starts, parts, strict=True)
        if part.kind == "images"
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
        places=positions,
        features={name: np.concatenate([part.features[name] for part in parts]) for name in names},
        axes=_axes(len(tokens), parts, starts) if axes > 1 else None,
        stretches=tuple(stretches) if whole else (),
        mutual=mutual,
        prompt=_digest(tokens[: stretches[0][1]]) if whole in ("images", "prompt") else b"",
    )


def _digest(tokens: Sequence[int]) -> bytes:
    return hashlib.blake2b(np.asarray(tokens, np.int64).tobytes(), digest_size=32).digest()


def _axes(length: int, images: Sequence[Encoded], starts: Sequence[int]) -> Array:
    """Return rotary positions: consecutive for text; time, row and column for image tokens."""
    axes = np.zeros((3, length), np.int64)
    at = done = 0
    for image, start in zip(images, starts, strict=True):
        axes[:, done:start] = np.arange(at, at + start - done)
        at += start - done
        lie = np.indices(image.grid).reshape(3, -1)
        if image.times is not None:
            lie[0] = image.times[lie[0]]
        done = start + lie.shape[1]
        axes[:, start:done] = at + lie
        at += image.span or max(image.grid[1:])
    axes[:, done:] = np.arange(at, at + length - done)
    return axes
