# SPDX-License-Identifier: Apache-2.0
"""The `text-classification` contract: a score of every label for each text, or pair of texts.

IN   input_ids, attention_mask, and token_type_ids of models that have them: see `qeff_zoo.tasks.encoders`
OUT  logits (batch_size, labels)

Decoders pool the last token that is not padding, by its id: what fills a row must be `pad_token_id`.
"""

from typing import Any

from torch import Tensor, nn

from qeff_zoo.tasks import Tracing, encoders
from qeff_zoo.tasks.encoders import run_once as probe

__all__ = ["Classify", "probe", "tracing"]


class Classify(nn.Module):
    """One call of a model with a classification head.

    Args:
        model: Hugging Face's.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Return logits."""
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        logits: Tensor = self.model(
            input_ids=input_ids, attention_mask=attention_mask, **types
        ).logits
        return logits


def tracing(model: Any) -> Tracing:
    """Describe how to trace `model`: wrapped module, example inputs, names and symbols."""
    token_types = encoders.takes_token_types(model)
    return encoders.describe(model, Classify(model), "logits", token_types=token_types)
