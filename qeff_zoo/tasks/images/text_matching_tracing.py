# SPDX-License-Identifier: Apache-2.0
"""Text encoder of a zero-shot image classifier, for tracing: program `encoder`.

IN   input_ids (batch_size, positions) i64    as many as the model has positions: shorter texts are padded
OUT  output (batch_size, hidden)              of length 1
     scale (1,)                               factor from cosines to logits
     [bias (1,)                               added to them, for models that were trained on pairs]

Models with a bias attend to all positions, as in training; with causal attention and the state of the text's last token
as its embedding, the padding has no effect.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from qeff_zoo.contract import Tracing
from qeff_zoo.export.uncomputed import uncomputed

_BATCH = 2


class EmbedTexts(nn.Module):
    """One call of the text encoder.

    Args:
        model: Hugging Face model with both encoders.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor) -> tuple[Tensor, ...]:
        """Return one embedding per row, and the factors from cosines to logits."""
        features = self.model.get_text_features(input_ids=input_ids).pooler_output
        factors = [self.model.logit_scale.exp().reshape(1)]
        if (bias := getattr(self.model, "logit_bias", None)) is not None:
            factors.append(bias.reshape(1) + 0)  # a weight itself cannot be an output
        return nn.functional.normalize(features, dim=-1), *factors


def _example(model: Any) -> Tensor:
    return torch.ones(_BATCH, model.config.text_config.max_position_embeddings, dtype=torch.long)


def run_once(model: Any) -> None:
    """Run the text encoder without any computation."""
    with uncomputed():
        model.get_text_features(input_ids=_example(model))


def tracing(model: Any) -> Tracing:
    """Describe how to trace the text encoder: wrapped module, example inputs, names and symbols.

    Args:
        model: Model from `loader.load_meta`.
    """
    names = ["output", "scale"]
    return Tracing(
        module=EmbedTexts(model).eval(),
        inputs={"input_ids": _example(model)},
        dynamic_shapes={"input_ids": {0: Dim("batch_size", min=2)}},
        input_names=["input_ids"],
        output_names=[*names, "bias"] if hasattr(model, "logit_bias") else names,
    )
