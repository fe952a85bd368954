# SPDX-License-Identifier: Apache-2.0
"""One call of an assistant draft model, for tracing: program `assistant` of a `text-generation` package.

IN   input_ids (batch_size, seq_len) i64       the newest token, or a draft token after it
     hidden_states (batch_size, seq_len, hidden)   state of the token before: the model's, or if it has not run, the
                                               state that this program returned for the one before
     position_ids (batch_size, seq_len) i64    position of the newest token, whose previous states are read
     past_key.i, past_value.i (batch_size, kv_heads, ctx_len, head_dim)   KV states of the model, from its last layer of
                                               each kind of attention
OUT  drafted_states (batch_size, seq_len, hidden)   replacement of the token's hidden state
     logits (batch_size, seq_len, vocab)       logits of the token after it

The program retains nothing: it drafts any number of tokens from one position and the same states.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from qeff_zoo.contract import Tracing
from qeff_zoo.export.draft_heads.assistants import Assistant, read_layers
from qeff_zoo.export.loader import hollow

_BATCH, _SEQ, _CTX = 2, 3, 10  # of the example
_PAIR = ("past_key", "past_value")


class Assist(nn.Module):
    """One call of an assistant.

    Args:
        model: Target model, whose `speculator` is the assistant.
        kinds: Kinds of attention whose keys and values are read, in order.
    """

    def __init__(self, model: Any, kinds: Sequence[str]) -> None:
        super().__init__()
        self.model, self.kinds = model, kinds

    def forward(
        self, input_ids: Tensor, hidden_states: Tensor, position_ids: Tensor, past: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return logits, and the replacements of hidden states."""
        pairs = zip(past[::2], past[1::2], strict=True)
        output = self.model.speculator(
            self.model.get_input_embeddings()(input_ids),
            hidden_states,
            position_ids,
            dict(zip(self.kinds, pairs, strict=True)),
        )
        return output.logits, output.handed


def tracing(model: Any, *, speculator: Mapping[str, Any]) -> Tracing:
    """Describe how to trace the assistant of a model.

    Args:
        model: Model from `loader.load_meta`.
        speculator: Declaration of the assistant, see `qeff_zoo.checkpoint.draft_heads.assistant`.
    """
    read = sorted(read_layers(model).values(), key=lambda one: one.layer_idx)
    model.speculator = Assistant(speculator).eval()
    hollow(model.speculator)
    batch, seq, ctx = (Dim(name, min=2) for name in ("batch_size", "seq_len", "ctx_len"))
    tokens = torch.zeros(_BATCH, _SEQ, dtype=torch.int64)
    hidden = torch.zeros(_BATCH, _SEQ, speculator["hidden_size"])
    shapes = [(one.k_proj.out_features // one.head_dim, _CTX, one.head_dim) for one in read]
    past = [torch.zeros(_BATCH, *shape) for shape in shapes for _ in _PAIR]
    return Tracing(
        module=Assist(model, [one.layer_type for one in read]).eval(),
        inputs={
            "input_ids": tokens,
            "hidden_states": hidden,
            "position_ids": tokens + _SEQ,
            "past": past,
        },
        dynamic_shapes={
            **{name: {0: batch, 1: seq} for name in ("input_ids", "hidden_states", "position_ids")},
            "past": [{0: batch, 2: ctx} for _ in past],
        },
        input_names=[
            *("input_ids", "hidden_states", "position_ids"),
            *(f"{name}.{one.layer_idx}" for one in read for name in _PAIR),
        ],
        output_names=["logits", "drafted_states"],
    )
