# SPDX-License-Identifier: Apache-2.0
"""Embedding of a text from its token states, for tracing: pooling, dense layers and optional normalization."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from qeff_zoo.tasks import Tracing

from . import whole_texts

#: A dense layer: `in_features`, `out_features`, `bias` and `activation`, the name of a class of torch.
Layer: TypeAlias = Mapping[str, Any]


def pool(hidden: Tensor, attention_mask: Tensor, pooling: str) -> Tensor:
    """Reduce (batch, seq, hidden) to (batch, hidden) over the tokens.

    Args:
        hidden: Last hidden states.
        attention_mask: (batch, seq), 1 is a token.
        pooling: "mean", "cls" (the first token), "lasttoken" or "max", as in sentence-transformers; or "none" for the
            states as they are.
    """
    if pooling == "none":
        return hidden
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
        pooling: Pooling method, see `pool`.
        normalize: Whether to scale each embedding to length 1.
        activations: Activation of each layer of `model.dense`, by the name of torch's class.
    """

    def __init__(
        self, model: Any, pooling: str, normalize: bool, activations: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self.model, self.pooling, self.normalize = model, pooling, normalize
        self.activations = [getattr(nn, name)() for name in activations]

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return one embedding per row; without pooling one per token."""
        hidden = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        pooled = pool(hidden, attention_mask, self.pooling)
        for number, activation in enumerate(self.activations):
            pooled = activation(self.model.dense[number](pooled))
        return nn.functional.normalize(pooled, dim=-1) if self.normalize else pooled


def tracing(
    model: Any, *, pooling: str = "mean", normalize: bool = False, dense: Sequence[Layer] = ()
) -> Tracing:
    """Describe how to trace `model`: wrapped module, example inputs, names and symbols.

    Args:
        model: Model from `loader.load_meta`; gets the dense layers as its `dense`, which names their weights.
        pooling: Pooling method, see `pool`.
        normalize: Whether to scale each embedding to length 1.
        dense: Dense layers after the pooling.
    """
    if dense:
        model.dense = nn.ModuleList(map(_linear, dense))
    module = Embed(model, pooling, normalize, [layer["activation"] for layer in dense])
    return whole_texts.describe(model, module, "output")


def _linear(layer: Layer) -> nn.Linear:
    """Return a layer whose parameters take no memory, as in `loader.hollow`."""
    made = nn.Linear(layer["in_features"], layer["out_features"], layer["bias"], device="meta")
    for name, parameter in list(made.named_parameters()):
        hollow = nn.Parameter(torch.empty(()).expand(parameter.shape), requires_grad=False)
        setattr(made, name, hollow)
    return made
