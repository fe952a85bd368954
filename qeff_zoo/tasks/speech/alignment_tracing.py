# SPDX-License-Identifier: Apache-2.0
"""Cross-attention weights of a speech model's tokens, for tracing: program `alignment` of `speech-seq2seq` packages.

IN   input_ids (batch_size, seq_len) i64                all tokens of a window's transcript, from position 0
     cross_key.i, cross_value.i (batch_size, heads, source, head_dim)   output of the encoder for the window
OUT  weights (batch_size, chosen heads, seq_len, source)   of cross-attention

The program runs once per window, if word-level timestamps are requested, and retains nothing. The heads are those that
generation_config.json sets (`alignment_heads`), which follow the audio.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from transformers import AttentionInterface, AttentionMaskInterface

from qeff_zoo.checkpoint.config import positions_of
from qeff_zoo.contract import Tracing
from qeff_zoo.export.tracing import encoder_decoder_tracing
from qeff_zoo.export.transforms.attention import additive_mask
from qeff_zoo.export.transforms.retained_state import Probe

_IMPLEMENTATION = "qeff_zoo_weighed"
_BATCH, _SEQ = 2, 6  # of the example
_ENDLESS = 1 << 31  # positions


class Align(encoder_decoder_tracing.Step):
    """One pass over all tokens of a window.

    Args:
        model: Hugging Face model.
        heads: Layer and head of each alignment head.
    """

    def __init__(self, model: Any, heads: Sequence[tuple[int, int]]) -> None:
        states, modules = encoder_decoder_tracing.cross_attentions(model)
        super().__init__(model, states)
        self.heads, self.cross_attentions = heads, [module for module, _ in modules]
        model.config._attn_implementation = _IMPLEMENTATION

    def forward(self, input_ids: Tensor, cross: Sequence[Tensor]) -> Tensor:  # type: ignore[override]
        """Return the weights of the alignment heads."""
        positions = torch.arange(input_ids.shape[1]).expand(input_ids.shape)
        state = Probe(positions, {}, {})
        state.past = {one.name: value for one, value in zip(self.states, cross, strict=True)}
        noted: dict[int, Tensor] = {}

        def note(layer: int, _: Any, __: Any, output: tuple[Tensor, Tensor]) -> None:
            noted[layer] = output[1]

        hooks = [
            module.register_forward_hook(partial(note, layer))
            for layer, module in enumerate(self.cross_attentions)
        ]
        try:
            self.call(input_ids, positions, state, ())
        finally:
            for hook in hooks:
                hook.remove()
        return torch.stack([noted[layer][:, head] for layer, head in self.heads], 1)


def weigh(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Compute attention with the signature of transformers' attention interface, and return its weights as well.

    Args:
        module: The calling attention module.
        query: (batch, heads, seq, head_dim).
        key: (batch, heads, ctx, head_dim).
        value: (batch, heads, ctx, head_dim).
        attention_mask: Additive mask, (batch or 1, 1, seq, ctx); None for full attention.
        scaling: Factor of the scores; None for head_dim ** -0.5.
    """
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    weights = (scores if attention_mask is None else scores + attention_mask).softmax(-1)
    return (weights @ value).transpose(1, 2), weights


def tracing(model: Any, *, alignment_heads: Sequence[tuple[int, int]]) -> Tracing:
    """Describe how to trace the alignment.

    Args:
        model: Model from `loader.load_meta`.
        alignment_heads: Layer and head of each alignment head.
    """
    module = Align(model, alignment_heads).eval()
    batch = Dim("batch_size", min=2)
    longest = positions_of(vars(model.config)) or _ENDLESS
    return Tracing(
        module=module,
        inputs={
            "input_ids": torch.zeros(_BATCH, _SEQ, dtype=torch.long),
            "cross": [
                torch.zeros(_BATCH, *(int(size) for size in state.axes[1:]))
                for state in module.states
            ],
        },
        dynamic_shapes={
            "input_ids": {0: batch, 1: Dim("seq_len", min=2, max=longest - 1)},
            "cross": [{0: batch} for _ in module.states],
        },
        input_names=["input_ids", *(state.name for state in module.states)],
        output_names=["weights"],
    )


AttentionInterface.register(_IMPLEMENTATION, weigh)
AttentionMaskInterface.register(_IMPLEMENTATION, additive_mask)
