# SPDX-License-Identifier: Apache-2.0
"""Session of an image-to-text package: images in, generated text out."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo.checkpoint.generation_settings import GenerationSettings
from qeff_zoo.contract import IMAGE_TO_TEXT
from qeff_zoo.errors import ContextLengthError, GenerationError
from qeff_zoo.media.image_processor import load_image_processor
from qeff_zoo.media.images import LIMITS, ImageLimits, ImageSource
from qeff_zoo.runtime.engine.answers import Request, require_no_choices
from qeff_zoo.runtime.engine.prompts import Prompt
from qeff_zoo.runtime.engine.text_generation import Generation, Stream
from qeff_zoo.runtime.program import Array, Program
from qeff_zoo.tasks.encoder_decoder.image_prompts import ImagePrompts
from qeff_zoo.tasks.encoder_decoder.session import WritingSession


class ImageToTextSession(WritingSession):
    """An opened package of the task `image-to-text`.

    Args:
        folder: The package.
        program: Opened decoder of the package.
        encoder: Opened encoder of the package.
        chosen: `spec.task` of the manifest.
        image_processor: Image processor class of transformers, if the package's files name none.

    Raises:
        GenerationError: The package is of another task, or its KV cache does not fit into memory.

    Example:
        >>> session = qeff_zoo.load("packages/trocr-base-printed")  # doctest: +SKIP
        >>> session.generate(["line.png"])[0].text  # doctest: +SKIP
        'INDUSTRY MR. BROWN COMMENTED'
    """

    task = IMAGE_TO_TEXT
    describes_images = True
    reads = "image"

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
        if delimiters := chosen.get("answer_delimiters"):
            self.start, *ends = delimiters
            self._end_at(ends)
            self.settings = GenerationSettings()
        #: Input size of the encoder: channels, height and width.
        self.size = tuple(map(int, encoder.inputs["pixel_values"].shape[1:]))
        self.processor = load_image_processor(folder, image_processor)
        #: Whether outputs include special tokens, and a prompt is the beginning of the output.
        self.tagging = bool(chosen.get("tagging"))
        self._image_count, self._counting = 0, threading.Lock()
        prompt = chosen.get("image_prompt")
        #: Format of encoder prompts; None for an encoder of images alone.
        self.prompts = ImagePrompts.of(folder, prompt) if prompt else None
        if self.tokenizer:
            self.tokenizer.shows_special = self.tagging or self.prompts is not None
        if self.tokenizer and self.prompts:
            self.tokenizer.hidden = frozenset({self.prompts.begin, self.prompts.end})

    @property
    def shown(self) -> Mapping[str, int]:
        """Numbers of encoded inputs by kind, see `TextGenerationSession`."""
        return {"images": self._image_count, "encoded_images": self.sources.count}

    def preparation(
        self, image: ImageSource, limits: ImageLimits = LIMITS
    ) -> "partial[dict[str, Any]]":
        """Return a call that processes an image for `prepare`, and that another process can make."""
        return partial(self.processor, [image], limits)

    def prepare(
        self, image: ImageSource | Mapping[str, Any], limits: ImageLimits = LIMITS
    ) -> Array:
        """Decode an image and compute the encoder's input. Thread-safe.

        Args:
            image: Path, bytes of a file, Pillow image or array of uint8, (height, width, 3); or the result of
                `preparation`.
            limits: Limits of the image.

        Returns:
            float32, (3, height, width).

        Raises:
            MediaError: The image cannot be read, or exceeds a limit.
        """
        processed = image if isinstance(image, Mapping) else self.preparation(image, limits)()
        (pixels,) = processed["pixel_values"]
        if pixels.shape != self.size:
            raise GenerationError(
                f"The processor of {str(self.folder)!r} makes arrays of {pixels.shape}, but its encoder takes "
                f"{self.size}. Expected the processor that it was built with. Build the package again."
            )
        array: Array = pixels.astype(np.float32, copy=False)
        return array

    def generate(  # type: ignore[override]
        self,
        images: ImageSource | Sequence[ImageSource | Request],
        *,
        prompt: Prompt | None = None,
        stream: Stream | None = None,
        **choices: Any,
    ) -> list[Generation]:
        """Generate text for any number of images.

        Args:
            images: Images, see `prepare`, or requests with their own options.
            prompt: Prompt of each image, see `request`.
            stream: Callback for new text.
            **choices: Arguments of `request`.

        Raises:
            MediaError: An image cannot be read.
            GenerationError: A request cannot be served, or another thread uses the session.
        """
        several: list[Any] = list(images) if isinstance(images, list | tuple) else [images]
        require_no_choices(several, {"prompt": prompt, **choices})
        requests = [
            item if isinstance(item, Request) else self.request(item, prompt=prompt, **choices)
            for item in several
        ]
        return super().generate(requests, stream=stream)

    def request(  # type: ignore[override]
        self,
        image: ImageSource | Mapping[str, Any],
        *,
        prompt: Prompt | None = None,
        limits: ImageLimits = LIMITS,
        **choices: Any,
    ) -> Request:
        """Create and validate a request. Thread-safe.

        Args:
            image: Image, see `prepare`.
            prompt: Beginning of the generated text, which the output omits: text, or token ids. None for the start
                token of the package's generation_config.json, which also precedes a prompt unless outputs are
                `tagging`. For a package with `prompts`, the encoder prompt.
            limits: Limits of the image.
            **choices: Arguments `generation_len`, `sampling`, `settings`, `stop`, `ignore_eos` and `adapter` of
                `TextGenerationSession.request`.

        Raises:
            MediaError: The image cannot be read.
            GenerationError: The request cannot be served.
        """
        if choices.pop("chat", False):
            raise GenerationError(
                f"'chat' does not apply to {IMAGE_TO_TEXT}: there is no conversation. Expected an image. Leave it out."
            )
        source = self.prompts.tokens(prompt, self._plain) if self.prompts else []
        self._check_encoder_prompt(source)
        tokens = self._decoder_prompt(None if self.prompts else prompt)
        begun = self._begun(tokens, **choices)
        text = prompt if isinstance(prompt, str) else ""
        read = self.prepare(image, limits)
        with self._counting:  # any thread may make a request
            self._image_count += 1
        return replace(begun, image=read, source=tuple(source), text=text)

    def _plain(self, text: str) -> list[int]:
        return self._encode(text, special_tokens=False) if text else []

    def _check_encoder_prompt(self, source: Sequence[int]) -> None:
        """Refuse an encoder prompt that is too long, or has unknown tokens."""
        if self.prompts is None:
            return
        if source.count(self.prompts.placeholder) > self.prompts.rows:
            raise GenerationError(
                f"The prompt has the token {self.prompts.placeholder}, which stands in the places of an image; "
                "expected none: there is one image, before the prompt. Leave it out."
            )
        if len(source) > self.sources.longest:
            raise ContextLengthError(
                f"An image and its prompt have {len(source):,} tokens; expected at most {self.sources.longest:,}, the "
                "largest of the package's seq_lens. Shorten the prompt, or build the package with a larger --seq-lens."
            )
        vocab_size = self.decoder.vocab_size
        foreign = next((one for one in source if not 0 <= one < vocab_size), None)
        if foreign is not None:
            raise GenerationError(
                f"Token id {foreign!r} is not of this model; expected 0 to {vocab_size - 1:,}. Encode the prompt with "
                "the package's own tokenizer."
            )

    def _decoder_prompt(self, prompt: Prompt | None) -> list[int]:
        """Return the first tokens of the decoder, in the order of transformers' `generate`."""
        if prompt is None:
            return [self.start]
        text = prompt if isinstance(prompt, str) else None
        tokens = (
            [int(one) for one in prompt]
            if text is None
            else self._encode(text, special_tokens=False)
        )
        if self.tagging or tokens[:1] == [self.start]:
            return tokens
        return [self.start, *tokens]
