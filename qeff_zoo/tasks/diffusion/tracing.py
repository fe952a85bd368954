# SPDX-License-Identifier: Apache-2.0
"""Tracing of components that pipelines share: text encoders, and the encoder and decoder of a VAE.

text_encoder  IN   input_ids (batch_size, seq_len) i64, padded as the tokenizer pads
              OUT  states of the text, see the family
vae_encoder   IN   pixel_values (batch_size, 3, height, width) f32, from -1 to 1
              OUT  mean, deviation (batch_size, channels, latent_height, latent_width), of a normal distribution
vae_decoder   IN   latent_sample (batch_size, channels, latent_height, latent_width) f32
              OUT  sample (batch_size, 3, height, width), from -1 to 1
"""

import importlib
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from qeff_zoo.contract import Tracing

#: Example rows, and the most rows of a call: diffusers' upsampling has a branch for 64 and more.
BATCH, _MOST_ROWS = 2, 63
_SEQ = 7
#: Names of the axes of latents, and of images, by rank and place.
_LATENT_AXES = ("batch_size", None, "latent_height", "latent_width")
_PIXEL_AXES = ("batch_size", None, "height", "width")


def batch() -> Any:
    """Return the axis of rows."""
    return Dim("batch_size", min=2, max=_MOST_ROWS)


def latent_sides(levels: int) -> tuple[Any, Any]:
    """Return the axes of the height and width of latents, which each level but the first halves.

    Args:
        levels: Number of levels of a model; 1 for any sides.
    """
    unit = 2 ** (levels - 1)
    return unit * Dim("latent_rows", min=2), unit * Dim("latent_columns", min=2)


def named_axes(graph: Any) -> None:
    """Name the axes of latents and images, in place of expressions of the trace."""
    name_axes(graph, _LATENT_AXES)


def name_axes(
    graph: Any, names: tuple[str | None, ...], only: Collection[str] | None = None
) -> None:
    """Name the axes of inputs and outputs of a rank, in place of expressions of the trace.

    Args:
        graph: The portable graph.
        names: Names of the axes; None for those that are left.
        only: Names of the inputs and outputs; None for all.
    """
    for values in (graph.graph.inputs, graph.graph.outputs):
        for value in values:
            if len(value.shape) == len(names) and (only is None or value.name in only):
                _name(value, names)


def _name_encoder(graph: Any) -> None:
    named_axes(graph)
    for value in graph.graph.inputs:
        _name(value, _PIXEL_AXES)


def _name_pixels(graph: Any) -> None:
    named_axes(graph)
    for value in graph.graph.outputs:
        _name(value, _PIXEL_AXES)


def _name(value: Any, names: tuple[str | None, ...]) -> None:
    axes = [name or axis for name, axis in zip(names, value.shape, strict=True)]
    value.shape = type(value.shape)(axes)


class EncodeText(nn.Module):
    """One call of a text encoder.

    Args:
        encoder: Module of transformers.
        chosen: Function that returns the outputs of the program from those of the module.
        options: Arguments of the module.
    """

    def __init__(
        self, encoder: Any, chosen: Callable[[Any], tuple[Tensor, ...]], **options: Any
    ) -> None:
        super().__init__()
        self.encoder, self.chosen, self.options = encoder, chosen, options

    def forward(self, input_ids: Tensor) -> tuple[Tensor, ...]:
        """Return states of the text."""
        return self.chosen(self.encoder(input_ids, **self.options))


def trace_encoder(
    encoder: Any,
    chosen: Callable[[Any], tuple[Tensor, ...]],
    names: tuple[str, ...] = ("last_hidden_state",),
    **options: Any,
) -> Tracing:
    """Describe how to trace a text encoder.

    Args:
        encoder: Module of transformers.
        chosen: Function that returns the outputs of the program from those of the module.
        names: Names of these outputs.
        **options: Arguments of the module.
    """
    most = getattr(encoder.config, "max_position_embeddings", None)
    seq = Dim("seq_len", min=2, max=most)
    return Tracing(
        module=EncodeText(encoder, chosen, **options).eval(),
        inputs={"input_ids": torch.ones(BATCH, min(_SEQ, most or _SEQ), dtype=torch.long)},
        dynamic_shapes={"input_ids": {0: Dim("batch_size", min=2), 1: seq}},
        input_names=["input_ids"],
        output_names=[*names],
    )


class EncodePixels(nn.Module):
    """One call of the encoder of a VAE.

    Args:
        vae: Module of diffusers.
    """

    def __init__(self, vae: Any) -> None:
        super().__init__()
        self.vae = vae

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and deviation of the latents."""
        found = self.vae.encode(pixel_values, return_dict=False)[0]
        return found.mean, found.std


def vae_encoder(model: Any) -> Tracing:
    """Describe how to trace the encoder of the VAE."""
    config = model.vae.config
    levels = len(config.block_out_channels)
    height, width = latent_sides(levels)
    sides = 2 ** (levels + 1), 3 * 2**levels
    return Tracing(
        module=EncodePixels(model.vae).eval(),
        inputs={"pixel_values": torch.zeros(BATCH, config.in_channels, *sides)},
        dynamic_shapes={"pixel_values": {0: batch(), 2: height, 3: width}},
        input_names=["pixel_values"],
        output_names=["mean", "deviation"],
        then=_name_encoder,
    )


class DecodeLatents(nn.Module):
    """One call of the decoder of a VAE.

    Args:
        vae: Module of diffusers.
    """

    def __init__(self, vae: Any) -> None:
        super().__init__()
        self.vae = vae

    def forward(self, latent_sample: Tensor) -> Tensor:
        """Return images."""
        found: Tensor = self.vae.decode(latent_sample, return_dict=False)[0]
        return found


def vae_decoder(model: Any) -> Tracing:
    """Describe how to trace the decoder of the VAE."""
    height, width = latent_sides(1)
    return Tracing(
        module=DecodeLatents(model.vae).eval(),
        inputs={"latent_sample": torch.zeros(BATCH, model.vae.config.latent_channels, 4, 6)},
        dynamic_shapes={"latent_sample": {0: batch(), 2: height, 3: width}},
        input_names=["latent_sample"],
        output_names=["sample"],
        then=_name_pixels,
    )


def of_family(model: Any, family: str, role: str) -> Tracing:
    """Describe how to trace a component of a pipeline.

    Args:
        model: Module with the component, see `qeff_zoo.export.pipelines`.
        family: Module of the family.
        role: Role of the program.
    """
    module = importlib.import_module(f"qeff_zoo.tasks.diffusion.families.{family}_tracing")
    tracing: Tracing = getattr(module, role)(model)
    return tracing
