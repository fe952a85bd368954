# SPDX-License-Identifier: Apache-2.0
"""The `text-generation` contract: tokens and positions in, the last valid position's logits and the KV states out.

IN   input_ids (batch_size, seq_len) i64    position_ids (batch_size, seq_len) i64, -1 is padding
     [batch_index (batch_size, 1) i64]      the cache slot of each row, for continuous batching
     past_key.i, past_value.i               (batch_size | full_batch_size, kv_heads, ctx_len, head_dim)
OUT  logits (batch_size, 1, vocab)          of the highest position in each row
     past_key.i_RetainedState, past_value.i_RetainedState
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from qeff_zoo.tasks import Tracing
from qeff_zoo.transforms.retained_state import Probe, RetainedState

_BATCH, _SEQ, _CTX, _SLOTS = 2, 6, 10, 3  # example sizes: at least 2, or torch.export specializes


class Step(nn.Module):
    """One call of a causal language model on retained states.

    Args:
        model: Hugging Face model whose attention is `qeff_zoo`.
        layers: Layer indices in the order of the states.
    """

    def __init__(self, model: Any, layers: list[int]) -> None:
        super().__init__()
        self.model, self.layers = model, layers

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        past: list[tuple[Tensor, Tensor]],
        batch_index: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Return logits of each row's highest position, then the new states, key and value in turn."""
        state = RetainedState(dict(zip(self.layers, past, strict=True)), position_ids, batch_index)
        newest = position_ids.argmax(1, keepdim=True)  # (batch, 1)

        def keep_newest(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
            hidden = args[0]
            return (hidden.gather(1, newest[:, :, None].expand(-1, -1, hidden.shape[2])),)

        head = self.model.get_output_embeddings().register_forward_pre_hook(keep_newest)
        try:
            output = self.model(
                input_ids=input_ids,
                position_ids=position_ids.clamp(min=0),
                past_key_values=state,
                use_cache=True,
            )
        finally:
            head.remove()
        return (
            output.logits,
            *(tensor for layer in self.layers for tensor in state.present[layer]),
        )


def probe(model: Any) -> dict[int, tuple[tuple[int, int], tuple[int, int]]]:
    """Return per layer index (kv_heads, head_dim) of key and value, by running the model on meta once."""
    position_ids = torch.arange(_SEQ, device="meta").expand(_BATCH, _SEQ)
    state = Probe(position_ids)
    with torch.no_grad():
        model(
            input_ids=torch.zeros_like(position_ids),
            position_ids=position_ids,
            past_key_values=state,
            use_cache=True,
        )
    return {
        layer: ((key.shape[1], key.shape[3]), (value.shape[1], value.shape[3]))
        for layer, (key, value) in sorted(state.present.items())
    }


def tracing(model: Any, *, continuous_batching: bool = False) -> Tracing:
    """Describe how to trace `model`: wrapped module, example inputs, names and symbols.

    Args:
        model: Meta-device model, possibly with fewer layers than its config says.
        continuous_batching: Address cache slots through `batch_index`.
    """
    states = probe(model)
    rows = _SLOTS if continuous_batching else _BATCH
    past = [
        tuple(torch.zeros(rows, heads, _CTX, dim) for heads, dim in pair)
        for pair in states.values()
    ]
    position_ids = torch.arange(_SEQ).expand(_BATCH, _SEQ).contiguous()
    inputs: dict[str, Any] = {
        "input_ids": torch.zeros_like(position_ids),
        "position_ids": position_ids,
        "past": past,
    }
    batch, seq, ctx = Dim("batch_size", min=2), Dim("seq_len", min=2), Dim("ctx_len", min=2)
    slots = Dim("full_batch_size", min=2) if continuous_batching else batch
    shapes: dict[str, Any] = {
        "input_ids": {0: batch, 1: seq},
        "position_ids": {0: batch, 1: seq},
        "past": [({0: slots, 2: ctx}, {0: slots, 2: ctx}) for _ in past],
    }
    names = [f"past_{part}.{layer}" for layer in states for part in ("key", "value")]
    if continuous_batching:
        inputs["batch_index"] = torch.zeros(_BATCH, 1, dtype=torch.long)
        shapes["batch_index"] = {0: batch}
    return Tracing(
        module=Step(model, list(states)).eval(),
        inputs=inputs,
        dynamic_shapes=shapes,
        input_names=[
            "input_ids",
            "position_ids",
            *names,
            *(["batch_index"] if continuous_batching else []),
        ],
        output_names=["logits", *(f"{name}_RetainedState" for name in names)],
    )
