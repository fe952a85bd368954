# SPDX-License-Identifier: Apache-2.0
"""Llama 4's attention with real numbers, and with the true position of every token.

transformers rotates queries and keys by complex numbers, which ONNX lacks. Layers without RoPE scale queries by
position, which transformers counts from the length of its cache; that is the same for all rows and ignores padding.
"""

from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.export.transforms.modules import give, of_class


def frequencies(self: Any, hidden_states: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosine and sine, each (batch, seq, head_dim / 2), in place of one complex tensor.

    Args:
        self: Module `Llama4TextRotaryEmbedding`.
        hidden_states: Tensor of any shape.
        position_ids: (batch, seq).
    """
    angles = position_ids[..., None].float() * self.inv_freq.to(hidden_states.device).float()
    return angles.cos() * self.attention_scaling, angles.sin() * self.attention_scaling


def attend(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute `Llama4TextAttention` with changed outputs of its projections, which directly precede the rotation.

    Args:
        self: The attention module.
        *args: Arguments of the original.
        **kwargs: Arguments of the original.
    """
    changed = (self.q_proj, self.k_proj) if self.rotates else (self.q_proj,) if self.grows else ()

    def change(_: nn.Module, __: Any, projected: Tensor) -> Tensor:
        if self.rotates:
            return _rotate(projected, *kwargs["position_embeddings"])
        return projected * _growth(self, kwargs["past_key_values"])

    hooks = [projection.register_forward_hook(change) for projection in changed]
    try:
        return type(self).forward(self, *args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the interleaved pairs of every head; x is (batch, seq, heads * head_dim)."""
    real, imaginary = x.float().unflatten(-1, (-1, cos.shape[-1], 2)).unbind(-1)
    cos, sin = cos[:, :, None], sin[:, :, None]
    rotated = torch.stack((real * cos - imaginary * sin, real * sin + imaginary * cos), -1)
    return rotated.flatten(2).to(x.dtype)


def _growth(attention: Any, cache: Any) -> Tensor:
    """Return the factor of the queries, (batch, seq, 1)."""
    positions = cache.get_query_offset(attention.layer_idx).float()
    steps = torch.floor((positions + 1.0) / attention.floor_scale)
    growth: Tensor = torch.log1p(steps) * attention.attn_scale + 1.0
    return growth[..., None]


def apply(model: nn.Module) -> int:
    """Change every `Llama4TextAttention` and its shared modules; return the number of attentions."""
    attentions = of_class(model, "Llama4TextAttention")
    for attention in attentions:
        attention.rotates = bool(attention.use_rope)
        attention.grows = not attention.use_rope and bool(attention.attn_temperature_tuning)
        attention.use_rope = attention.attn_temperature_tuning = False
        give(attention, attend)
    for rotary in of_class(model, "Llama4TextRotaryEmbedding"):
        give(rotary, frequencies)
    return len(attentions)
