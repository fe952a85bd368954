# SPDX-License-Identifier: Apache-2.0
"""Complex RoPE, as in DeepSeek V2, becomes the same rotation in real numbers, since ONNX runtimes lack complex ones.

An interleaved pair of a head is a complex number, which is rotated by an angle of its position.
"""

from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.export.transforms.modules import give, of_class, rebound


def angles(self: Any, x: Tensor, position_ids: Tensor) -> Tensor:
    """Return cosines and sines side by side, (batch, seq, rotary_dim / 2, 2), in place of complex numbers."""
    angles: Tensor = position_ids[..., None].float() * self.inv_freq.float()
    return torch.stack([angles.cos(), angles.sin()], dim=-1) * float(self.attention_scaling)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs of (batch, heads, seq, rotary_dim)."""
    real, imaginary = x.float().reshape(*x.shape[:-1], -1, 2).unbind(-1)
    parts = [real * cos - imaginary * sin, real * sin + imaginary * cos]
    return torch.stack(parts, dim=-1).flatten(3).type_as(x)


def apply_rotary_emb(query: Tensor, key: Tensor, angles: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys, in place of transformers' function of that name."""
    cos, sin = angles.unsqueeze(1).unbind(-1)
    return rotate(query, cos, sin), rotate(key, cos, sin)


def apply(model: nn.Module, rotary: str, attention: str) -> int:
    """Change modules whose class is named `rotary` or `attention`; return their number.

    Args:
        model: Model, changed in place.
        rotary: Name of the class that computes the angles.
        attention: Name of the class whose forward calls `apply_rotary_emb`.
    """
    rotaries, attentions = of_class(model, rotary), of_class(model, attention)
    for module in rotaries:
        give(module, angles)
    for module in attentions:
        give(module, rebound(type(module).forward, apply_rotary_emb=apply_rotary_emb))
    return len(rotaries) + len(attentions)
