# SPDX-License-Identifier: Apache-2.0
"""Images and text with cross-attention to them, for tracing: programs `vision` and `language`.

Program `vision`
IN   pixel_values (1, 1, tiles, channels, height, width) f32    an image, cut into tiles; missing ones are zeros
     aspect_ratio_ids (1, 1) i64                                arrangement of the tiles, by the processor's number
     <mask> (1, 1, tiles) i64                                   1 is a tile, 0 is padding; named by the recipe
OUT  cross_key.i, cross_value.i (1, heads, rows, head_dim)      keys and values of the image for cross-attention layer i

Program `language`: as in `qeff_zoo.export.tracing.decoder_tracing`, with
IN   cross_key.i, cross_value.i (batch_size | full_batch_size, heads, max_num_images, tiles, rows of a tile, head_dim)
                                                                states that no call writes: a row for each image;
                                                                values are zeros if a text has no image at all
     cross_attention_mask (batch_size, seq_len, max_num_images, tiles) i64    per token 1 for a tile it attends to, 0
                                                                for the others of its text's images, their padding
                                                                included, -1 if there is no image

The forward is transformers' own. A token that attends to no tile, such as one before the first image, attends to all of
them, padding included, and skips the following MLP, as in training. In a text without images the layers change nothing,
since the values are zeros, which equals their omission in transformers.
"""

import inspect
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.export import Dim

from qeff_zoo.contract import Tracing
from qeff_zoo.export import layers
from qeff_zoo.export.concrete import Concrete
from qeff_zoo.export.layers import plain
from qeff_zoo.export.tracing import decoder_tracing
from qeff_zoo.export.tracing.encoder_decoder_tracing import CrossCache
from qeff_zoo.export.transforms.modules import language_model
from qeff_zoo.export.transforms.retained_state import RetainedState
from qeff_zoo.graph.states import State
from qeff_zoo.multimodal.tracing.forward_patches import Unread, swapped
from qeff_zoo.multimodal.tracing.patch_tracing import rename

#: Input with the tiles that tokens attend to, and symbol of the maximum number of images.
IMAGE_MASK, MAX_IMAGES = "cross_attention_mask", "max_num_images"
_STATES, _WHOLE_ROWS = "cross_attention_states", "full_text_row_masked_out_mask"
_RATIO = "aspect_ratio_ids"
_ROWS = "tile_rows"  # while it is traced, so that examples are small


class CrossAttentionEncoder(Protocol):
    """Image encoder whose features are read by cross-attention, as `qeff_zoo.multimodal.cross_attention` has it."""

    @property
    def layers(self) -> str:
        """Field of the text config that lists the layers with cross-attention."""

    @property
    def mask(self) -> str:
        """Name of the mask of tiles in the result of the processor."""


