# SPDX-License-Identifier: Apache-2.0
"""Semantic ops of experts in torch; `semantic.experts` defines them."""

import torch
from torch import Tensor, nn


def gated(gate: Tensor, up: Tensor, alpha: float, limit: float, offset: float) -> Tensor:
    """Return gate * sigmoid(alpha * gate) * (up + offset), clamped to the limit first, the gate only from above."""
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + offset)


def mix(outputs: Tensor, weights: Tensor) -> Tensor:
    """Return the sum of the outputs of a token's experts, (T, K, H), by their routing weights (T, K)."""
    return (weights[:, None].to(outputs.dtype) @ outputs).squeeze(1)


def multiply(x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """Compute `routed_linear`."""
    given = x.expand(*index.shape, -1)
    products = x.new_zeros(*index.shape, weight.shape[1])
    for expert, matrix in enumerate(weight):
        chosen = index == expert
        products[chosen] = nn.functional.linear(given[chosen], matrix)
    return products


@torch.library.custom_op("qeff_zoo::routed_linear", mutates_args=())
def routed_linear(x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """Multiply each token by the matrices of the experts `index`, all different; an index without an expert gives 0."""
    return multiply(x, index, weight)


@routed_linear.register_fake
def _(x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty(*index.shape, weight.shape[1])


@torch.library.custom_op("qeff_zoo::experts", mutates_args=())
def experts(
    hidden: Tensor,
    index: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    down: Tensor,
    alpha: float,
    limit: float,
    offset: float,
) -> Tensor:
    """Return the weighted sum of the outputs of the experts `index` for each token; gates come first, then ups."""
    gate, up = multiply(hidden[:, None], index, gate_up).chunk(2, dim=-1)
    return mix(multiply(gated(gate, up, alpha, limit, offset), index, down), weights)


@experts.register_fake
def _(
    hidden: Tensor,
    index: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    down: Tensor,
    alpha: float,
    limit: float,
    offset: float,
) -> Tensor:
    return torch.empty_like(hidden)


@torch.library.custom_op("qeff_zoo::interleaved_experts", mutates_args=())
def interleaved_experts(
    hidden: Tensor,
    index: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    gate_up_bias: Tensor,
    down: Tensor,
    down_bias: Tensor,
    alpha: float,
    limit: float,
    offset: float,
) -> Tensor:
    """Return the weighted sum of the outputs of the experts `index` for each token."""
    last = len(gate_up) - 1
    known, weights = index.clamp(max=last), weights.where(index <= last, 0.0)
    both = multiply(hidden[:, None], index, gate_up.mT) + gate_up_bias[known]
    inner = gated(both[..., ::2], both[..., 1::2], alpha, limit, offset)
    return mix(multiply(inner, index, down.mT) + down_bias[known], weights)


@interleaved_experts.register_fake
def _(
    hidden: Tensor,
    index: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    gate_up_bias: Tensor,
    down: Tensor,
    down_bias: Tensor,
    alpha: float,
    limit: float,
    offset: float,
) -> Tensor:
    return torch.empty_like(hidden)
