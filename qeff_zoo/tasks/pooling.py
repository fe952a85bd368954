# SPDX-License-Identifier: Apache-2.0
"""Token states of a text -> one embedding, as it is traced: pooled over the tokens, normalized if asked for."""

from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.tasks import Tracing, encoders


def pool(hidden: Tensor, attention_mask: Tensor, pooling: str) -> Tensor:
    """Reduce (batch, seq, hidden) to (batch, hidden) over the tokens.

    Args:
        hidden: Last hidden states.
        attention_mask: (batch, seq), 1 is a token.
        pooling: "mean", "cls" (the first token), "lasttoken" or "max", as in sentence-transformers.
    """
    token = attention_mask.unsqueeze(-1).to(hidden.dtype)
    if pooling == "cls":
        return hidden[:, 0]
    if pooling == "lasttoken":
        places = torch.arange(1, hidden.shape[1] + 1, device=hidden.device)
        last = (attention_mask * places).argmax(1)  # (batch)
        return hidden.gather(1, last[:, None, None].expand(-1, 1, hidden.shape[2]))[:, 0]
    if pooling == "max":
        return hidden.masked_fill(token == 0, torch.finfo(hidden.dtype).min).amax(1)
    if pooling == "mean":
        return (hidden * token).sum(1) / token.sum(1).clamp(min=1e-9)
    raise ValueError(f"Unknown pooling {pooling!r}.")


class Embed(nn.Module):
    """One call of an encoder.

    Args:
        model: Hugging Face encoder whose attention is `qeff_zoo`.
        pooling: See `pool`.
        normalize: Scale each embedding to length 1.
    """

    def __init__(self, model: Any, pooling: str, normalize: bool) -> None:
        super().__init__()
        self.model, self.pooling, self.normalize = model, pooling, normalize

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return one embedding per row."""
        hidden = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        pooled = pool(hidden, attention_mask, self.pooling)
        return nn.functional.normalize(pooled, dim=-1) if self.normalize else pooled


def tracing(model: Any, *, pooling: str = "mean", normalize: bool = False) -> Tracing:
    """Describe how to trace `model`: wrapped module, example inputs, names and symbols."""
    return encoders.describe(model, Embed(model, pooling, normalize), "output")
