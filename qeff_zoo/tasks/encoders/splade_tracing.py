# SPDX-License-Identifier: Apache-2.0
"""Sparse embedding of a text from the logits of a masked language model (SPLADE), for tracing."""

from typing import Any

from torch import Tensor, nn


class EmbedSparsely(nn.Module):
    """One call of a masked language model.

    Args:
        model: Hugging Face model whose attention is `qeff_zoo`.
        strategy: "max" or "sum", over the tokens of a text.
        activation: "relu" for log(1 + relu(x)), "log1p_relu" for its logarithm once more.
    """

    def __init__(self, model: Any, strategy: str, activation: str) -> None:
        super().__init__()
        self.model, self.strategy, self.twice = model, strategy, activation == "log1p_relu"

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the weights of the vocabulary, (batch, vocab_size)."""
        logits: Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask).logits
        logits = logits * attention_mask.unsqueeze(-1).to(logits.dtype)
        if self.strategy == "max":  # first, since the weights grow with the logits
            return self._weights(logits.amax(1))
        return self._weights(logits).sum(1)

    def _weights(self, logits: Tensor) -> Tensor:
        weights = logits.relu().log1p()
        return weights.log1p() if self.twice else weights
