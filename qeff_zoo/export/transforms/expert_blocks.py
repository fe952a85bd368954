# SPDX-License-Identifier: Apache-2.0
"""Blocks of experts of single models: each method is a function here, whose first line describes the transform."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.errors import ExportError
from qeff_zoo.export import ops  # noqa: F401  (defines torch.ops.qeff_zoo)
from qeff_zoo.export.experts_ops import mix
from qeff_zoo.export.transforms.modules import give, of_class


def aria_experts(self: Any, hidden_states: Tensor) -> Tensor:
    """Aria's experts: tokens are flattened for the routed experts alone, not for the shared ones beside them.

    Flattened and reshaped back, they have a shape that `torch.export` cannot prove to be the original one.

    Compute `AriaTextMoELayer` on (batch, seq, hidden).
    """
    tokens = hidden_states.reshape(-1, hidden_states.shape[-1])
    _, weights, chosen = self.router(tokens)
    routed: Tensor = self.experts(tokens, chosen, weights).view(hidden_states.shape)
    shared: Tensor = self.shared_experts(hidden_states)
    return routed + shared


def dbrx_experts(
    self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """DBRX's experts, whose matrices are stacked by rows: each of their products becomes a semantic op.

    Args:
        self: Module `DbrxExperts`, whose `mlp` has `w1`, `v1` and `w2`, each (experts * inner, hidden).
        hidden_states: (batch, seq, hidden).
        top_k_index: (tokens, k), the experts of each token.
        top_k_weights: (tokens, k), their routing weights.

    Returns:
        (batch, seq, hidden).
    """
    tokens = hidden_states.reshape(-1, 1, self.hidden_size)
    mlp, linear = self.mlp, torch.ops.qeff_zoo.routed_linear
    stack = self.num_experts, self.ffn_hidden_size, self.hidden_size
    gate, up = (linear(tokens, top_k_index, one.view(stack)) for one in (mlp.w1, mlp.v1))
    outputs = linear(mlp.activation_fn(gate) * up, top_k_index, mlp.w2.view(stack).mT)
    return mix(outputs, top_k_weights).view_as(hidden_states)


def ernie_experts(
    self: Any, hidden_states: Tensor, moe_mm_token_type_ids: Tensor | None = None
) -> tuple[Tensor, None]:
    """ERNIE 4.5 VL's experts of text and of images: each token is routed to those of its kind, in mixed calls, too.

    transformers selects tokens by a mask and gives each kind of experts its own. Here both get all tokens, and no
    expert for a token of the other kind, so that a token still costs only its chosen experts. The kind follows from the
    token: image tokens, and those that begin and end an image.

    Args:
        self: The block.
        hidden_states: (batch, seq, hidden).
        moe_mm_token_type_ids: Whether each token is of an image, (batch, seq); None for text alone.

    Returns:
        (batch, seq, hidden), and no logits of routers.
    """
    tokens = hidden_states.reshape(-1, hidden_states.shape[-1])
    if moe_mm_token_type_ids is None:
        moe_mm_token_type_ids = torch.zeros_like(hidden_states[..., 0], dtype=torch.bool)
    of_image = moe_mm_token_type_ids.reshape(-1, 1)
    text, images = (
        _of_kind(self.text_moe, tokens, ~of_image),
        _of_kind(self.vision_moe, tokens, of_image),
    )
    output = (text + images).view(hidden_states.shape)
    return (
        output if self.shared_experts is None else output + self.shared_experts(hidden_states)
    ), None


def _of_kind(block: Any, tokens: Tensor, own: Tensor) -> Tensor:
    """Compute the experts of a kind on its own tokens, (tokens, 1); 0 for others."""
    _, weights, chosen = block.gate(tokens)
    none = block.num_experts + torch.arange(chosen.shape[1])
    output: Tensor = block.experts(
        tokens, torch.where(own, chosen, none), torch.where(own, weights, 0.0)
    )
    return output


def _route(router: Any, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the experts of each token and their routing weights, both (tokens, k), and the scores."""
    scores = router.layer(tokens).float()
    best, chosen = scores.topk(router.top_k, dim=1)
    return chosen, torch.softmax(best, dim=1).type_as(tokens), scores


def _multiply(stack: Any, x: Tensor, chosen: Tensor) -> Tensor:
    """Compute `routed_linear` of a `JetMoeParallelExperts`."""
    product: Tensor = torch.ops.qeff_zoo.routed_linear(x, chosen, stack.weight)
    return product


def jetmoe_experts(self: Any, layer_input: Tensor) -> Tensor:
    """JetMoe's experts without sorting tokens by expert: each of their products becomes a semantic op.

    Attention has experts too. A token's chosen experts each make a set of query heads, and transform its result back.

    Compute `JetMoeMoE` on (batch, seq, hidden).
    """
    tokens = layer_input.reshape(-1, self.input_size)
    chosen, weights, _ = _route(self.router, tokens)
    gate, up = _multiply(self.input_linear, tokens[:, None], chosen).chunk(2, dim=-1)
    outputs = _multiply(self.output_linear, self.activation(gate) * up, chosen)
    result: Tensor = mix(outputs, weights).view_as(layer_input) + self.bias
    return result


