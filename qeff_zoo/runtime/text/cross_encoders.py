# SPDX-License-Identifier: Apache-2.0
"""How a package of a CrossEncoder reads texts and pairs: by its prompt, its length, and its chat template."""

from dataclasses import replace

from qeff_zoo.checkpoint.sentence_transformers.cross_encoder import CrossEncoder
from qeff_zoo.checkpoint.sentence_transformers.settings import SentenceSettings
from qeff_zoo.runtime.text.chat_template import ChatTemplate
from qeff_zoo.runtime.text.pair_template import PairTemplate
from qeff_zoo.runtime.text.texts import TextReader


def reading_as(encoder: CrossEncoder, reader: TextReader, settings: SentenceSettings) -> TextReader:
    """Return a reader that reads texts and pairs as a CrossEncoder does.

    Args:
        encoder: Settings of the CrossEncoder.
        reader: Reader of the package.
        settings: Settings of sentence-transformers.

    Raises:
        GenerationError: The chat template does not write pairs.
    """
    length = reader.max_length
    if not encoder.truncates:
        length = reader.longest + 1  # a longer text is rejected
    elif encoder.max_length is not None:
        length = min(encoder.max_length, reader.longest)
    template = (
        PairTemplate.of(encoder, ChatTemplate.find(reader.folder))
        if encoder.writes_messages
        else None
    )
    prompt = settings.prompt(None, None)
    return replace(reader, max_length=length, prompt=prompt, template=template)
