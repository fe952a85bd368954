# SPDX-License-Identifier: Apache-2.0
"""Processor of InternVL's checkpoints in their authors' form, which have none: tiles and prompts.

Tiles are those of transformers' processor for GOT-OCR2, which computes the same; prompts are written by the chat
template of the tokenizer.
"""

from collections.abc import Sequence
from typing import Any

import torch

_IMAGENET = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
_MARKER = "<image>"


class InternProcessor:
    r"""Processor of InternVL, with QEfficient's methods.

    Args:
        model: Model whose `config` is the checkpoint's.
        tokenizer: transformers' tokenizer of the checkpoint.

    Example:
        >>> processor = InternProcessor(model.model, tokenizer)  # doctest: +SKIP
        >>> tiles = processor.load_image(image)  # doctest: +SKIP
        >>> processor(
        ...     tiles, ["<image>\nWhat is this?"], [], roles, num_patches_list=[len(tiles)]
        ... )  # doctest: +SKIP
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        config = model.config
        side = config.force_image_size or config.vision_config.image_size
        patches = (side // config.vision_config.patch_size) ** 2
        #: Number of tokens of a tile.
        self.num_image_token = int(patches * config.downsample_ratio**2)
        self.tokenizer = tokenizer

    def load_image(self, image: Any, input_size: int = 448, max_num: int = 12) -> torch.Tensor:
        """Return the tiles of an image, (tiles, 3, input_size, input_size): of the nearest grid, and the whole.

        Args:
            image: Pillow image.
            input_size: Side of a tile in pixels.
            max_num: Number of tiles at most, without the whole.
        """
        from transformers import GotOcr2ImageProcessor

        mean, std = _IMAGENET
        processor = GotOcr2ImageProcessor(
            size={"height": input_size, "width": input_size},
            crop_to_patches=True,
            max_patches=max_num,
            image_mean=mean,
            image_std=std,
        )
        tiles: torch.Tensor = processor(image, return_tensors="pt")["pixel_values"]
        return tiles

    def __call__(
        self,
        pixel_values: Any,
        question: str | Sequence[str],
        messages: Sequence[Sequence[Any]] = (),
        roles: Sequence[str] = (),
        history: Any = None,
        num_patches_list: Sequence[int] | None = None,
        **_: Any,
    ) -> list[str]:
        """Return prompts with the tokens of their images.

        Args:
            pixel_values: Tiles of all images.
            question: Question about each image, in which "<image>" marks its position; the beginning by default.
            messages: Earlier turns of the chat, each the text of a role and a message.
            roles: Texts of the roles of user and assistant, in `messages`.
            history: QEfficient's argument; no image is added to questions if it is not None.
            num_patches_list: Number of tiles of each image; None for one image.
        """
        counts = [len(pixel_values)] if num_patches_list is None else num_patches_list
        questions = [question] if isinstance(question, str) else question
        names = dict(zip(roles, ("user", "assistant"), strict=False))
        before = [
            {"role": names.get(role, role), "content": text} for role, text in messages if text
        ]
        return [
            self._prompt(before, text, count, marked=history is None)
            for text, count in zip(questions, counts, strict=True)
        ]

    def _prompt(self, before: list[dict[str, Any]], text: str, tiles: int, *, marked: bool) -> str:
        if marked and _MARKER not in text:
            text = f"{_MARKER}\n{text}"
        chat = [*before, {"role": "user", "content": text}]
        prompt = self.tokenizer.apply_chat_template(
            chat, tokenize=False, add_generation_prompt=True
        )
        tokens = f"<img>{'<IMG_CONTEXT>' * self.num_image_token * tiles}</img>"
        return str(prompt.replace(_MARKER, tokens, 1))
