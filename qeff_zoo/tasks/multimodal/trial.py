# SPDX-License-Identifier: Apache-2.0
"""Sample texts with images, videos or audio among their tokens, through a package that generates."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any

from qeff_zoo.multimodal.encoding.prepared import Prepared
from qeff_zoo.runtime.decoding.multimodal_spans import MultimodalSpans
from qeff_zoo.runtime.engine.answers import Request
from qeff_zoo.tasks.multimodal.any_to_any_session import AnyToAnySession
from qeff_zoo.tasks.multimodal.audio_text_session import AudioTextToTextSession
from qeff_zoo.tasks.multimodal.image_text_session import ImageTextToTextSession
from qeff_zoo.tasks.multimodal.session import MediaTextSession
from qeff_zoo.tasks.text_generation.trial import DecoderTrial
from qeff_zoo.validation.trial import cases

from . import samples


class MediaTrial(DecoderTrial):
    """Runs a multimodal model on sample texts and multimodal inputs.

    Args:
        session: Session of the package.
    """

    session: MediaTextSession

    def inputs(self) -> Iterator[Prepared]:
        """Yield encoder inputs of images or audio without end."""
        raise NotImplementedError

    def draw(self, stages: Sequence[cases.Stage]) -> None:
        """Set the stages, the tokens of each sequence, and its multimodal inputs."""
        super().draw(stages)
        session = self.session
        self._media: list[list[Prepared]]
        self._spans: list[MultimodalSpans | None]
        self.sequences, self._media = samples.insert(session, self.sequences, self.inputs())
        pairs = zip(self.sequences, self._media, strict=True)
        self._spans = [session.spans(*pair) for pair in pairs]
        if session.media.whole:
            stretches = [span.stretches if span else () for span in self._spans]
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
        return replace(request, spans=self.session.spans(prompt, self._media[0]))

    def about(self) -> Mapping[str, Any]:
        """Return the multimodal inputs, and their declaration in the recipe."""
        return {"media": self._media, "of_media": self.session.of_media}


class ImageTrial(MediaTrial):
    """Runs a package of images on sample texts, and of videos if these have a separate program."""

    session: ImageTextToTextSession

    def inputs(self) -> Iterator[Prepared]:
        """See `MediaTrial`; images and videos in turns, so that each precedes the other in some sequence."""
        images = samples.images(self.session)
        if not getattr(self.session.reader, "has_frames", False):
            return images
        videos = samples.videos(self.session)
        return (next(source) for source in cycle([images, videos, videos]))


class EmbeddingTrial(ImageTrial):
    """Runs a package that embeds on sample texts and images; nothing is generated."""

    def _greedy(self) -> None:
        return None


class AudioTrial(MediaTrial):
    """Runs a package of audio on sample texts."""

    session: AudioTextToTextSession

    def inputs(self) -> Iterator[Prepared]:
        """See `MediaTrial`."""
        return self.session.media.samples(self.session.reader.shape)


class AnyToAnyTrial(MediaTrial):
    """Runs a package of images and audio on sample texts."""

    session: AnyToAnySession

    def inputs(self) -> Iterator[Prepared]:
        """See `MediaTrial`; both in turns, so that each precedes the other in some sequence."""
        images = samples.images(self.session)
        audio = self.session.audio.samples(self.session.audio_reader.shape)
        return (next(source) for source in cycle([images, audio, audio, audio, images, images]))
