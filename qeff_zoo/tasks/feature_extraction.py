# SPDX-License-Identifier: Apache-2.0
"""The `feature-extraction` contract: one embedding per text.

IN   input_ids (batch_size, seq_len) i64    attention_mask (batch_size, seq_len) i64, 1 is a token
OUT  output (batch_size, hidden)            pooled over the tokens, normalized if asked for
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.export import Dim

from qeff_zoo.tasks import Tracing

_BATCH, _SEQ = 2, 6  # example sizes: at least 2, or torch.export specializes


def pool(hidden: Tensor, attention_mask: Tensor, pooling: str) -> Tensor:
    """Reduce (batch, seq, hidden) to (batch, hidden) over the tokens.

    Args:
        hidden: Last hidden states.
        attention_mask: (batch, seq), 1 is a token.
        pooling: "mean", "cls" (the first token) or "max", as in sentence-transformers.
    """
    token = attention_mask.unsqueeze(-1).to(hidden.dtype)
    if pooling == "cls":
        return hidden[:, 0]
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


def probe(model: Any) -> None:
    """Run the model once without computing anything."""
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        tokens = torch.ones(_BATCH, _SEQ, dtype=torch.long)
        model(input_ids=tokens, attention_mask=tokens.clone())


def tracing(model: Any, *, pooling: str = "mean", normalize: bool = False) -> Tracing:
    """Describe how to trace `model`: wrapped module, example inputs, names and symbols."""
    tokens = torch.ones(_BATCH, _SEQ, dtype=torch.long)
    # Learned positions bound the sequence, and torch.export wants to be told.
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    batch, seq = Dim("batch_size", min=2), Dim("seq_len", min=2, max=longest)
    return Tracing(
        module=Embed(model, pooling, normalize).eval(),
        inputs={"input_ids": tokens, "attention_mask": tokens.clone()},
        dynamic_shapes={"input_ids": {0: batch, 1: seq}, "attention_mask": {0: batch, 1: seq}},
        input_names=["input_ids", "attention_mask"],
        output_names=["output"],
    )
