# SPDX-License-Identifier: Apache-2.0
"""Sample images or audio in token sequences of validation: noise, several sizes, always the same."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import cycle
from typing import Any

import numpy as np

from qeff_zoo.errors import CheckpointError, UnsupportedModelError
from qeff_zoo.multimodal.encoding.prepared import Prepared
from qeff_zoo.runtime.caches.feature_cache import RemoteEncoder
from qeff_zoo.tasks.multimodal.image_text_session import ImageTextToTextSession
from qeff_zoo.tasks.multimodal.session import MediaTextSession

#: Positions of the inputs in each sequence: two inputs, one, none, and again.
_PLACES = ((1, 3), (2,), ())
#: Height and width in feature rows, for vision encoders of any size.
_SIZES = ((2, 3), (3, 1), (1, 4), (2, 2))
#: Height and width in pixels, for processors that cut images into tiles or lines.
_PIXELS = ((24, 40), (41, 23), (30, 30), (23, 57))


def insert(
    session: MediaTextSession, sequences: Sequence[Sequence[int]], media: Iterator[Prepared]
) -> tuple[list[list[int]], list[list[Prepared]]]:
    """Put images or audio into sequences, as far as the context has room for them.

    Args:
        session: Session of the package.
        sequences: Token ids; they stay as long as they are, or end with an input and one more token.
        media: Encoder inputs without end.

    Returns:
        The sequences, and the inputs in each: none if the package has no program that encodes them.
    """
    positions = () if isinstance(session.reader, RemoteEncoder) else _PLACES
    reserved = {*_tokens(session.config), *session.media_tokens.placeholders}
    plain = next(token for token in range(1, session.decoder.vocab_size) if token not in reserved)
    filled: list[list[int]] = []
    inserted: list[list[Prepared]] = []
    for number, sequence in enumerate(sequences):
        text = [plain if token in reserved else token for token in sequence]
        whole: list[int] = []
        inputs: list[Prepared] = []
        done = 0
        for position in positions[number % len(_PLACES)] if positions else ():
            prepared = next(media)
            run = session.run_begun(*session.look([prepared]))
            between = (text + [plain] * position)[done:position]
            full = len(inputs) == session.most_parts > 0
            if full or len(whole) + len(between) + len(run) >= session.decoder.sizes.ctx_len:
                break
            whole += [*between, *run]
            inputs.append(prepared)
            done = position
        least = len(whole) + 1
        filled.append([*whole, *(text[done:] or [plain])][: max(len(text), least)])
        inserted.append(inputs)
    return filled, inserted


def images(session: Any) -> Iterator[Prepared]:
    """Yield images without end, as the image processor or, without its settings, `noise` returns them."""
    random = np.random.default_rng(0)
    if session.media.drawn_as_pixels:
        # Without settings of a processor there is one tile of each, as below.
        with suppress(CheckpointError, UnsupportedModelError):
            for size in cycle(_PIXELS):
                yield session.prepare(random.integers(0, 256, (*size, 3), np.uint8))
    for size in cycle(_SIZES):
        yield noise(session, size, random)


def videos(session: Any) -> Iterator[Prepared]:
    """Yield videos without end, all of one length: transformers pads the shorter ones of a batch."""
    random = np.random.default_rng(1)
    for size in cycle(_SIZES):
        yield session.media.sample_frame(session.reader, size, random)


def noise(
    session: ImageTextToTextSession, size: tuple[int, int], random: np.random.Generator
) -> Prepared:
    """Draw a random output of the image processor.

    Args:
        session: Session of the package.
        size: Height and width in feature rows, if the vision encoder takes any size.
        random: Generator of the values.
    """
    assert not isinstance(session.reader, RemoteEncoder)
    return session.media.sample(session.reader, size, random)


def _tokens(config: Mapping[str, Any]) -> Iterator[int]:
    """Yield the tokens that a config names, which the model's forward may treat differently."""
    for name, value in config.items():
        if isinstance(value, int) and name.endswith(("token_id", "token_index")):
            yield value
        elif isinstance(value, list) and name.endswith("token_ids"):
            yield from value
