# SPDX-License-Identifier: Apache-2.0
"""Decoders with the features of an image before their tokens, without placeholder tokens (GIT).

Image features do not attend to the text, so that their keys and values in each decoder layer are computed once, as for
cross-attention: the encoder program runs the decoder's layers on them, and the decoder program takes them before its
own.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import Cache


def precedes(model: Any) -> bool:
    """Return whether a model is of this kind."""
    return hasattr(model.base_model, "visual_projection")


def writer_of(model: Any) -> Any:
    """Return the module that has the decoder layers."""
    return model.base_model.encoder


class _Read(Cache):
    """Cache that records the keys and values of image features.

    Args:
        cross: Cache that records them.
    """

    def __init__(self, cross: Any) -> None:
        self._cross = cross

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Record keys and values, (batch, heads, rows, head_dim)."""
        updated: tuple[Tensor, Tensor] = self._cross.update(key_states, value_states, layer_idx)
        return updated


class _Behind:
    """Cache that appends the keys and values of tokens to those of image features.

    Args:
        cache: Cache of both.
    """

    def __init__(self, cache: Any) -> None:
        self._own, self._cross = cache.self_attention_cache, cache.cross_attention_cache

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return 0, since the call has the token positions."""
        return 0

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Return keys and values of the image and the tokens, (batch, heads, rows + ctx, head_dim)."""
        own = self._own.update(key_states, value_states, layer_idx)
        return tuple(
            torch.cat(pair, 2) for pair in zip(self._cross.pair(layer_idx), own, strict=True)
        )  # type: ignore[return-value]


def write(
    model: Any, input_ids: Tensor, position_ids: Tensor, mask: Tensor, cache: Any, given: Mapping[str, Any]
) -> Any:  # fmt: skip
    """Run the forward on tokens, preceded by an image if there is one.

    Args:
        model: Hugging Face model.
        input_ids: (batch, seq).
        position_ids: (batch, seq), counted from 0 after the image.
        mask: Additive mask among tokens, (batch, 1, seq, ctx).
        cache: Cache of both.
        given: Optional `pixel_values`, (batch, channels, height, width).
    """
    inner = model.base_model
    if "pixel_values" in given:
        features = inner.visual_projection(
            inner.image_encoder(given["pixel_values"]).last_hidden_state
        )
        inner.encoder(
            features, attention_mask=None, past_key_values=_Read(cache.cross_attention_cache)
        )
    rows = cache.cross_attention_cache.pair(0)[0].shape[2]
    before = torch.zeros(*mask.shape[:3], rows, dtype=mask.dtype)
    return model(
        input_ids=input_ids,
        position_ids=position_ids,
        attention_mask=torch.cat([before, mask], 3),
        past_key_values=_Behind(cache),
        use_cache=True,
    )
