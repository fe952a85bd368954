# SPDX-License-Identifier: Apache-2.0
"""The experts seam: a block of gated experts becomes one semantic op; in other blocks each product becomes one."""

from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from qeff_zoo.export import ops  # noqa: F401  (defines torch.ops.qeff_zoo)
from qeff_zoo.export.experts_ops import gated, mix
from qeff_zoo.graph.semantic.op import UNBOUNDED


def mix_experts(
    self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """Compute a block of experts.

    Args:
        self: Experts module: stacked `gate_up_proj` or `up_proj`, and `down_proj`.
        hidden_states: (tokens, hidden).
        top_k_index: (tokens, k), the experts of each token.
        top_k_weights: (tokens, k), their routing weights.

    Returns:
        (tokens, hidden).
    """
    if self.has_post_expert_norm:
        raise NotImplementedError(
            f"{type(self).__name__} normalizes after each expert, which is not computed here."
        )
    if top_k_index.shape[1] == 0:  # no token has an expert
        return torch.zeros_like(hidden_states)
    interleaved = bool(self.is_transposed)
    gate = _gate(self, interleaved=interleaved) if self.has_gate else None
    routed = hidden_states, top_k_index, top_k_weights
    mixed: Tensor
    if gate and not interleaved and not self.has_bias:
        mixed = torch.ops.qeff_zoo.experts(*routed, self.gate_up_proj, self.down_proj, *gate)
        return mixed
    if gate and interleaved and self.has_bias:
        gate_up = self.gate_up_proj, self.gate_up_proj_bias
        down = self.down_proj, self.down_proj_bias
        mixed = torch.ops.qeff_zoo.interleaved_experts(*routed, *gate_up, *down, *gate)
        return mixed
    return _routed(self, *routed)


def _gate(module: Any, *, interleaved: bool) -> tuple[float, float, float] | None:
    """Return alpha, limit and offset of a block's gate if evaluation shows that the op computes it; else None."""
    own = [float(getattr(module, name, None) or UNBOUNDED) for name in ("limit", "swiglu_limit")]
    limits = sorted({*own, UNBOUNDED})
    alphas = (1.0, float(getattr(module, "alpha", None) or 1.702))
    # Real numbers, also while a graph is traced.
    with _disable_current_modes(), torch.device("cpu"):
        both = torch.linspace(-30.0, 30.0, 1024).roll(337).view(16, 64)
        both = torch.stack([both, both.flip(0, 1).roll(5, 1)], -1).flatten(1)
        computed = module._apply_gate(both)
        if isinstance(computed, FakeTensor) or computed.is_meta:
            return None
        gate, up = (both[:, ::2], both[:, 1::2]) if interleaved else both.chunk(2, dim=-1)
        for chosen in product(alphas, limits, (0.0, 1.0)):
            if torch.allclose(computed, gated(gate, up, *chosen), rtol=1e-5, atol=1e-5):
                return chosen
    return None


def _routed(module: Any, hidden_states: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    def project(x: Tensor, name: str) -> Tensor:
        stack = getattr(module, name)
        products: Tensor = torch.ops.qeff_zoo.routed_linear(
            x, index, stack.mT if module.is_transposed else stack
        )
        return products + getattr(module, f"{name}_bias")[index] if module.has_bias else products

    inner = project(hidden_states[:, None], "gate_up_proj" if module.has_gate else "up_proj")
    inner = module._apply_gate(inner) if module.has_gate else module.act_fn(inner)
    return mix(project(inner, "down_proj"), weights)


ALL_EXPERTS_FUNCTIONS.register("qeff_zoo", mix_experts)


def apply(model: Any) -> int:
    """Select this implementation; return the number of expert blocks that use it."""
    model.set_experts_implementation("qeff_zoo")
    return sum(hasattr(module, "_is_expert_parallel") for module in model.modules())
