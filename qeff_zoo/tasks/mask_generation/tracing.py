# SPDX-License-Identifier: Apache-2.0
"""Image encoder of SAM, and its prompt encoder with the mask decoder, for tracing.

IN   image_embeddings (1, hidden, rows, columns) f32    of one image
     input_points (prompts, tokens, 2) f32              pixels of the processed image
     input_labels (prompts, tokens) i64                 see `qeff_zoo.tasks.mask_generation.prompts`
OUT  pred_masks (prompts, masks, rows, columns)         logits: the single mask, then the three of several objects
     iou_scores (prompts, masks)
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from qeff_zoo.contract import Tracing
from qeff_zoo.errors import ExportError
from qeff_zoo.export.transforms.modules import rebound
from qeff_zoo.export.uncomputed import uncomputed
from qeff_zoo.tasks.mask_generation.prompts import END

_BATCH, _TOKENS = 2, 3  # example sizes: at least 2, or torch.export specializes


class EncodeImages(nn.Module):
    """One call of the image encoder.

    Args:
        model: Hugging Face model.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Return the embeddings of each image."""
        embeddings: Tensor = self.model.vision_encoder(pixel_values).last_hidden_state
        return embeddings


class ReadPrompts(nn.Module):
    """One call of the prompt encoder and the mask decoder, for prompts of one image.

    Args:
        model: Hugging Face model.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        # The decoder computes four masks, and returns the first or the others.
        self._decode = rebound(type(model.mask_decoder).forward, slice=_everything)

    def forward(
        self, image_embeddings: Tensor, input_points: Tensor, input_labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the logits of masks, and their scores."""
        model, encoder = self.model, self.model.prompt_encoder
        side = encoder.input_image_size
        embedded = encoder.shared_embedding((input_points + 0.5)[None], (side, side))
        labels = input_labels[None, ..., None]
        states = torch.where(labels == END, encoder.not_a_point_embed.weight, embedded)
        for number, embedding in enumerate(encoder.point_embed):
            states = torch.where(labels == number, states + embedding.weight, states)
        dense = encoder.no_mask_embed.weight.reshape(1, -1, 1, 1)
        masks, scores = self._decode(
            model.mask_decoder,
            image_embeddings=image_embeddings,
            image_positional_embeddings=model.get_image_wide_positional_embeddings(),
            sparse_prompt_embeddings=states,
            dense_prompt_embeddings=dense.expand(-1, -1, *encoder.image_embedding_size),
            multimask_output=True,
        )
        return masks[0], scores[0]


def _everything(*_: Any) -> slice:
    return slice(None)


def look_once(model: Any) -> None:
    """Run the image encoder without any computation."""
    side = model.config.vision_config.image_size
    with uncomputed():
        model.vision_encoder(torch.zeros(_BATCH, 3, side, side))


def of_images(model: Any, *, height: int, width: int) -> Tracing:
    """Describe how to trace the image encoder: wrapped module, example inputs, names and symbols.

    Args:
        model: Hugging Face model.
        height: Height of processed images in pixels.
        width: Width of processed images in pixels.

    Raises:
        ExportError: The model takes no images of that size.
    """
    side = model.config.vision_config.image_size
    if (height, width) != (side, side):
        raise ExportError(
            f"{type(model).__name__} takes images of {side} x {side} pixels, and its processor makes {width} x "
            f"{height}. Expected a processor that belongs to the model; correct `pad_size` in preprocessor_config.json."
        )
    return Tracing(
        module=EncodeImages(model).eval(),
        inputs={"pixel_values": torch.zeros(_BATCH, 3, height, width)},
        dynamic_shapes={"pixel_values": {0: Dim("batch_size", min=2)}},
        input_names=["pixel_values"],
        output_names=["image_embeddings"],
    )


def of_prompts(model: Any) -> Tracing:
    """Describe how to trace the prompt encoder and the mask decoder.

    Args:
        model: Hugging Face model.
    """
    config = model.config.prompt_encoder_config
    side = config.image_embedding_size
    prompts, tokens = Dim("prompts", min=2), Dim("tokens", min=2)
    inputs = {
        "image_embeddings": torch.zeros(1, config.hidden_size, side, side),
        "input_points": torch.zeros(_BATCH, _TOKENS, 2),
        "input_labels": torch.zeros(_BATCH, _TOKENS, dtype=torch.int64),
    }
    return Tracing(
        module=ReadPrompts(model).eval(),
        inputs=inputs,
        dynamic_shapes={
            "image_embeddings": {},
            "input_points": {0: prompts, 1: tokens},
            "input_labels": {0: prompts, 1: tokens},
        },
        input_names=[*inputs],
        output_names=["pred_masks", "iou_scores"],
    )
