# SPDX-License-Identifier: Apache-2.0
"""Image and text encoders of a zero-shot detection model, for tracing.

IN   input_ids (batch_size, positions) i64    as many as the model has positions: shorter texts are padded
OUT  output (batch_size, hidden)              of length 1

Attention over texts is causal, and the state of the last token is the text's: padding has no effect.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from qeff_zoo.contract import Tracing
from qeff_zoo.errors import ExportError
from qeff_zoo.export.uncomputed import uncomputed

_BATCH = 2  # example size: at least 2, or torch.export specializes
_LEAST = 1e-6  # added to lengths, as in transformers


class EncodeImages(nn.Module):
    """One call of the image encoder, with the heads of boxes and of classes.

    Args:
        model: Hugging Face model.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return embeddings, factors of logits, and boxes of the patches of each image."""
        maps = self.model.image_embedder(pixel_values=pixel_values)[0]
        states, head = maps.flatten(1, 2), self.model.class_head
        embeddings = _scaled(head.dense0(states))
        scale = head.elu(head.logit_scale(states)) + 1
        factors = torch.cat([head.logit_shift(states), scale], dim=-1)
        return embeddings, factors, self.model.box_predictor(states, maps)


class EncodeTexts(nn.Module):
    """One call of the text encoder.

    Args:
        model: Hugging Face model.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return one embedding per row."""
        features = self.model.base_model.get_text_features(input_ids=input_ids).pooler_output
        return _scaled(features / torch.linalg.norm(features, dim=-1, keepdim=True))


def _scaled(states: Tensor) -> Tensor:
    scaled: Tensor = states / (torch.linalg.norm(states, dim=-1, keepdim=True) + _LEAST)
    return scaled


def _texts(model: Any) -> Tensor:
    return torch.ones(_BATCH, model.config.text_config.max_position_embeddings, dtype=torch.long)


def look_once(model: Any) -> None:
    """Run the image encoder without any computation."""
    side = model.config.vision_config.image_size
    with uncomputed():
        model.image_embedder(pixel_values=torch.zeros(_BATCH, 3, side, side))


def read_once(model: Any) -> None:
    """Run the text encoder without any computation."""
    with uncomputed():
        model.base_model.get_text_features(input_ids=_texts(model))


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
            f"{height}. Expected a processor that belongs to the model; correct `size` in preprocessor_config.json."
        )
    return Tracing(
        module=EncodeImages(model).eval(),
        inputs={"pixel_values": torch.zeros(_BATCH, 3, height, width)},
        dynamic_shapes={"pixel_values": {0: Dim("batch_size", min=2)}},
        input_names=["pixel_values"],
        output_names=["class_embeds", "factors", "pred_boxes"],
    )


def of_texts(model: Any) -> Tracing:
    """Describe how to trace the text encoder: wrapped module, example inputs, names and symbols.

    Args:
        model: Hugging Face model.
    """
    return Tracing(
        module=EncodeTexts(model).eval(),
        inputs={"input_ids": _texts(model)},
        dynamic_shapes={"input_ids": {0: Dim("batch_size", min=2)}},
        input_names=["input_ids"],
        output_names=["output"],
    )
