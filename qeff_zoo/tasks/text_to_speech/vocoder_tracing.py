# SPDX-License-Identifier: Apache-2.0
"""HiFi-GAN vocoders of transformers, for tracing: frames in, samples out, independent of the padding after them."""

from typing import Any

import torch
from torch import Tensor, nn


def vocode(vocoder: Any, frames: Tensor, mask: Tensor, condition: Tensor | None = None) -> Tensor:
    """Return the samples of frames.

    Each convolution reads zeros after the end, like its own padding: its bias is not zero there.

    Args:
        vocoder: Module with `conv_pre`, `upsampler`, `resblocks` and `conv_post`.
        frames: (batch, channels, frames), zeros after the end.
        mask: (batch, 1, frames), 1 for a frame, 0 for padding.
        condition: Speaker embeddings, (batch, channels, 1); None without.

    Returns:
        (batch, samples), zeros after the end.
    """
    states = vocoder.conv_pre(frames)
    if condition is not None:
        states = states + vocoder.cond(condition)
    states = states * mask
    slope, kernels = vocoder.config.leaky_relu_slope, vocoder.num_kernels
    for number, upsample in enumerate(vocoder.upsampler):
        mask = _repeated(mask, upsample.stride[0])
        states = _upsampled(upsample, nn.functional.leaky_relu(states, slope)) * mask
        blocks = vocoder.resblocks[number * kernels : (number + 1) * kernels]
        first, *others = (_residual(block, states, mask) for block in blocks)
        states = sum(others, first) / kernels
    samples = torch.tanh(vocoder.conv_post(nn.functional.leaky_relu(states)))
    return (samples * mask)[:, 0]


def _upsampled(layer: nn.ConvTranspose1d, states: Tensor) -> Tensor:
    """Return the output of a layer, by an op that the ONNX exporter translates without a second trace."""
    return torch.convolution(
        states,
        layer.weight,
        layer.bias,
        layer.stride,
        [int(size) for size in layer.padding],
        layer.dilation,
        True,
        layer.output_padding,
        layer.groups,
    )


def _residual(block: Any, states: Tensor, mask: Tensor) -> Tensor:
    """Return the states after a block of pairs of convolutions."""
    for first, second in zip(block.convs1, block.convs2, strict=True):
        inner = first(nn.functional.leaky_relu(states, block.leaky_relu_slope)) * mask
        inner = second(nn.functional.leaky_relu(inner, block.leaky_relu_slope)) * mask
        states = states + inner
    return states


def _repeated(mask: Tensor, times: int) -> Tensor:
    """Return a mask with each entry repeated."""
    return mask[..., None].expand(-1, -1, -1, times).flatten(2)
