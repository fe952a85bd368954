# SPDX-License-Identifier: Apache-2.0
"""Padded audio: padding after the end changes nothing, neither a norm over time nor a convolution.

Hugging Face's models mask padded frames in attention alone: a group norm averages over them, and a padded convolution
reads them across the end. So audio in a batch has other logits than by itself; not so here.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.export.transforms.modules import give

from . import squeezed_frames


@dataclass
class AudioLengths:
    """Lengths of the audio in a batch, for modules that depend on them.

    Attributes:
        lengths: Number of inputs without padding in each row, (batch,).
        inputs: The same for the next strided convolution.
        frames: Mask (batch, frames), True for frames of the encoder without padding.
    """

    lengths: Tensor | None = None
    inputs: Tensor | None = None
    frames: Tensor | None = None


def apply(model: Any) -> int:
    """Pass the end of each audio to norms over time and padded convolutions of an encoder.

    Args:
        model: Model with strided convolutions before its encoder.
    """
    model.audio_lengths = audio = AudioLengths()
    reader = model.get_encoder() if model.config.is_encoder_decoder else model
    has_frame_mask = hasattr(type(model), "_get_feature_vector_attention_mask")
    squeezed = {
        submodule
        for module in model.modules()
        if squeezed_frames.squeezes(module)
        for submodule in module.modules()
    }
    changed = 0

    def note(
        _: nn.Module, args: tuple[Any, ...], given: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        mask = given["attention_mask"]
        audio.lengths = audio.inputs = mask.sum(1)
        return args, given if has_frame_mask else {**given, "attention_mask": _whole(reader, mask)}

    reader.register_forward_pre_hook(note, with_kwargs=True)
    for module in model.modules():
        norm, conv = (_own(module, kind) for kind in (nn.GroupNorm, nn.Conv1d))
        if norm is not None and conv is not None:
            _limit(norm, conv, audio)
            changed += 1
        if hasattr(type(module), "_get_feature_vector_attention_mask"):
            module.audio_lengths = audio
            give(module, _frames_of, "_get_feature_vector_attention_mask")
        if squeezed_frames.squeezes(module):
            squeezed_frames.apply(module)
            changed += 1
        elif isinstance(module, nn.Conv1d) and module.padding != (0,) and module not in squeezed:
            (_hide if module.stride == (1,) else _hide_inputs)(module, audio)
            changed += 1
    if squeezed and hasattr(model, "layer_weights"):
        squeezed_frames.average_squeezed(model, audio)
    if not has_frame_mask:
        for module in (model, reader):
            module.strided = [child for child in reader.children() if isinstance(child, nn.Conv1d)]
            give(module, _count, "_get_feat_extract_output_lengths")
    return changed


def _own(module: nn.Module, kind: type[nn.Module]) -> Any:
    """Return the first child of a module that is of a class; None without one."""
    return next((child for child in module.children() if isinstance(child, kind)), None)


def _outputs(conv: nn.Conv1d, inputs: Any) -> Any:
    """Return the number of outputs for a number of inputs: integers or tensors."""
    (width,), (stride,) = conv.kernel_size, conv.stride
    padding = int(conv.padding[0])
    beyond = inputs - (width - 2 * padding)
    if isinstance(inputs, Tensor):
        return torch.div(beyond, stride, rounding_mode="floor") + 1
    return beyond // stride + 1


def _count(self: Any, input_lengths: Any) -> Any:
    """Return the number of frames for a number of samples, of each row."""
    for conv in self.strided:
        input_lengths = _outputs(conv, input_lengths)
    return input_lengths


def _whole(reader: Any, mask: Tensor) -> Tensor:
    """Return a mask with 1 at the first input of each whole frame, where the model reads it."""
    step = math.prod(conv.stride[0] for conv in reader.strided)
    frames = reader._get_feat_extract_output_lengths(mask.sum(1))
    whole: Tensor = (torch.arange(mask.shape[1]) < frames[:, None] * step).to(mask.dtype)
    return whole


def _frames_of(
    self: Any, feature_vector_length: int, attention_mask: Tensor, add_adapter: bool | None = None
) -> Tensor:
    """Return which frames are audio, without an index that torch.export does not support."""
    if attention_mask.dim() > 2:  # per query, for inputs that were encoded before
        return attention_mask
    lengths = self._get_feat_extract_output_lengths(self.audio_lengths.lengths)
    self.audio_lengths.frames = torch.arange(feature_vector_length) < lengths[:, None]
    return self.audio_lengths.frames  # type: ignore[no-any-return]


def _limit(norm: nn.GroupNorm, conv: nn.Conv1d, audio: AudioLengths) -> None:
    """Restrict a norm, per channel or over all, to the frames of the audio."""
    together = norm.num_groups < norm.num_channels
    assert norm.num_groups == (1 if together else norm.num_channels)

    def forward(self: nn.GroupNorm, states: Tensor) -> Tensor:
        assert audio.lengths is not None
        counts = _outputs(conv, audio.lengths)[:, None, None].clamp(min=1)
        real = (torch.arange(states.shape[2]) < counts).to(states.dtype)  # (batch, 1, frames)
        share = _root_of_share(counts, states.dtype)

        def mean(values: Tensor) -> Tensor:
            average = (values * share).sum(2, keepdim=True) * share
            return average.mean(1, keepdim=True) if together else average

        centred = (states - mean(states * real)) * real
        scaled = centred * torch.rsqrt(mean(centred.square()) + self.eps)
        normed: Tensor = scaled * self.weight[:, None] + self.bias[:, None]
        return normed

    give(norm, forward)


def _root_of_share(counts: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 1 / sqrt(counts): a mean applies it before and after its sum, so that neither exceeds float16."""
    blocks = counts // 64  # lengths of long audio themselves exceed it
    return torch.rsqrt(blocks.to(dtype) + (counts - 64 * blocks).to(dtype) / 64) / 8


def _hide_inputs(conv: nn.Conv1d, audio: AudioLengths) -> None:
    """Zero the inputs of a strided convolution in a chain after the end of the audio."""

    def silence(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
        assert audio.inputs is not None
        real = torch.arange(args[0].shape[2]) < audio.inputs[:, None]
        audio.inputs = _outputs(conv, audio.inputs)
        return (args[0] * real[:, None, :].to(args[0].dtype),)

    conv.register_forward_pre_hook(silence)


def _hide(conv: nn.Conv1d, audio: AudioLengths) -> None:
    """Zero the inputs of a convolution after the end of the audio, like its own padding."""

    def silence(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
        assert audio.frames is not None
        return (args[0] * audio.frames[:, None, :].to(args[0].dtype),)

    conv.register_forward_pre_hook(silence)
