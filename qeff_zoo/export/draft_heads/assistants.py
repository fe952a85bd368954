# SPDX-License-Identifier: Apache-2.0
"""An assistant as torch computes it, for the exporter: transformers' own layers, on keys and values of another model.

It says of one place of a text what follows, token after token: of each it reads the embedding and the state of the one
before, the model's own or what it made of that one itself. Its position and what it attends to stay the same.
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
    """Return by kind of attention the last attention of a model that has keys and values of its own."""
    every = (one for one in language_model(model).modules() if hasattr(one, "is_kv_shared_layer"))
    return {one.layer_type: one for one in every if not one.is_kv_shared_layer}


class Assistant(nn.Module):
    """A model of a few layers without keys and values.

    Args:
        said: See `qeff_zoo.checkpoint.draft_heads.assistant`.
    """

    def __init__(self, said: Mapping[str, Any]) -> None:
        super().__init__()
        config, target = said["config"], said["hidden_size"]
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
        """Return logits (batch, seq, vocab), and what stands for hidden states, (batch, seq, size).

        Args:
            embeds: (batch, seq, size), of tokens.
            hidden_states: The same, of the tokens before.
            position_ids: (batch, seq): how many keys each may see.
            shared: By kind of attention, keys and values (batch, kv_heads, ctx_len, head_dim).
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
