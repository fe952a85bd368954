# SPDX-License-Identifier: Apache-2.0
"""Frames that are squeezed by a factor before the layers and stretched after them (SEW), of any length.

Hugging Face's encoder drops the last frames if the factor does not divide their number, and returns zeros for them.
Here it gets a number that the factor divides, and the frames that it would have dropped are masked in its layers.
"""

from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from qeff_zoo.export.transforms.modules import give


def squeezes(module: nn.Module) -> bool:
    """Return whether a module is an encoder that squeezes its frames."""
    return hasattr(module, "pool") and hasattr(module, "upsample")


def average_squeezed(model: Any, audio: Any) -> None:
    """Let a head average the states of layers, which are squeezed, over the frames that its layers have.

    Args:
        model: Model whose head sums the states of all layers (`use_weighted_layer_sum`), changed in place.
        audio: Lengths of the call, `lengths` in samples.
    """
    factor: int = model.config.squeeze_factor

    def squeezed(_: Any, feature_vector_length: int, attention_mask: Tensor) -> Tensor:
        frames: Tensor = model._get_feat_extract_output_lengths(audio.lengths) // factor
        return torch.arange(feature_vector_length) < frames[:, None]

    give(model, squeezed, "_get_feature_vector_attention_mask")


def apply(encoder: Any) -> None:
    """Let an encoder read any number of frames, with the true end of each audio.

    Args:
        encoder: Encoder, changed in place; its mask is True for frames without padding.
    """
    plain, convolved = encoder.forward, encoder.pos_conv_embed.forward
    factor: int = encoder.config.squeeze_factor
    frames: list[Tensor] = []

    def positions(_: Any, __: Tensor) -> Tensor:
        result: Tensor = convolved(frames.pop())
        return result

    def pooled(mask: Tensor, **_: Any) -> Tensor:  # torch's own makes a number of the length
        return mask[:, :, ::factor]

    def forward(_: Any, hidden_states: Tensor, attention_mask: Tensor, **given: Any) -> Any:
        count = hidden_states.shape[1]
        squeezed = (count + factor - 1) // factor
        at = torch.arange(squeezed * factor)
        real = (at < count) & attention_mask[:, at.clamp(max=count - 1)]
        states = hidden_states[:, at.clamp(max=count - 1)] * real[:, :, None].to(
            hidden_states.dtype
        )
        whole = at < real.sum(1, keepdim=True) // factor * factor
        frames.append(states.transpose(1, 2).clone())  # position embeddings read the dropped frames
        with mock.patch.object(nn.functional, "max_pool1d", pooled):
            result = plain(states, attention_mask=whole, **given)
        stretched = result.last_hidden_state * whole[:, :, None].to(states.dtype)
        result.last_hidden_state = stretched[:, torch.arange(count)]
        return result

    give(encoder.pos_conv_embed, positions)
    give(encoder, forward)
