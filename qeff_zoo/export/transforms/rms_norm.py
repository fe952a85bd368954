# SPDX-License-Identifier: Apache-2.0
"""RMS norms become the semantic op `RMSNorm`."""

from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.export import ops  # noqa: F401  (defines torch.ops.qeff_zoo)
from qeff_zoo.export.transforms.modules import give


def apply(model: nn.Module, offset: float = 0.0, suffix: str = "RMSNorm") -> int:
    """Replace the forward of every module whose class name is that of an RMS norm.

    Args:
        model: Model, changed in place.
        offset: Added to the weight (Gemma stores weight - 1).
        suffix: Suffix of the class name.

    Returns:
        Number of modules changed.
    """

    def forward(self: Any, hidden_states: Tensor) -> Any:
        if hidden_states.shape[-1] == 0:  # of latents of rank 0
            return hidden_states
        epsilon = self.eps if hasattr(self, "eps") else self.variance_epsilon
        weight = self._parameters.get("weight")
        if weight is None:  # none at all, or one that is there for a kernel only
            weight = hidden_states.new_full(hidden_states.shape[-1:], 1.0 - offset)
        return torch.ops.qeff_zoo.rms_norm(hidden_states, weight, float(epsilon), offset)

    norms = [module for module in model.modules() if type(module).__name__.endswith(suffix)]
    for norm in norms:
        give(norm, forward)
    return len(norms)
