# SPDX-License-Identifier: Apache-2.0
"""Sample texts or images through an encoder, and sample texts through the decoder that attends to them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qeff_zoo.runtime.decoding.encoder_inputs import ImagePrompt
from qeff_zoo.runtime.engine.answers import Request
from qeff_zoo.tasks.encoder_decoder.image_to_text_session import ImageToTextSession
from qeff_zoo.tasks.encoder_decoder.text2text_session import Text2TextSession
from qeff_zoo.tasks.text_generation.trial import DecoderTrial
from qeff_zoo.validation.trial import cases, sample_images

from . import samples


class Text2TextTrial(DecoderTrial):
    """Runs an encoder-decoder on sample texts.

    Args:
        session: Session of the package.
    """

    session: Text2TextSession

    def draw(self, stages: Sequence[cases.Stage]) -> None:
        """Set the stages, the tokens of each sequence, and its source text."""
        super().draw(stages)
        self.sequences, self._sources = samples.with_sources(self.sequences, self.session)

    def begin(self, spans: Sequence[cases.Span]) -> None:
        """Encode the texts of sequences that begin."""
        self.session.sources.read({span.row: self._sources[span.sequence] for span in spans})

    def begin_any(self) -> None:
        """Encode one token."""
        self.session.sources.read({0: [0]})

    def source_length(self, row: int) -> int:
        """Return how many encoder outputs a row attends to."""
        return self.session.sources.lengths[row]

    def request(self, prompt: list[int], length: int) -> Request:
        """Return a request with the source text of the first sequence."""
        return replace(super().request(prompt, length), source=tuple(self._sources[0]))

    def about(self) -> Mapping[str, Any]:
        """Return the source texts."""
        return {"sources": self._sources}


class ImageToTextTrial(DecoderTrial):
    """Runs an image encoder and a decoder on sample images, with a prompt if the encoder reads one.

    Args:
        session: Session of the package.
    """

    session: ImageToTextSession

    def draw(self, stages: Sequence[cases.Stage]) -> None:
        """Set the stages, the tokens of each sequence, its image, and the encoder prompt."""
        super().draw(stages)
        session = self.session
        self.sequences = samples.without_padding(self.sequences, session)
        self._sources = sample_images.choose(len(self.sequences))
        if session.prompts:
            self._sources = samples.behind_images(self._sources, session)

    def begin(self, spans: Sequence[cases.Span]) -> None:
        """Encode the images of sequences that begin."""
        self.session.sources.read({span.row: self._read(span.sequence) for span in spans})

    def begin_any(self) -> None:
        """Encode one image of four pixels."""
        session = self.session
        image = session.prepare(np.zeros((2, 2, 3), np.uint8))
        tokens = session.prompts.tokens([0], lambda _: []) if session.prompts else []
        session.sources.read({0: ImagePrompt(tokens, image) if tokens else image})

    def source_length(self, row: int) -> int:
        """Return how many encoder outputs a row attends to."""
        return self.session.sources.lengths[row]

    def request(self, prompt: list[int], length: int) -> Request:
        """Return a request with the image of the first sequence."""
        request, source = super().request(prompt, length), self._read(0)
        if isinstance(source, ImagePrompt):
            return replace(request, image=source.image, source=tuple(source.tokens))
        return replace(request, image=source)

    def about(self) -> Mapping[str, Any]:
        """Return the images as in `sample_images.draw`, and the tokens of the encoder prompts."""
        return {"sources": self._sources}

    def _read(self, number: int) -> Any:
        """Return the encoder's input for a sequence."""
        source = self._sources[number]
        shown, tokens = source[: sample_images.NUMBERS], source[sample_images.NUMBERS :]
        image = self.session.prepare(sample_images.draw(*shown))
        return ImagePrompt(tokens, image) if tokens else image
