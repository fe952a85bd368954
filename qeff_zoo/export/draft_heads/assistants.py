# SPDX-License-Identifier: Apache-2.0
"""Torch module of an assistant for the exporter: transformers' own layers, on keys and values of another model.

It drafts tokens one after the other at one position: each step reads the embedding of a token and the hidden state of
the one before, from the model or from its own previous step. Its position and its attention stay the same.
"""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo import registry
from qeff_zoo.export.loader import load_meta
from qeff_zoo.export.transforms.modules import language_model

_OWN = ("k_proj", "v_proj", "k_norm", "v_norm")


def read_layers(model: Any) -> dict[str, Any]:
    """Return the last attention with its own keys and values in a model, by kind of attention."""
    every = (
        module
        for module in language_model(model).modules()
        if hasattr(module, "is_kv_shared_layer")
    )
    return {one.layer_type: one for one in every if not one.is_kv_shared_layer}


class Assistant(nn.Module):
    """A model of a few layers without keys and values of its own.

    Args:
        settings: Description, see `qeff_zoo.checkpoint.draft_heads.assistant`.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        config, target = settings["config"], settings["hidden_size"]
        size = config["hidden_size"]
        self.inner: Any = load_meta(config, registry.recipe_for(config))
        for module in self.inner.modules():
            if hasattr(module, "is_kv_shared_layer"):
                module.is_kv_shared_layer = True
                for name in _OWN:
                    module._modules.pop(name, None)
        self.pre_projection = nn.Linear(2 * target, size, bias=False)
        self.post_projection = nn.Linear(size, target, bias=False)

    def forward(
        self,
        embeds: Tensor,
        hidden_states: Tensor,
        position_ids: Tensor,
        shared: Mapping[str, tuple[Tensor, Tensor]],
    ) -> Any:
        """Return logits (batch, seq, vocab), and replacements of hidden states, (batch, seq, size).

        Args:
            embeds: Embeddings of tokens, (batch, seq, size).
            hidden_states: Hidden states of the tokens before, in the same shape.
            position_ids: Numbers of visible keys, (batch, seq).
            shared: Keys and values by kind of attention, (batch, kv_heads, ctx_len, head_dim).
        """
        last = position_ids - 1
        # transformers counts the window from the last key, inclusively: it is one wider than the model's own.
        windows = {"full_attention": 0, "sliding_attention": self.inner.config.sliding_window + 1}
        masks = {
            kind: torch.ops.qeff_zoo.causal_mask(last, keys.shape[2], windows[kind])
            for kind, (keys, _) in shared.items()
        }
        output = self.inner.model(
            inputs_embeds=self.pre_projection(torch.cat([embeds, hidden_states], -1)),
            attention_mask=masks,
            position_ids=position_ids,
            shared_kv_states=dict(shared),
            use_cache=False,
        )
        state = output.last_hidden_state
        return SimpleNamespace(logits=self.inner.lm_head(state), handed=self.post_projection(state))
