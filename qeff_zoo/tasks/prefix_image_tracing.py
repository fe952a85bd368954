# SPDX-License-Identifier: Apache-2.0
"""Decoders that read what a tower has seen before their tokens, with no tokens in its places (GIT).

What was seen never sees the text, so that its keys and values in each layer of the decoder are made once, as those of
cross-attention are: the encoder's program runs the decoder's layers on them, and the decoder's program finds them
before its own.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import Cache


def precedes(model: Any) -> bool:
    """Tell whether a model is such a one."""
    return hasattr(model.base_model, "visual_projection")


def writer_of(model: Any) -> Any:
    """Return what has the layers of the decoder."""
    return model.base_model.encoder


class _Read(Cache):
    """Notes keys and values of what was seen.

    Args:
        cross: Where.
    """

    def __init__(self, cross: Any) -> None:
        self._cross = cross

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Note what is made, (batch, heads, rows, head_dim)."""
        found: tuple[Tensor, Tensor] = self._cross.update(key_states, value_states, layer_idx)
        return found


class _Behind:
    """Puts keys and values of tokens behind those of what was seen.

    Args:
        cache: Of both.
    """

    def __init__(self, cache: Any) -> None:
        self._own, self._cross = cache.self_attention_cache, cache.cross_attention_cache

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Nothing: where tokens are, the call says itself."""
        return 0

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Return those of all that tokens may see, (batch, heads, rows + ctx, head_dim)."""
        own = self._own.update(key_states, value_states, layer_idx)
        return tuple(
            torch.cat(pair, 2) for pair in zip(self._cross.pair(layer_idx), own, strict=True)
        )  # type: ignore[return-value]


def write(
    model: Any, input_ids: Tensor, position_ids: Tensor, mask: Tensor, cache: Any, given: Mapping[str, Any]
) -> Any:  # fmt: skip
    """Run the forward on tokens; first on a picture, where one is given.

    Args:
        model: Hugging Face model.
        input_ids: (batch, seq).
        position_ids: (batch, seq), from 0 on whatever was seen.
        mask: Additive, of tokens among themselves, (batch, 1, seq, ctx).
        cache: Of both.
        given: `pixel_values`, (batch, channels, height, width), or not.
    """
    inner = model.base_model
    if "pixel_values" in given:
        seen = inner.visual_projection(inner.image_encoder(given["pixel_values"]).last_hidden_state)
        inner.encoder(seen, attention_mask=None, past_key_values=_Read(cache.cross_attention_cache))
    rows = cache.cross_attention_cache.pair(0)[0].shape[2]
    before = torch.zeros(*mask.shape[:3], rows, dtype=mask.dtype)
    return model(
        input_ids=input_ids,
        position_ids=position_ids,
        attention_mask=torch.cat([before, mask], 3),
        past_key_values=_Behind(cache),
        use_cache=True,
    )
