# SPDX-License-Identifier: Apache-2.0
"""Sample texts and prompts of encoder-decoders for validation, of all lengths that the encoder reads."""

from collections.abc import Sequence

from qeff_zoo.package.files import read_json
from qeff_zoo.validation.trial.sample_texts import draw

from .image_to_text_session import ImageToTextSession
from .session import WritingSession
from .text2text_session import Text2TextSession


def with_sources(
    sequences: Sequence[Sequence[int]], session: Text2TextSession
) -> tuple[list[list[int]], list[list[int]]]:
    """Return sequences, and a text that each is written of: of all lengths that the encoder reads.

    Where they are random, none has the token of padding, which some models do not count.
    """
    longest, vocab_size = session.sources.longest, session.decoder.vocab_size
    lengths = [
        (longest, longest // 2 + 1, 1, longest // 3 + 1)[n % 4] for n in range(len(sequences))
    ]
    sources = draw(lengths, session.tokenizer, vocab_size, whole=True)
    return without_padding(sequences, session), without_padding(sources, session)


def behind_images(images: Sequence[Sequence[int]], session: ImageToTextSession) -> list[list[int]]:
    """Return images, as arguments of `sample_images.draw`, each before the tokens of a prompt of another length.

    None of those is of padding, and none stands for an image but in its places.
    """
    assert session.prompts
    room, placeholder = session.sources.longest - session.prompts.rows, session.prompts.placeholder
    lengths = [(room, room // 2 + 1, 1, room // 3 + 1)[n % 4] for n in range(len(images))]
    drawn = draw(lengths, session.tokenizer, session.decoder.vocab_size, whole=True)
    plain = without_padding(drawn, session)
    spare = next(token for token in plain[0] if token != placeholder)
    prompts = [[spare if token == placeholder else token for token in one] for one in plain]
    sequences = [session.prompts.tokens(prompt, lambda _: []) for prompt in prompts]
    return [[*image, *tokens] for image, tokens in zip(images, sequences, strict=True)]


def without_padding(sequences: Sequence[Sequence[int]], session: WritingSession) -> list[list[int]]:
    """Return sequences with another token in place of that of padding."""
    config = read_json(session.folder / "config.json")
    text = config.get("decoder") or config.get("text_config") or config
    padding = text.get("pad_token_id")
    plain = next(token for token in range(session.decoder.vocab_size) if token != padding)
    return [[plain if token == padding else token for token in sequence] for sequence in sequences]
