# SPDX-License-Identifier: Apache-2.0
"""Gated experts of a class without a choice of implementation in transformers: computed like all others."""

from typing import Any

from torch import Tensor, nn

from qeff_zoo.export.transforms.experts import mix_experts
from qeff_zoo.export.transforms.modules import give, of_class

#: Attributes that transformers' choice sets for others: joined gate and up matrices, rows as outputs, no biases.
_ATTRIBUTES = {
    "has_gate": True,
    "has_bias": False,
    "is_transposed": False,
    "has_post_expert_norm": False,
}


def forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Compute a block of experts; see `qeff_zoo.export.transforms.experts.mix_experts`."""
    return mix_experts(self, hidden_states, top_k_index, top_k_weights)


def apply(model: nn.Module, *, name: str) -> int:
    """Change every module of a class; return their number.

    Args:
        model: Model, changed in place.
        name: Name of the class.
    """
    modules = of_class(model, name)
    for module in modules:
        vars(module).update(_ATTRIBUTES)
        give(module, forward)
    return len(modules)
