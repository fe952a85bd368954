# SPDX-License-Identifier: Apache-2.0
"""Gemma 3n's sparse MLPs: the gate's threshold in deviations above the mean becomes a constant before tracing.

transformers computes it in every call by the inverse error function, which ONNX lacks.
"""

from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.export.transforms.modules import give, of_class


def cut(self: Any, inputs: Tensor) -> Tensor:
    """Subtract the threshold from (batch, seq, intermediate), and zero values below it.

    Args:
        self: Module `Gemma3nTextMLP`.
        inputs: Gates.
    """
    mean = inputs.mean(-1, keepdim=True)
    deviation = (inputs - mean).square().mean(-1, keepdim=True).sqrt()
    return nn.functional.relu(inputs - (mean + deviation * self._deviations))


def apply(model: nn.Module) -> int:
    """Change every `Gemma3nTextMLP` that is sparse; return their number."""
    sparse = [mlp for mlp in of_class(model, "Gemma3nTextMLP") if mlp.activation_sparsity > 0]
    normal = torch.distributions.Normal(torch.zeros(1, device="cpu"), torch.ones(1, device="cpu"))
    for mlp in sparse:
        share = torch.tensor([mlp.activation_sparsity], dtype=torch.float32, device="cpu")
        mlp._deviations = float(normal.icdf(share))
        give(mlp, cut, "_gaussian_topk")
    return len(sparse)
