# SPDX-License-Identifier: Apache-2.0
"""Token positions of a decoder, and distances between them, that may differ per row of a batch.

A model adds the length of its cache to 0, 1, 2, …; that of ours is a number per row and token. Here the sum is computed
where transformers' own code expects one number.
"""

from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from qeff_zoo.export.transforms.modules import give


def apply(model: Any) -> int:
    """Let position tables, and distance biases, take a number per row and token.

    Args:
        model: Model, changed in place.

    Returns:
        Number of modules changed.
    """
    config = model.config
    if not (config.is_encoder_decoder or getattr(config, "is_decoder", False)):
        return 0  # an encoder alone, of a recipe that serves both
    decoder = model.get_decoder()
    tables = [module for name, module in decoder.named_modules() if name == "embed_positions"]
    biases = [module for module in decoder.modules() if hasattr(module, "relative_attention_bias")]
    for table in tables:
        give(table, _look_up_sines if hasattr(table, "weights") else _look_up)
    for bias in biases:
        give(bias, _compute_bias, "compute_bias")
    return len(tables) + len(biases)


def _look_up(
    self: Any, tokens: Any, past_key_values_length: Tensor, position_ids: Tensor | None = None
) -> Tensor:
    """Return the learned embeddings of positions, (batch, seq, hidden).

    Args:
        self: Table of positions.
        tokens: Tokens, or their sizes, (batch, seq).
        past_key_values_length: Offsets of each token's position, (batch, seq).
        position_ids: Positions with offsets already added; None for some models.
    """
    seq = (tokens if isinstance(tokens, tuple) else tokens.shape)[1]
    positions = torch.arange(seq) + past_key_values_length
    return functional.embedding(positions + getattr(self, "offset", 0), self.weight)


def _look_up_sines(
    self: Any, tokens: Tensor, embeds: Tensor | None = None, past_key_values_length: Any = 0
) -> Tensor:
    """Return the sines of positions, (batch, seq, hidden), which start after that of padding."""
    positions = torch.arange(tokens.shape[1]) + past_key_values_length + self.padding_idx + 1
    sines: Tensor = self.weights[
        torch.where(tokens == self.padding_idx, self.padding_idx, positions)
    ]
    return sines


def _compute_bias(
    self: Any, query_length: int, key_length: int, device: Any, past_seen_tokens: Tensor
) -> Tensor:
    """Return the bias (batch, heads, queries, keys) of each distance."""
    queries = torch.arange(query_length) + past_seen_tokens
    distance = torch.arange(key_length) - queries[:, :, None]
    known = signature(self._relative_position_bucket).parameters
    given = {
        "bidirectional": False,
        "num_buckets": self.relative_attention_num_buckets,
        "max_distance": self.relative_attention_max_distance,
    }
    accepted = {name: value for name, value in given.items() if name in known}
    bucket = self._relative_position_bucket(distance, **accepted)
    values: Tensor = self.relative_attention_bias(bucket)
    return values.permute(0, 3, 1, 2)
