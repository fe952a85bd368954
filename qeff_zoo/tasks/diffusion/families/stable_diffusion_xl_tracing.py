# SPDX-License-Identifier: Apache-2.0
"""Tracing of Stable Diffusion XL's text encoders and UNet."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.contract import Tracing
from qeff_zoo.tasks.diffusion.families import stable_diffusion_tracing
from qeff_zoo.tasks.diffusion.tracing import BATCH, trace_encoder

_SIZES = 6  # numbers of `time_ids`
_STATE = "penultimate_state"


class PredictNoise(nn.Module):
    """One call of a UNet.

    Args:
        unet: Module of diffusers.
    """

    def __init__(self, unet: Any) -> None:
        super().__init__()
        self.unet = unet

    def forward(
        self,
        sample: Tensor,
        timestep: Tensor,
        encoder_hidden_states: Tensor,
        text_embeds: Tensor,
        time_ids: Tensor,
    ) -> Tensor:
        """Return the output of the model."""
        added = {"text_embeds": text_embeds, "time_ids": time_ids}
        found: Tensor = self.unet(
            sample, timestep, encoder_hidden_states, added_cond_kwargs=added, return_dict=False
        )[0]
        return found


def text_encoder(model: Any) -> Tracing:
    """Describe how to trace the first text encoder."""
    return trace_encoder(
        model.text_encoder,
        lambda output: (output.hidden_states[-2],),
        (_STATE,),
        output_hidden_states=True,
    )


def text_encoder_2(model: Any) -> Tracing:
    """Describe how to trace the second text encoder."""
    return trace_encoder(
        model.text_encoder_2,
        lambda output: (output.hidden_states[-2], output.text_embeds),
        (_STATE, "text_embeds"),
        output_hidden_states=True,
    )


def unet(model: Any) -> Tracing:
    """Describe how to trace the UNet."""
    plain, config = stable_diffusion_tracing.unet(model), model.unet.config
    of_sizes = _SIZES * config.addition_time_embed_dim
    more = {
        "text_embeds": torch.zeros(BATCH, config.projection_class_embeddings_input_dim - of_sizes),
        "time_ids": torch.zeros(BATCH, _SIZES),
    }
    rows = {0: plain.dynamic_shapes["timestep"][0]}
    return replace(
        plain,
        module=PredictNoise(model.unet).eval(),
        inputs={**plain.inputs, **more},
        dynamic_shapes={**plain.dynamic_shapes, **dict.fromkeys(more, rows)},
        input_names=[*plain.input_names, *more],
    )
