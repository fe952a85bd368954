# SPDX-License-Identifier: Apache-2.0
"""Pictures or sounds for the token sequences that packages are validated on: noise, several sizes, always the same."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import cycle
from typing import Any

import numpy as np

from qeff_zoo.errors import CheckpointError, UnsupportedModelError
from qeff_zoo.media.crops import squares_of
from qeff_zoo.runtime.any_to_any import AnyToAnySession
from qeff_zoo.runtime.audio_text_to_text import AudioTextToTextSession
from qeff_zoo.runtime.feature_cache import RemoteEncoder
from qeff_zoo.runtime.image_prompt_templates import GRIDS
from qeff_zoo.runtime.image_text_to_text import ImageTextToTextSession
from qeff_zoo.runtime.media_text import MediaTextSession, Prepared
from qeff_zoo.runtime.vision_encoder import FILM_GRID, FILM_MERGE, FRAMES, GRID, KEPT, MERGE, PIXELS

#: Of each sequence, after how many of its tokens pictures or sounds begin: two, one, none, and again.
_PLACES = ((1, 3), (2,), ())
#: Height and width in rows of features, of towers that take any size.
_SIZES = ((2, 3), (3, 1), (1, 4), (2, 2))
#: Rows of features of a picture whose processor fills up the sequence of its patches.
_FILLED = 7
#: Height and width in pixels, of pictures whose own processor has to cut them into tiles or lines.
_PIXELS = ((24, 40), (41, 23), (30, 30), (23, 57))

#: Frames of a video.
_FILM = 2


def insert(
    session: MediaTextSession, sequences: Sequence[Sequence[int]]
) -> tuple[list[list[int]], list[list[Prepared]]]:
    """Put pictures or sounds into sequences, as far as the context has room for them.

    Args:
        session: Of the package.
        sequences: Token ids; they stay as long as they are, or end with one of them and one more token.

    Returns:
        The sequences, and what was put into each: nothing of a package that has no program which reads it.
    """
    places = () if isinstance(session.reader, RemoteEncoder) else _PLACES
    every = _drawn(session)
    reserved = {*_tokens(session.config), *session.placeholders}
    plain = next(token for token in range(1, session.decoder.vocab_size) if token not in reserved)
    filled: list[list[int]] = []
    shown: list[list[Prepared]] = []
    for number, sequence in enumerate(sequences):
        text = [plain if token in reserved else token for token in sequence]
        whole: list[int] = []
        found: list[Prepared] = []
        done = 0
        for place in places[number % len(_PLACES)] if places else ():
            one = next(every)
            run = session.run_begun(*session.look([one]))
            between = (text + [plain] * place)[done:place]
            full = len(found) == session.most_parts > 0
            if full or len(whole) + len(between) + len(run) >= session.decoder.sizes.ctx_len:
                break
            whole += [*between, *run]
            found.append(one)
            done = place
        least = len(whole) + 1
        filled.append([*whole, *(text[done:] or [plain])][: max(len(text), least)])
        shown.append(found)
    return filled, shown


def _drawn(session: MediaTextSession) -> Iterator[Prepared]:
    """Draw pictures or sounds without end; both, so that each is before the other in some sequence."""
    if isinstance(session, AudioTextToTextSession):
        yield from session.media.samples(session.reader.shape)
    elif isinstance(session, AnyToAnySession):
        seen, heard = _pictures(session), session.audio.samples(session.hearing.shape)
        for every in cycle([seen, heard, heard, heard, seen, seen]):
            yield next(every)
    elif getattr(session.reader, "has_frames", False):
        seen, films = _pictures(session), _films(session)
        for every in cycle([seen, films, films]):
            yield next(every)
    else:
        yield from _pictures(session)


def _pictures(session: Any) -> Iterator[Prepared]:
    random = np.random.default_rng(0)
    if session.media.layout or session.media.crossing or session.media.column:
        # Without settings of a processor there is one tile of each, as below.
        with suppress(CheckpointError, UnsupportedModelError):
            for size in cycle(_PIXELS):
                yield session.prepare(random.integers(0, 256, (*size, 3), np.uint8))
    for size in cycle(_SIZES):
        yield noise(session, size, random)


def _films(session: Any) -> Iterator[Prepared]:
    """Draw videos, all as long: where prompts are rows of one call, transformers fills up the shorter ones."""
    random, shape = np.random.default_rng(1), session.reader.program.inputs[PIXELS].shape[1:]
    if merge := session.media.video_merge:
        for rows, columns in cycle(_SIZES):
            count, kept = rows * columns, np.arange(rows * columns) > 0
            yield {
                FRAMES: random.standard_normal((count * merge**2, *shape), np.float32), KEPT: kept,
                FILM_GRID: np.array([[1, rows * merge, columns * merge]]), FILM_MERGE: np.array([merge]),
            }  # fmt: skip
    while True:
        yield {FRAMES: random.standard_normal((1, _FILM, *shape), np.float32)}


def noise(
    session: ImageTextToTextSession, size: tuple[int, int], random: np.random.Generator
) -> Prepared:
    """Draw what a processor could have prepared.

    Args:
        session: Of the package.
        size: Height and width in rows of features, where the tower takes any.
        random: Draws.
    """
    assert not isinstance(session.reader, RemoteEncoder)
    if name := session.media.pixels:  # the whole picture, and one tile of the same size
        mask = session.media.mask
        sides, patches = (session.reader.program.inputs[one].shape[1:] for one in (name, mask))
        return {
            name: random.standard_normal((1, 2, *sides), np.float32),
            "image_sizes": np.array([sides[1:]]),
            mask: np.ones((1, 2, *patches), np.int64),
        }
    tower, found = getattr(session.reader, "tower", None), dict[str, Any]()
    tensor = session.reader.program.inputs["pixel_values"]
    shape = [one for one in tensor.shape if isinstance(one, int)]
    real: list[int] = []
    if session.media.sized:  # no whole patches
        vision = session.config["vision_config"]
        patch = int(vision["patch_size"])
        real = [min((one + 1) * patch + 1, int(vision["image_size"])) for one in size]
        shape += [int(vision["image_size"])] * 2 if session.media.filled else real
    if session.media.nested:
        shape = [1, *shape]
    if session.media.towerless:
        found["grids"] = np.array([size])
        shape = [math.prod(size), *shape]
    if name := session.media.pooled:
        side = math.isqrt(shape[0])
        squares, grid = squares_of(np.arange(side**2).reshape(side, side), (2, 2))
        found[name] = np.concatenate([squares, np.where(squares < 0, -1, squares + side**2)])
        found[GRIDS] = np.array([[*grid, *grid]])
        shape = [2, *shape]
    if (name := session.media.mask) and tower is None:
        sized = session.media.sized
        of = (*shape[:-3], *shape[-2:]) if sized else shape[:-3]
        found[name] = np.ones(of, np.int64 if sized else bool)
        if real:
            found[name][..., real[0] :, :] = found[name][..., real[1] :] = 0
    if tower is not None:
        height, width = (one * tower.merge for one in size)
        found[GRID] = np.array([[1, height, width]])
        if merge := session.media.merge:
            found[MERGE] = np.array([merge])
        shape = [height * width, *shape]
        if tower.positions:
            rows, columns = np.indices((height, width)).reshape(2, -1)
            found[tower.positions] = np.stack([columns, rows], 1)[None]
            shape = [1, *shape]
        if name := session.media.packed:
            found[name] = found.pop(GRID)[:, 1:]
            count, channels, side = shape[:3]
            shape = [1, channels, side, count * side]
        if name := session.media.shapes:
            shape = [1, _FILLED * tower.merge**2, *shape[1:]]
            found[name] = found.pop(GRID)[:, 1:]
            there = np.arange(shape[1]) < height * width
            found[session.media.mask] = there[None].astype(np.int64)
    found["pixel_values"] = random.standard_normal(shape, np.float32)
    told = {name: one for name, one in session.reader.program.inputs.items() if name not in found}
    if session.media.fine:
        finer = {name: one.shape for name, one in told.items() if name.endswith(PIXELS)}
        found |= {name: random.standard_normal(shape, np.float32) for name, shape in finer.items()}
    if session.media.crossing:  # all of its tiles, in the first of the ways in which they may lie
        found |= {name: np.ones(one.shape, np.int64) for name, one in told.items()}
    return found


def _tokens(config: Mapping[str, Any]) -> Iterator[int]:
    """Return the tokens that a config names, which mean something to the model's forward."""
    for name, value in config.items():
        if isinstance(value, int) and name.endswith(("token_id", "token_index")):
            yield value
        elif isinstance(value, list) and name.endswith("token_ids"):
            yield from value