def _queries(self: Any, layer_input: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Compute `JetMoeMoA.map`: (batch, seq, k, heads * head_dim), the scores, and the input of `_results`."""
    tokens = layer_input.reshape(-1, self.input_size)
    chosen, weights, scores = _route(self.router, tokens)
    queries = _multiply(self.input_linear, tokens[:, None], chosen)
    return queries.view(*layer_input.shape[:2], self.top_k, -1), scores, (chosen, weights)


def _results(self: Any, layer_input: Tensor, routing: tuple[Tensor, Tensor]) -> Tensor:
    """Compute `JetMoeMoA.reduce` on (batch, seq, k, heads * head_dim)."""
    chosen, weights = routing
    given = layer_input.reshape(-1, self.top_k, self.hidden_size)
    mixed = mix(_multiply(self.output_linear, given, chosen), weights)
    result: Tensor = mixed.view(*layer_input.shape[:2], -1) + self.bias
    return result


def llama4_experts(self: Any, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
    """Llama 4's experts, whose input, not result, is scaled by the token's score: each product becomes a semantic op.

    transformers multiplies all tokens by all experts in one batched product.

    Args:
        self: Module `Llama4TextMoe`.
        hidden_states: (batch, seq, hidden).

    Returns:
        (tokens, hidden), and the router's logits.
    """
    tokens = hidden_states.reshape(-1, self.hidden_dim)
    scores, logits = self.router(tokens)  # (tokens, experts), 0 where not chosen
    best, chosen = scores.topk(self.top_k, dim=1)
    experts, linear = self.experts, torch.ops.qeff_zoo.routed_linear
    given = tokens[:, None] * best[..., None]  # (tokens, k, hidden)
    gate, up = linear(given, chosen, experts.gate_up_proj.mT).chunk(2, dim=-1)
    outputs = linear(up * experts.act_fn(gate), chosen, experts.down_proj.mT)
    return self.shared_expert(tokens) + outputs.sum(1), logits


def longcat_experts(
    self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """LongCat's experts, some of which return their input: each product of the others becomes a semantic op.

    Args:
        self: Module `LongcatFlashExperts`.
        hidden_states: (tokens, hidden).
        top_k_index: (tokens, k), the experts of each token; the last ones compute nothing.
        top_k_weights: (tokens, k), their routing weights.

    Returns:
        (tokens, hidden).
    """
    if self.gate_up_proj is None:  # every expert returns its input
        return hidden_states * top_k_weights.sum(-1, keepdim=True)
    idle = torch.where(top_k_index >= self.num_routed_experts, top_k_weights, 0.0)
    linear, stack = torch.ops.qeff_zoo.routed_linear, self.gate_up_proj[: self.num_routed_experts]
    gate, up = linear(hidden_states[:, None], top_k_index, stack).chunk(2, dim=-1)
    outputs = linear(self.act_fn(gate) * up, top_k_index, self.down_proj)
    return mix(outputs, top_k_weights) + hidden_states * idle.sum(-1, keepdim=True)


#: Methods by name, by class of the block, by transform.
_METHODS: Mapping[str, Mapping[str, Mapping[str, Callable[..., Any]]]] = MappingProxyType(
    {
        "aria_experts": {"AriaTextMoELayer": {"forward": aria_experts}},
        "dbrx_experts": {"DbrxExperts": {"forward": dbrx_experts}},
        "ernie_experts": {"Ernie4_5_VLMoeMoeBlock": {"forward": ernie_experts}},
        "jetmoe_experts": {
            "JetMoeMoE": {"forward": jetmoe_experts},
            "JetMoeMoA": {"map": _queries, "reduce": _results},
        },
        "llama4_experts": {"Llama4TextMoe": {"forward": llama4_experts}},
        "longcat_experts": {"LongcatFlashExperts": {"forward": longcat_experts}},
    }
)


def apply(model: nn.Module, *, transform: str) -> int:
    """Replace the methods of every block of a transform; return the number of blocks.

    Args:
        model: Model, changed in place.
        transform: Name of the transform.

    Raises:
        ExportError: No transform has the name.
    """
    if transform not in _METHODS:
        raise ExportError(
            f"Transform {transform!r} is unknown. Expected a module of qeff_zoo.export.transforms, or one of "
            f"{', '.join(_METHODS)}. Correct the recipe."
        )
    count = 0
    for name, methods in _METHODS[transform].items():
        blocks = of_class(model, name)
        count += len(blocks)
        for block in blocks:
            for method, function in methods.items():
                give(block, function, method)
    return count
