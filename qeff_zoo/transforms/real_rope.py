# SPDX-License-Identifier: Apache-2.0
"""RoPE by complex numbers, as DeepSeek V2 has it, becomes the same in real numbers: ONNX runtimes have no complex ones.

Neighbouring numbers of a head are the two parts of one complex number, which is turned by an angle of its position.
"""

from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn


def angles(self: Any, x: Tensor, position_ids: Tensor) -> Tensor:
    """Return cosines and sines side by side, (batch, seq, rotary_dim / 2, 2), in place of complex numbers."""
    turns: Tensor = position_ids[..., None].float() * self.inv_freq.float()
    return torch.stack([turns.cos(), turns.sin()], dim=-1) * float(self.attention_scaling)


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs of (batch, heads, seq, rotary_dim)."""
    real, imaginary = x.float().reshape(*x.shape[:-1], -1, 2).unbind(-1)
    parts = [real * cos - imaginary * sin, real * sin + imaginary * cos]
    return torch.stack(parts, dim=-1).flatten(3).type_as(x)


def apply_rotary_emb(query: Tensor, key: Tensor, angles: Tensor) -> tuple[Tensor, Tensor]:
    """Turn queries and keys; stands in for transformers' function of that name."""
    cos, sin = angles.unsqueeze(1).unbind(-1)
    return turn(query, cos, sin), turn(key, cos, sin)


def apply(model: nn.Module, rotary: str, attention: str) -> int:
    """Change modules whose class is named `rotary` or `attention`; return their number.

    Args:
        model: Changed in place.
        rotary: Class that makes the angles.
        attention: Class whose forward calls `apply_rotary_emb`.
    """
    changed = 0
    for module in model.modules():
        name = type(module).__name__
        if name == rotary:
            module.forward = MethodType(angles, module)
        elif name == attention:
            # The same code, in which one name means something else.
            forward = type(module).forward
            names = {**forward.__globals__, "apply_rotary_emb": apply_rotary_emb}
            module.forward = MethodType(_rebound(forward, names), module)
        else:
            continue
        changed += 1
    return changed


def _rebound(function: Any, names: dict[str, Any]) -> FunctionType:
    """Copy a function for other global names."""
    return FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