class Read(nn.Module):
    """The vision encoder, and its keys and values for the cross-attention layers of the language model.

    Args:
        model: Hugging Face model whose attention is `qeff_zoo`.
        images: Image input of the recipe.
    """

    def __init__(self, model: Any, images: CrossAttentionEncoder) -> None:
        super().__init__()
        self.model, self.names = model, ["pixel_values", _RATIO, images.mask]
        self.cross_attentions = [
            (layer, _cross_attention(module)) for layer, module in _crossing(model, images)
        ]

    def forward(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return keys and values for every cross-attention layer."""
        decoder, states = language_model(self.model), list[Tensor]()

        def note(*_: Any, **arguments: Any) -> Unread:
            states.append(arguments[_STATES])
            return Unread(torch.zeros(1, 1, decoder.config.hidden_size))

        with swapped((decoder, "forward", note)), Concrete():
            arguments = dict(zip(self.names, given, strict=True))
            self.model(input_ids=torch.zeros(1, 1, dtype=torch.long), **arguments)
        cross, query = CrossCache(), torch.zeros(1, 1, decoder.config.hidden_size)
        for _, module in self.cross_attentions:
            module(query, **{_STATES: states[0]}, past_key_values=cross)
        return tuple(value for _, _, value in cross.named())

    @property
    def example(self) -> list[Tensor]:
        """Example image of one tile."""
        vision = self.model.config.vision_config
        tiles, size = vision.max_num_tiles, vision.image_size
        mask = torch.zeros(1, 1, tiles, dtype=torch.long)
        mask[:, :, 0] = 1
        pixels = torch.zeros(1, 1, tiles, vision.num_channels, size, size)
        return [pixels, torch.ones(1, 1, dtype=torch.long), mask]


def _crossing(model: Any, images: CrossAttentionEncoder) -> list[tuple[int, Any]]:
    """Return the cross-attention layers of the language model, with their numbers."""
    decoder, config = language_model(model), model.config.get_text_config()
    repeated = layers.find(decoder, config.num_hidden_layers)
    assert repeated is not None
    return [(index, repeated[1][index]) for index in sorted(getattr(config, images.layers))]


def _cross_attention(layer: Any) -> Any:
    """Return the cross-attention module of a layer: the innermost that takes the states of images."""
    arguments = [
        module
        for module in layer.modules()
        if _STATES in inspect.signature(module.forward).parameters
    ]
    return arguments[-1]


def encoder_tracing(model: Any, images: CrossAttentionEncoder) -> Tracing:
    """Describe how to trace the vision encoder of `model`.

    Args:
        model: Model from `loader.load_meta`, its vision encoder possibly with fewer layers than its config has.
        images: Image input of the recipe.
    """
    module = Read(model, images).eval()
    names = [
        f"{name}.{layer}"
        for layer, _ in module.cross_attentions
        for name in ("cross_key", "cross_value")
    ]
    return Tracing(
        module=module,
        inputs={"given": module.example},
        dynamic_shapes={"given": [{} for _ in module.names]},
        input_names=module.names,
        output_names=names,
    )


class _Seeing:
    """Retained state whose cross-attention layers have keys and values of images.

    Args:
        state: State of the other layers, and of these.
    """

    def __init__(self, state: RetainedState) -> None:
        self._state = state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    @property
    def layers(self) -> "_Seeing":
        """Layers by index."""
        return self

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, layer_idx: Any) -> "_Layer":
        return _Layer(self._state, plain(layer_idx))


class _Layer:
    """Keys and values of images in one layer, read on demand, so that the trace counts them as the layer's own."""

    def __init__(self, state: RetainedState, layer: int) -> None:
        self._state, self._layer = state, layer
        self.is_initialized = f"cross_key.{layer}" in state.past

    @property
    def keys(self) -> Tensor:
        """Keys, (batch, heads, rows of all images, head_dim)."""
        return self._state.rows_of(f"cross_key.{self._layer}").flatten(2, 4)

    @property
    def values(self) -> Tensor:
        """Values of the same shape."""
        return self._state.rows_of(f"cross_value.{self._layer}").flatten(2, 4)


class Step(decoder_tracing.Step):
    """One call of a language model with cross-attention to images."""

    def call(
        self, input_ids: Tensor, position_ids: Tensor, state: RetainedState, more: Sequence[Tensor]
    ) -> Any:
        """Run transformers' forward with keys and values of images, and the masks of the inputs."""
        (mask,) = more
        rows = next(state.past[job.name].shape[4] for job in self.states if not job.written)
        arguments = dict(zip((IMAGE_MASK, _WHOLE_ROWS), _masks(mask, rows), strict=True))
        decoder = language_model(self.model)
        forward = decoder.forward
        with swapped(
            (decoder, "forward", lambda *args, **given: forward(*args, **{**given, **arguments}))
        ):
            return _call(self.model, input_ids, position_ids, _Seeing(state))


def _call(model: Any, input_ids: Tensor, position_ids: Tensor, state: _Seeing) -> Any:
    return model(
        input_ids=input_ids, position_ids=position_ids, past_key_values=state, use_cache=True
    )


def _masks(mask: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Return the additive mask, (batch, 1, seq, rows of all images), and 1 for each token that attends to an image."""
    attends = (mask > 0).flatten(2).any(-1)
    hidden = (mask < 0) | ((mask == 0) & attends[:, :, None, None])
    bias = torch.where(hidden, torch.finfo(torch.float32).min, 0.0)[..., None]
    bias = bias.expand(-1, -1, -1, -1, rows).flatten(2)[:, None]
    return bias, attends.to(torch.float32)[:, None, :, None]


def tracing(model: Any, images: CrossAttentionEncoder, **variant: Any) -> Tracing:
    """Describe how to trace the language model of `model`.

    Args:
        model: Model from `loader.load_meta`, possibly with fewer layers than its config has.
        images: Image input of the recipe.
        **variant: Arguments of `qeff_zoo.export.tracing.decoder_tracing.tracing`.
    """
    tiles = model.config.vision_config.max_num_tiles

    def probe(model: Any) -> list[State]:
        own = decoder_tracing.probe(model, language_model(model), _probed)
        return sorted([*own, *_read_states(model, images)], key=lambda state: state.layer)

    def more(batch: Any, seq: Any, _: Any, position_ids: Tensor) -> dict[str, tuple[Tensor, Any]]:
        mask = torch.ones(*position_ids.shape, decoder_tracing.SOURCE, tiles, dtype=torch.long)
        return {IMAGE_MASK: (mask, {0: batch, 1: seq, 2: Dim(MAX_IMAGES, min=2)})}

    traced = decoder_tracing.tracing(model, step=Step, probe=probe, more=more, **variant)
    rows = _rows_of(model)

    def sized(size: Any, _: int = 0) -> Any:
        return rows if size == _ROWS else size

    def then(graph: Any) -> None:
        if traced.then:
            traced.then(graph)
        rename(graph.graph.inputs, sized)

    states = [replace(state, axes=tuple(map(sized, state.axes))) for state in traced.states]
    return replace(traced, states=states, then=then)


def _probed(model: Any, input_ids: Tensor, position_ids: Tensor, state: RetainedState) -> Any:
    """Run the layers of the text alone."""
    return _call(model, input_ids, position_ids, _Seeing(state))


def _read_states(model: Any, images: CrossAttentionEncoder) -> list[State]:
    """Return the retained states of images in the language model."""
    tiles = model.config.vision_config.max_num_tiles
    return [
        State(
            name=f"{name}.{layer}",
            kind="cross",
            layer=layer,
            axes=("batch_size", part.num_key_value_heads, MAX_IMAGES, tiles, _ROWS, part.head_dim),
        )
        for layer, module in _crossing(model, images)
        for part in (_cross_attention(module),)
        if [*part.parameters()]  # else the layer is not traced
        for name in ("cross_key", "cross_value")
    ]


def _rows_of(model: Any) -> int:
    """Return the rows of a tile: a class token, and one row per patch."""
    vision = model.config.vision_config
    return int((vision.image_size // vision.patch_size) ** 2 + 1)
