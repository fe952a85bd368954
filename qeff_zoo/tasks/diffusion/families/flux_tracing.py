# SPDX-License-Identifier: Apache-2.0
"""Tracing of Flux's text encoders and transformer."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from qeff_zoo.contract import Tracing
from qeff_zoo.tasks.diffusion.tracing import BATCH, batch, trace_encoder

_PATCHES, _TOKENS, _AXES = 6, 5, 3  # of the example, and numbers of a place


class PredictVelocity(nn.Module):
    """One call of the transformer.

    Args:
        transformer: Module of diffusers.
    """

    def __init__(self, transformer: Any) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        pooled_projections: Tensor,
        timestep: Tensor,
        img_ids: Tensor,
        txt_ids: Tensor,
        guidance: Tensor | None = None,
    ) -> Tensor:
        """Return the output of the model."""
        found: Tensor = self.transformer(
            hidden_states,
            encoder_hidden_states,
            pooled_projections,
            timestep,
            img_ids,
            txt_ids,
            guidance,
            return_dict=False,
        )[0]
        return found


def text_encoder(model: Any) -> Tracing:
    """Describe how to trace CLIP."""
    return trace_encoder(
        model.text_encoder, lambda output: (output.pooler_output,), ("pooler_output",)
    )


def text_encoder_2(model: Any) -> Tracing:
    """Describe how to trace T5."""
    return trace_encoder(model.text_encoder_2, lambda output: (output.last_hidden_state,))


def transformer(model: Any) -> Tracing:
    """Describe how to trace the transformer."""
    config, rows = model.transformer.config, batch()
    seq, patches = Dim("seq_len", min=2), Dim("image_len", min=2)
    inputs = {
        "hidden_states": torch.zeros(BATCH, _PATCHES, config.in_channels),
        "encoder_hidden_states": torch.zeros(BATCH, _TOKENS, config.joint_attention_dim),
        "pooled_projections": torch.zeros(BATCH, config.pooled_projection_dim),
        "timestep": torch.zeros(BATCH),
        "img_ids": torch.zeros(_PATCHES, _AXES),
        "txt_ids": torch.zeros(_TOKENS, _AXES),
    }
    axes: dict[str, dict[int, Any]] = {
        "hidden_states": {0: rows, 1: patches},
        "encoder_hidden_states": {0: rows, 1: seq},
        "pooled_projections": {0: rows},
        "timestep": {0: rows},
        "img_ids": {0: patches},
        "txt_ids": {0: seq},
    }
    if config.guidance_embeds:
        inputs["guidance"], axes["guidance"] = torch.zeros(BATCH), {0: rows}
    return Tracing(
        module=PredictVelocity(model.transformer).eval(),
        inputs=inputs,
        dynamic_shapes=axes,
        input_names=[*inputs],
        output_names=["output"],
    )
