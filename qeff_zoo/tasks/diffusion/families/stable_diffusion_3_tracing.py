# SPDX-License-Identifier: Apache-2.0
"""Tracing of Stable Diffusion 3's text encoders and transformer."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from qeff_zoo.contract import Tracing
from qeff_zoo.tasks.diffusion.tracing import BATCH, batch, named_axes, trace_encoder

_TOKENS = 5  # of the example
_STATES = ("penultimate_state", "text_embeds")


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
        timestep: Tensor,
        encoder_hidden_states: Tensor,
        pooled_projections: Tensor,
    ) -> Tensor:
        """Return the output of the model."""
        found: Tensor = self.transformer(
            hidden_states, encoder_hidden_states, pooled_projections, timestep, return_dict=False
        )[0]
        return found


def text_encoder(model: Any) -> Tracing:
    """Describe how to trace the first CLIP encoder."""
    return _of_clip(model.text_encoder)


def text_encoder_2(model: Any) -> Tracing:
    """Describe how to trace the second CLIP encoder."""
    return _of_clip(model.text_encoder_2)


def _of_clip(encoder: Any) -> Tracing:
    return trace_encoder(
        encoder,
        lambda output: (output.hidden_states[-2], output.text_embeds),
        _STATES,
        output_hidden_states=True,
    )


def text_encoder_3(model: Any) -> Tracing:
    """Describe how to trace T5."""
    return trace_encoder(model.text_encoder_3, lambda output: (output.last_hidden_state,))


def transformer(model: Any) -> Tracing:
    """Describe how to trace the transformer."""
    config, rows = model.transformer.config, batch()
    side = config.patch_size
    height, width = (
        side * Dim(name, min=2, max=config.pos_embed_max_size)
        for name in ("patch_rows", "patch_columns")
    )
    inputs = {
        "hidden_states": torch.zeros(BATCH, config.in_channels, 2 * side, 3 * side),
        "timestep": torch.zeros(BATCH),
        "encoder_hidden_states": torch.zeros(BATCH, _TOKENS, config.joint_attention_dim),
        "pooled_projections": torch.zeros(BATCH, config.pooled_projection_dim),
    }
    return Tracing(
        module=PredictVelocity(model.transformer).eval(),
        inputs=inputs,
        dynamic_shapes={
            "hidden_states": {0: rows, 2: height, 3: width},
            "timestep": {0: rows},
            "encoder_hidden_states": {0: rows, 1: Dim("seq_len", min=2)},
            "pooled_projections": {0: rows},
        },
        input_names=[*inputs],
        output_names=["output"],
        then=named_axes,
    )
