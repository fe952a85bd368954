# SPDX-License-Identifier: Apache-2.0
"""An image-to-text package as a session: pictures in, what is written of them out."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo.errors import ContextLengthError, GenerationError
from qeff_zoo.media.image_processor import load_image_processor
from qeff_zoo.media.images import LIMITS, ImageLimits, Picture
from qeff_zoo.runtime.answers import Request, require_no_choices
from qeff_zoo.runtime.logits_processors import WritingRules
from qeff_zoo.runtime.program import Array, Program
from qeff_zoo.runtime.prompts import Prompt
from qeff_zoo.runtime.sampling import Sampling
from qeff_zoo.runtime.text_generation import Generation, Stream
from qeff_zoo.tasks import IMAGE_TO_TEXT
from qeff_zoo.tasks.encoder_decoder.image_prompts import PicturePrompts
from qeff_zoo.tasks.encoder_decoder.session import WritingSession

_GREEDY = Sampling()


class ImageToTextSession(WritingSession):
    """An opened package of the task `image-to-text`.

    Args:
        folder: The package.
        program: Its decoder, opened.
        encoder: Its encoder, opened.
        chosen: `spec.task` of the manifest.
        image_processor: transformers' class that makes arrays of pictures, where the package's files name none.

    Raises:
        GenerationError: Another task's package, or the states do not fit into memory.

    Example:
        >>> session = qeff_zoo.load("packages/trocr-base-printed")  # doctest: +SKIP
        >>> session.generate(["line.png"])[0].text  # doctest: +SKIP
        'INDUSTRY MR. BROWN COMMENTED'
    """

    task = IMAGE_TO_TEXT
    describes_images = True
    reads = "picture"

    def __init__(
        self,
        folder: Path,
        program: Program,
        *,
        encoder: Program,
        chosen: Mapping[str, Any],
        image_processor: str | None = None,
    ) -> None:
        super().__init__(folder, program, encoder=encoder)
        if between := chosen.get("between"):
            self.rules = WritingRules(start=between[0], ends=frozenset(between[1:]))
        #: Of what the encoder takes: channels, height and width.
        self.size = tuple(map(int, encoder.inputs["pixel_values"].shape[1:]))
        self.processor = load_image_processor(folder, image_processor)
        self._end_at(self.rules.ends)
        #: Whether answers have special tokens, and a prompt is how one begins.
        self.tagging = bool(chosen.get("tagging"))
        self._pictures, self._counting = 0, threading.Lock()
        asked = chosen.get("asked")
        #: How prompts are written that the encoder reads besides a picture; None where it reads that alone.
        self.prompts = PicturePrompts.of(folder, asked) if asked else None
        if self.tokenizer:
            self.tokenizer.shows_special = self.tagging or self.prompts is not None
        if self.tokenizer and self.prompts:
            self.tokenizer.hidden = frozenset({self.prompts.begin, self.prompts.end})

    @property
    def shown(self) -> Mapping[str, int]:
        """As of `TextGenerationSession`."""
        return {"pictures": self._pictures, "encoded_pictures": self.sources.count}

    def prepare(self, picture: Picture, limits: ImageLimits = LIMITS) -> Array:
        """Read a picture and make the array that the encoder takes. Any thread may do this at any time.

        Args:
            picture: Path, bytes of a file, Pillow image or array of uint8, (height, width, 3).
            limits: How large it may be.

        Returns:
            float32, (3, height, width).

        Raises:
            MediaError: It cannot be read, or is too large.
        """
        (pixels,) = self.processor([picture], limits)["pixel_values"]
        if pixels.shape != self.size:
            raise GenerationError(
                f"The processor of {str(self.folder)!r} makes arrays of {pixels.shape}, but its encoder takes "
                f"{self.size}. Expected the processor that it was built with. Build the package again."
            )
        found: Array = pixels.astype(np.float32, copy=False)
        return found

    def generate(  # type: ignore[override]
        self,
        pictures: Picture | Sequence[Picture | Request],
        *,
        prompt: Prompt | None = None,
        stream: Stream | None = None,
        **choices: Any,
    ) -> list[Generation]:
        """Write of pictures, any number of them.

        Args:
            pictures: As for `prepare`, or requests with choices of their own.
            prompt: How each answer begins, see `request`.
            stream: Told of text as it comes.
            **choices: As of `request`.

        Raises:
            MediaError: One cannot be read.
            GenerationError: It cannot be served, or another thread is using the session.
        """
        several: list[Any] = list(pictures) if isinstance(pictures, list | tuple) else [pictures]
        require_no_choices(several, {"prompt": prompt, **choices})
        requests = [
            one if isinstance(one, Request) else self.request(one, prompt=prompt, **choices)
            for one in several
        ]
        return super().generate(requests, stream=stream)

    def request(  # type: ignore[override]
        self,
        picture: Picture,
        *,
        prompt: Prompt | None = None,
        limits: ImageLimits = LIMITS,
        generation_len: int | None = None,
        sampling: Sampling = _GREEDY,
        **choices: Any,
    ) -> Request:
        """Check what is asked, and put it into one value. Any thread may do this at any time.

        Args:
            picture: As for `prepare`.
            prompt: How the answer begins, which is not part of it: text, or token ids. None for the token that the
                package's generation_config.json says, which also comes before a prompt unless answers are `tagging`.
                Of a package that has `prompts`, what is asked about the picture.
            limits: How large a picture may be.
            generation_len: Tokens at most; None for as many as generation_config.json says.
            sampling: How tokens are chosen.
            **choices: `stop`, `ignore_eos` and `adapter`, as of `TextGenerationSession.request`.

        Raises:
            MediaError: The picture cannot be read.
            GenerationError: It cannot be served.
        """
        if choices.pop("chat", False):
            raise GenerationError(
                f"'chat' does not apply to {IMAGE_TO_TEXT}: there is no conversation. Expected a picture. Leave it out."
            )
        source = self.prompts.tokens(prompt, self._plain) if self.prompts else []
        self._check(source)
        begun = self._beginning(None if self.prompts else prompt)
        told: dict[str, Any] = {"generation_len": generation_len, "sampling": sampling, **choices}
        made = self._begun(begun, self.rules, **told)
        text = prompt if isinstance(prompt, str) else ""
        read = self.prepare(picture, limits)
        with self._counting:  # any thread may make a request
            self._pictures += 1
        return replace(made, picture=read, source=tuple(source), text=text)

    def _plain(self, text: str) -> list[int]:
        return self._encode(text, special_tokens=False) if text else []

    def _check(self, source: Sequence[int]) -> None:
        """Refuse what is asked about a picture where the encoder does not take so much, or no such tokens."""
        if self.prompts is None:
            return
        if source.count(self.prompts.placeholder) > self.prompts.rows:
            raise GenerationError(
                f"The prompt has the token {self.prompts.placeholder}, which stands in the places of a picture; "
                "expected none: there is one picture, before the prompt. Leave it out."
            )
        if len(source) > self.sources.longest:
            raise ContextLengthError(
                f"A picture and its prompt have {len(source):,} tokens; expected at most {self.sources.longest:,}, the "
                "largest of the package's seq_lens. Shorten the prompt, or build the package with a larger --seq-lens."
            )
        vocab_size = self.decoder.vocab_size
        foreign = next((one for one in source if not 0 <= one < vocab_size), None)
        if foreign is not None:
            raise GenerationError(
                f"Token id {foreign!r} is not of this model; expected 0 to {vocab_size - 1:,}. Encode the prompt with "
                "the package's own tokenizer."
            )

    def _beginning(self, prompt: Prompt | None) -> list[int]:
        """Return the tokens that an answer is begun with, as transformers' `generate` puts them together."""
        if prompt is None:
            return [self.rules.start]
        text = prompt if isinstance(prompt, str) else None
        told = (
            [int(one) for one in prompt]
            if text is None
            else self._encode(text, special_tokens=False)
        )
        if self.tagging or told[:1] == [self.rules.start]:
            return told
        return [self.rules.start, *told]
