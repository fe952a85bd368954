# SPDX-License-Identifier: Apache-2.0
"""Session of an image-text-embedding package: texts and images in, one vector per prompt out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo.checkpoint.config import model_config
from qeff_zoo.contract import IMAGE_TEXT_EMBEDDING
from qeff_zoo.errors import GenerationError
from qeff_zoo.package.files import read_json
from qeff_zoo.runtime.decoding.decoder import EMBEDDING, Decoder
from qeff_zoo.runtime.engine.answers import Request
from qeff_zoo.runtime.engine.prompts import Prompt
from qeff_zoo.runtime.program import Array, Program
from qeff_zoo.tasks.encoders.similarity import cosines
from qeff_zoo.tasks.multimodal.image_text_session import ImageTextToTextSession
from qeff_zoo.tasks.multimodal.session import listed


class ImageTextEmbeddingSession(ImageTextToTextSession):
    """Open package of the task `image-text-embedding`; see `ImageTextToTextSession` for how to open it.

    Example:
        >>> session = qeff_zoo.load("packages/Qwen3-VL-Embedding-2B")  # doctest: +SKIP
        >>> session.embed(
        ...     ["a dog", ""], images=[[], ["dog.png"]], instruction="Find it."
        ... )  # doctest: +SKIP
    """

    task = IMAGE_TEXT_EMBEDDING
    output = EMBEDDING

    def _decoder(self, folder: Path, program: Program) -> Decoder:
        config = model_config(read_json(folder / "config.json"))
        text = config.get("text_config", config)
        return Decoder(program, self.adapters, embeds=int(text["vocab_size"]))

    def _limit(
        self, tokens: Sequence[int], generation_len: int | None, documents: int = 0, least: int = 1
    ) -> int:
        return super()._limit(tokens, 1, documents, least)  # nothing is generated

    def embed(
        self,
        prompts: str | Sequence[Prompt | Request],
        *,
        images: Sequence[Any] = (),
        instruction: str | None = None,
        chat: bool = True,
        adapter: str | None = None,
    ) -> Array:
        """Compute one embedding per prompt.

        Args:
            prompts: Texts of users' messages, which may be empty beside an image; token ids; or requests.
            images: List of images for each prompt, or a single prompt's images.
            instruction: Task of the embeddings, as the system message; None for none.
            chat: Whether the chat template applies; otherwise texts have a marker at the place of each image.
            adapter: Name of one of `adapters`; None for the base model.

        Returns:
            float32, (prompts, hidden).

        Raises:
            GenerationError: A prompt is empty, too long, or outside the vocabulary.
            MediaError: An image cannot be read.
        """
        every = [prompts] if isinstance(prompts, str) else [*prompts]
        shown = (
            [listed(images)] if isinstance(prompts, str) else [listed(image) for image in images]
        )
        shown = shown or [[] for _ in every]
        if len(shown) != len(every):
            raise GenerationError(
                f"There are images for {len(shown)} prompts, and {len(every)} prompts; expected a list of images for "
                "each. Give an empty list for a prompt without images."
            )
        requests = [
            prompt
            if isinstance(prompt, Request)
            else self._request(prompt, parts, instruction, chat=chat, adapter=adapter)
            for prompt, parts in zip(every, shown, strict=True)
        ]
        with self.exclusively() as scheduler:
            return np.stack(
                [scheduler.run_prompt(request.prompt, request.spans) for request in requests]
            )

    def _request(
        self,
        prompt: Prompt,
        images: Sequence[Any],
        instruction: str | None,
        *,
        chat: bool,
        adapter: str | None,
    ) -> Request:
        """Return the request of a prompt, whose images come before its text."""
        if chat and isinstance(prompt, str):
            parts: list[dict[str, Any]] = [{"type": self.part} for _ in images]
            parts += [{"type": "text", "text": prompt}] if prompt else []
            system = [{"role": "system", "content": [{"type": "text", "text": instruction}]}]
            user = [{"role": "user", "content": parts}]
            prompt = self.encode_chat([*(system if instruction else []), *user])
        return self.request(prompt, images=images, adapter=adapter)

    similarity = staticmethod(cosines)
