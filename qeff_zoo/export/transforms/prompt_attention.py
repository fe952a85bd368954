# SPDX-License-Identifier: Apache-2.0
"""Attention over the tokens of several prompts (SAM), whose prompts are rows of a batch."""

from typing import Any

from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .modules import give, of_class


def apply(model: Any) -> int:
    """Let attention project states of three axes, from which a target's kernel reads heads.

    Args:
        model: Hugging Face model, changed in place.

    Returns:
        Number of changed modules.
    """
    attentions = of_class(model, "SamAttention")
    for module in attentions:
        give(module, _forward)
    return len(attentions)


def _forward(self: Any, query: Tensor, key: Tensor, value: Tensor, **_: Any) -> tuple[Tensor, None]:
    """Return the output of attention.

    Args:
        self: Attention module.
        query: (images, prompts, tokens, hidden).
        key: (images, prompts, states, hidden).
        value: States of the shape of `key`.
    """

    def split(states: Tensor) -> Tensor:
        heads = states.view(*states.shape[:2], self.num_attention_heads, -1)
        return heads.transpose(1, 2)  # (images * prompts, heads, tokens, head_dim)

    heads = (
        split(project(states.flatten(0, 1)))
        for project, states in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
    )
    attend = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
    attended, *_ = attend(
        self, *heads, attention_mask=None, dropout=0.0, scaling=self.scaling, is_causal=False
    )
    output = self.out_proj(attended.flatten(2))
    return output.view(*query.shape[:2], *output.shape[1:]), None
