# SPDX-License-Identifier: Apache-2.0
"""Sample texts with images, videos or audio among their tokens, through a package that generates."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from qeff_zoo.runtime.answers import Request
from qeff_zoo.runtime.media_text import MediaTextSession, Prepared
from qeff_zoo.runtime.multimodal_spans import MultimodalSpans
from qeff_zoo.tasks.text_generation.trial import DecoderTrial
from qeff_zoo.validation import cases, sample_media


class MediaTrial(DecoderTrial):
    """Runs a multimodal model on sample texts and multimodal inputs.

    Args:
        session: Session of the package.
    """

    session: MediaTextSession

    def draw(self, stages: Sequence[cases.Stage]) -> None:
        """Set the stages, the tokens of each sequence, and its multimodal inputs."""
        super().draw(stages)
        session = self.session
        self._media: list[list[Prepared]]
        self._spans: list[MultimodalSpans | None]
        self.sequences, self._media = sample_media.insert(session, self.sequences)
        pairs = zip(self.sequences, self._media, strict=True)
        self._spans = [session.insets(*pair) for pair in pairs]
        if session.media.whole:
            stretches = [one.stretches if one else () for one in self._spans]
            self.stages = cases.uncut(self.stages, stretches)

    def spans(self, number: int) -> MultimodalSpans | None:
        """Return the multimodal inputs among the tokens of a sequence."""
        return self._spans[number]

    def first_prompt(self) -> list[int]:
        """Return the first sequence to the end of its last multimodal input, or to the token that closes it."""
        spans = self._spans[0]
        if spans is None:
            return super().first_prompt()
        end = int(spans.places[-1]) + 1 + bool(self.session.media.begun)
        return self.sequences[0][:end]

    def request(self, prompt: list[int], length: int) -> Request:
        """Return a request with the multimodal inputs of the first sequence."""
        request = super().request(prompt, length)
        if self._spans[0] is None:
            return request
        return replace(request, insets=self.session.insets(prompt, self._media[0]))

    def about(self) -> Mapping[str, Any]:
        """Return the multimodal inputs, and their declaration in the recipe."""
        return {"media": self._media, "of_media": self.session.of_media}
