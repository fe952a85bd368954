# SPDX-License-Identifier: Apache-2.0
"""Tracing of Stable Diffusion's text encoder and UNet."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from qeff_zoo.contract import Tracing
from qeff_zoo.tasks.diffusion.tracing import BATCH, batch, latent_sides, named_axes, trace_encoder

_SEQ = 7  # tokens of the example


class PredictNoise(nn.Module):
    """One call of a UNet.

    Args:
        unet: Module of diffusers.
    """

    def __init__(self, unet: Any) -> None:
        super().__init__()
        self.unet = unet

    def forward(self, sample: Tensor, timestep: Tensor, encoder_hidden_states: Tensor) -> Tensor:
        """Return the output of the model."""
        found: Tensor = self.unet(sample, timestep, encoder_hidden_states, return_dict=False)[0]
        return found


def text_encoder(model: Any) -> Tracing:
    """Describe how to trace the text encoder."""
    return trace_encoder(model.text_encoder, lambda output: (output.last_hidden_state,))


def unet(model: Any) -> Tracing:
    """Describe how to trace the UNet."""
    config, rows, seq = model.unet.config, batch(), Dim("seq_len", min=2)
    levels = len(config.block_out_channels)
    height, width = latent_sides(levels)
    sides = 2 ** (levels + 1), 3 * 2**levels
    return Tracing(
        module=PredictNoise(model.unet).eval(),
        inputs={
            "sample": torch.zeros(BATCH, config.in_channels, *sides),
            "timestep": torch.zeros(BATCH),
            "encoder_hidden_states": torch.zeros(BATCH, _SEQ, config.cross_attention_dim),
        },
        dynamic_shapes={
            "sample": {0: rows, 2: height, 3: width},
            "timestep": {0: rows},
            "encoder_hidden_states": {0: rows, 1: seq},
        },
        input_names=["sample", "timestep", "encoder_hidden_states"],
        output_names=["output"],
        then=named_axes,
    )
