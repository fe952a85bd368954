# SPDX-License-Identifier: Apache-2.0
"""Sound that is padded: what lies behind its end changes nothing, neither a norm over time nor a convolution.

Hugging Face's models hide padded frames from attention alone: a group norm averages over them, and a convolution with
padding of its own sees them across the end. So a sound in a batch has other logits than by itself; not so here.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.transforms.modules import give


@dataclass
class Heard:
    """How much of a batch is sound, for those modules that have to know.

    Attributes:
        lengths: (batch,), inputs of each row that are sound.
        frames: (batch, frames), True where a frame of the encoder is.
    """

    lengths: Tensor | None = None
    frames: Tensor | None = None


def apply(model: Any) -> int:
    """Let norms over time and padded convolutions of an encoder know the end of each sound.

    Args:
        model: Of waveforms, with strided convolutions before its encoder.
    """
    heard = Heard()
    changed = 0

    def note(_: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        heard.lengths = given["attention_mask"].sum(1)

    model.register_forward_pre_hook(note, with_kwargs=True)
    for module in model.modules():
        norm = getattr(module, "layer_norm", None)
        if isinstance(norm, nn.GroupNorm) and isinstance(module.conv, nn.Conv1d):
            _limit(norm, module.conv, heard)
            changed += 1
        if hasattr(type(module), "_get_feature_vector_attention_mask"):
            module.heard = heard
            give(module, _frames_of, "_get_feature_vector_attention_mask")
        if isinstance(module, nn.Conv1d) and module.padding != (0,):
            _hide(module, heard)
            changed += 1
    return changed


def _frames_of(
    self: Any, feature_vector_length: int, attention_mask: Tensor, add_adapter: bool | None = None
) -> Tensor:
    """Tell which frames are of the sound, without an index that torch.export cannot follow."""
    lengths = self._get_feat_extract_output_lengths(self.heard.lengths)
    self.heard.frames = torch.arange(feature_vector_length) < lengths[:, None]
    return self.heard.frames  # type: ignore[no-any-return]


def _limit(norm: nn.GroupNorm, conv: nn.Conv1d, heard: Heard) -> None:
    """Let a norm with one group a channel average over the frames of the sound alone."""
    width, stride = conv.kernel_size[0], conv.stride[0]

    def forward(self: nn.GroupNorm, states: Tensor) -> Tensor:
        assert heard.lengths is not None
        counts = (torch.div(heard.lengths - width, stride, rounding_mode="floor") + 1)[
            :, None, None
        ]
        real = (torch.arange(states.shape[2]) < counts).to(states.dtype)  # (batch, 1, frames)
        counts = counts.clamp(min=1).to(states.dtype)
        centred = (states - (states * real).sum(2, keepdim=True) / counts) * real
        variance = centred.square().sum(2, keepdim=True) / counts
        scaled = centred * torch.rsqrt(variance + self.eps)
        return scaled * self.weight[:, None] + self.bias[:, None]

    give(norm, forward)


def _hide(conv: nn.Conv1d, heard: Heard) -> None:
    """Let a convolution find zeros behind the end of the sound, as it does behind the end of its input."""

    def silence(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
        assert heard.frames is not None
        return (args[0] * heard.frames[:, None, :].to(args[0].dtype),)

    conv.register_forward_pre_hook(silence)
