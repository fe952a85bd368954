# SPDX-License-Identifier: Apache-2.0
"""Gemma 3n's sparse MLPs: how many deviations above the mean a gate must be is a number, known before tracing.

transformers computes it in every call by the inverse of the error function, which ONNX does not have.
"""

from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.export.transforms.modules import give, of_class


def cut(self: Any, inputs: Tensor) -> Tensor:
    """Keep of (batch, seq, intermediate) what is far enough above its mean, less that bound.

    Args:
        self: `Gemma3nTextMLP`.
        inputs: Gates.
    """
    mean = inputs.mean(-1, keepdim=True)
    deviation = (inputs - mean).square().mean(-1, keepdim=True).sqrt()
    return nn.functional.relu(inputs - (mean + deviation * self._deviations))


def apply(model: nn.Module) -> int:
    """Change every `Gemma3nTextMLP` that is sparse; return their number."""
    found = [mlp for mlp in of_class(model, "Gemma3nTextMLP") if mlp.activation_sparsity > 0]
    normal = torch.distributions.Normal(torch.zeros(1, device="cpu"), torch.ones(1, device="cpu"))
    for mlp in found:
        share = torch.tensor([mlp.activation_sparsity], dtype=torch.float32, device="cpu")
        mlp._deviations = float(normal.icdf(share))
        give(mlp, cut, "_gaussian_topk")
    return len(found)
