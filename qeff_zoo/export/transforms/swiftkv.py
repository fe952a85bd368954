# SPDX-License-Identifier: Apache-2.0
"""SwiftKV: layers without keys and values of their own compute only the tokens whose logits are needed."""

from typing import Any

from torch import Tensor
from transformers.masking_utils import create_causal_mask

from qeff_zoo.export.transforms.modules import give, of_class
from qeff_zoo.export.transforms.retained_state import RetainedState


def going_on(
    self: Any, hidden: Tensor, rope: tuple[Tensor, Tensor], _: Tensor, state: RetainedState
) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
    """Compute `LlamaSwiftKVModel.going_on`.

    Args:
        self: Module of the model.
        hidden: (batch, seq, hidden).
        rope: Cosines and sines, (batch, seq, head_dim).
        state: Retained state.

    Returns:
        The hidden states of the tokens whose logits are needed, their cosines and sines, and their mask.
    """
    hidden, *own = state.narrow(hidden, *rope)
    mask: Any = create_causal_mask(
        config=self.config,
        inputs_embeds=hidden,
        attention_mask=None,
        past_key_values=state,
        position_ids=state.queries,
    )
    return hidden, tuple(own), mask


def apply(model: Any) -> int:
    """Let the later layers compute only the needed tokens; return the number of models with such layers."""
    models = of_class(model, "LlamaSwiftKVModel")
    for one in models:
        give(one, going_on, "going_on")
    return len(models)
