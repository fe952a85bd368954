# SPDX-License-Identifier: Apache-2.0
"""One call of draft heads or draft layers, for tracing: programs `heads` and `draft` of a `text-generation` package.

Heads, each of which drafts one token:

IN   hidden_states (batch_size, hidden)     hidden state of the token before the newest one
     [input_ids (batch_size, heads) i64]    newest token, then each draft token, -1 for the most probable: for heads
                                            that take them
OUT  logits (batch_size, heads, vocab)      logits of the tokens after the newest one

A decoder layer with its own KV cache, which drafts token by token; inputs and outputs are otherwise those of
`qeff_zoo.export.tracing.decoder_tracing`:

IN   input_ids (batch_size, seq_len) i64
     hidden_states (batch_size, seq_len, hidden)   state of the token before each: the model's, or if it has not run,
                                                   the state that this program returned for the one before
OUT  drafted_states (batch_size, seq_len, hidden)   replacement of the hidden state of each token
     logits (batch_size, 1, vocab)          logits of the token after the newest

A block drafter, which drafts all tokens in one call, is such a layer without `drafted_states`:

IN   input_ids (batch_size, seq_len) i64    of a row: CONTEXT_ID for each hidden state, the newest token, then
                                            MASK_ID for each token to draft
     hidden_states (batch_size, seq_len, hidden)   the model's hidden states; else ignored
OUT  logits (batch_size, count, vocab)      logits of the drafted tokens
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from qeff_zoo.contract import Tracing
from qeff_zoo.export.draft_heads import layers
from qeff_zoo.export.draft_heads.modules import build
from qeff_zoo.export.loader import hollow
from qeff_zoo.export.tracing import decoder_tracing
from qeff_zoo.export.transforms.retained_state import RetainedState

_BATCH = 2  # or torch.export specializes


class Draft(nn.Module):
    """One call of draft heads.

    Args:
        model: Target model, whose `speculator` has the heads.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, hidden_states: Tensor, input_ids: Tensor | None = None) -> tuple[Tensor]:
        """Return logits."""
        head = self.model.get_output_embeddings()
        return (self.model.speculator(hidden_states, head, input_ids),)


def tracing(model: Any, *, speculator: Mapping[str, Any]) -> Tracing:
    """Describe how to trace the draft heads of a model.

    Args:
        model: Model from `loader.load_meta`.
        speculator: Declaration of the heads, see `qeff_zoo.checkpoint.draft_heads.kinds`.
    """
    heads = model.speculator = build(speculator).eval()
    hollow(heads)
    batch = Dim("batch_size", min=2)
    inputs = {"hidden_states": torch.zeros(_BATCH, speculator["hidden_size"])}
    if heads.reads_tokens:
        inputs["input_ids"] = torch.zeros(_BATCH, speculator["heads"], dtype=torch.int64)
    return Tracing(
        module=Draft(model).eval(),
        inputs=inputs,
        dynamic_shapes={name: {0: batch} for name in inputs},
        input_names=[*inputs],
        output_names=["logits"],
    )


class Step(decoder_tracing.Step):
    """One call of a draft layer, which is the model's `speculator`."""

    @property
    def head(self) -> Any:
        """Output head of the layer."""
        return self.model.speculator.head

    def handed(self, output: Any, hidden: Tensor) -> Tensor:
        """Return the replacement of the hidden state of every token."""
        handed: Tensor = output.handed
        return handed

    def call(
        self, input_ids: Tensor, position_ids: Tensor, state: RetainedState, more: Sequence[Tensor]
    ) -> Any:
        """Run the layer."""
        return self.model.speculator(
            self.model.get_input_embeddings(),
            input_ids,
            *more,
            position_ids=position_ids,
            past_key_values=state,
        )


class BlockStep(Step):
    """One call of a block drafter, which is the model's `speculator`: logits of the last tokens of each row."""

    def call(
        self, input_ids: Tensor, position_ids: Tensor, state: RetainedState, more: Sequence[Tensor]
    ) -> Any:
        """Run the block drafter."""
        count, last = self.model.speculator.count, position_ids.shape[1] - 1
        first = (state.needed + 1 - count).clamp(min=0)
        state.needed = (first + torch.arange(count)[None]).clamp(max=last)
        return super().call(input_ids, position_ids, state, more)


def tracing_of_layer(model: Any, *, speculator: Mapping[str, Any], **variant: Any) -> Tracing:
    """Describe how to trace the draft layer of a model.

    Args:
        model: Model from `loader.load_meta`.
        speculator: Declaration of the layer, see `qeff_zoo.checkpoint.draft_heads.kinds`.
        **variant: Arguments of `qeff_zoo.export.tracing.decoder_tracing.tracing`.
    """
    layer = model.speculator = layers.build(speculator, model).eval()
    hollow(layer)
    size = speculator.get("joins", [speculator["hidden_size"]])[0]

    def more(batch: Any, seq: Any, ctx: Any, position_ids: Tensor) -> dict[str, tuple[Tensor, Any]]:
        return {"hidden_states": (torch.zeros(*position_ids.shape, size), {0: batch, 1: seq})}

    def call(_: Any, input_ids: Tensor, position_ids: Tensor, state: RetainedState) -> Any:
        hidden = torch.zeros(*input_ids.shape, size)
        embed = model.get_input_embeddings()
        return layer(embed, input_ids, hidden, position_ids=position_ids, past_key_values=state)

    at_once = hasattr(layer, "count")
    base = decoder_tracing.tracing(
        model,
        step=BlockStep if at_once else Step,
        more=more,
        probe=partial(decoder_tracing.probe, inner=layer.inner, call=call),
        hidden_states=not at_once,
        **variant,
    )
    names = ["drafted_states" if name == "hidden_states" else name for name in base.output_names]
    return replace(base, output_names=names)
