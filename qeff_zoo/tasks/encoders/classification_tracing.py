# SPDX-License-Identifier: Apache-2.0
"""One call of a model with a classification head, for tracing."""

from typing import Any

from torch import Tensor, nn


class Classify(nn.Module):
    """One call of a model with a classification head.

    Args:
        model: Hugging Face model.
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
