# SPDX-License-Identifier: Apache-2.0
"""Sample images or audio in token sequences of validation: noise, several sizes, always the same."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import cycle
from typing import Any

import numpy as np

from qeff_zoo.errors import CheckpointError, UnsupportedModelError
from qeff_zoo.runtime.any_to_any import AnyToAnySession
from qeff_zoo.runtime.audio_text_to_text import AudioTextToTextSession
from qeff_zoo.runtime.feature_cache import RemoteEncoder
from qeff_zoo.runtime.image_text_to_text import ImageTextToTextSession
from qeff_zoo.runtime.media_text import MediaTextSession, Prepared

#: Of each sequence, after how many of its tokens pictures or sounds begin: two, one, none, and again.
_PLACES = ((1, 3), (2,), ())
#: Height and width in rows of features, of towers that take any size.
_SIZES = ((2, 3), (3, 1), (1, 4), (2, 2))
#: Height and width in pixels, of pictures whose own processor has to cut them into tiles or lines.
_PIXELS = ((24, 40), (41, 23), (30, 30), (23, 57))


def insert(
    session: MediaTextSession, sequences: Sequence[Sequence[int]]
) -> tuple[list[list[int]], list[list[Prepared]]]:
    """Put images or audio into sequences, as far as the context has room for them.

    Args:
        session: Session of the package.
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
    """Yield images or audio without end; both in turns, so that each precedes the other in some sequence."""
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
    if session.media.drawn_as_pixels:
        # Without settings of a processor there is one tile of each, as below.
        with suppress(CheckpointError, UnsupportedModelError):
            for size in cycle(_PIXELS):
                yield session.prepare(random.integers(0, 256, (*size, 3), np.uint8))
    for size in cycle(_SIZES):
        yield noise(session, size, random)


def _films(session: Any) -> Iterator[Prepared]:
    """Draw videos, all as long: where prompts are rows of one call, transformers fills up the shorter ones."""
    random = np.random.default_rng(1)
    for size in cycle(_SIZES):
        yield session.media.sample_frame(session.reader, size, random)


def noise(
    session: ImageTextToTextSession, size: tuple[int, int], random: np.random.Generator
) -> Prepared:
    """Draw what a processor could have prepared.

    Args:
        session: Session of the package.
        size: Height and width in rows of features, where the tower takes any.
        random: Draws.
    """
    assert not isinstance(session.reader, RemoteEncoder)
    return session.media.sample(session.reader, size, random)


def _tokens(config: Mapping[str, Any]) -> Iterator[int]:
    """Return the tokens that a config names, which mean something to the model's forward."""
    for name, value in config.items():
        if isinstance(value, int) and name.endswith(("token_id", "token_index")):
            yield value
        elif isinstance(value, list) and name.endswith("token_ids"):
            yield from value
