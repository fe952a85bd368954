# SPDX-License-Identifier: Apache-2.0
"""A picture, and a text whose layers read it by cross-attention, as they are traced: programs `vision` and `language`.

Program `vision`
IN   pixel_values (1, 1, tiles, channels, height, width) f32    a picture, cut into tiles; what is missing is zeros
     aspect_ratio_ids (1, 1) i64                                how the tiles lie, as the processor numbers that
     <mask> (1, 1, tiles) i64                                   1 is a tile, 0 is what fills up; as a recipe calls it
OUT  cross_key.i, cross_value.i (1, heads, rows, head_dim)      what layer i of the language model asks of the picture

Program `language`: as in `qeff_zoo.tasks.text_generation.decoder_tracing`, with
IN   cross_key.i, cross_value.i (batch_size | full_batch_size, heads, max_num_images, tiles, rows of a tile, head_dim)
                                                                states that no call writes: a place for each picture;
                                                                values are zeros where a text has no picture at all
     cross_attention_mask (batch_size, seq_len, max_num_images, tiles) i64    of each token 1 for a tile that it sees,
                                                                0 for others of its text's pictures, whatever fills
                                                                those up among them, -1 where there is no picture

The forward is transformers' own. A token that sees no tile, as those before the first picture, attends to all of them,
what fills them up included, and skips the MLP behind: so the model was trained. In a text without pictures the layers
change nothing, as the values that they read are zeros, which is how transformers skips them.
"""

import inspect
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from qeff_zoo.export import layers
from qeff_zoo.export.concrete import Concrete
from qeff_zoo.export.layers import plain
from qeff_zoo.export.transforms.modules import language_model
from qeff_zoo.export.transforms.retained_state import RetainedState
from qeff_zoo.graph.states import State
from qeff_zoo.tasks.encoder_decoder.tracing import CrossCache
from qeff_zoo.tasks.forward_patches import Unread, swapped
from qeff_zoo.tasks.patch_tracing import rename

from . import Tracing
from .text_generation import decoder_tracing

#: What a call is told of the tiles that its tokens see, and how many pictures there may be.
SEEN, PICTURES = "cross_attention_mask", "max_num_images"
_STATES, _WHOLE_ROWS = "cross_attention_states", "full_text_row_masked_out_mask"
_RATIO = "aspect_ratio_ids"
_ROWS = "tile_rows"  # while it is traced, so that examples are small


class Read(nn.Module):
    """The vision tower, and keys and values of what the language model asks of a picture.

    Args:
        model: Hugging Face model whose attention is `qeff_zoo`.
        images: As a recipe declares them.
    """

    def __init__(self, model: Any, images: Any) -> None:
        super().__init__()
        self.model, self.names = model, ["pixel_values", _RATIO, images.mask]
        self.asking = [(layer, _asking(module)) for layer, module in _crossing(model, images)]

    def forward(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return keys and values of every layer that asks."""
        decoder, found = language_model(self.model), list[Tensor]()

        def note(*_: Any, **told: Any) -> Unread:
            found.append(told[_STATES])
            return Unread(torch.zeros(1, 1, decoder.config.hidden_size))

        with swapped((decoder, "forward", note)), Concrete():
            told = dict(zip(self.names, given, strict=True))
            self.model(input_ids=torch.zeros(1, 1, dtype=torch.long), **told)
        cross, query = CrossCache(), torch.zeros(1, 1, decoder.config.hidden_size)
        for _, module in self.asking:
            module(query, **{_STATES: found[0]}, past_key_values=cross)
        return tuple(value for _, _, value in cross.named())

    @property
    def example(self) -> list[Tensor]:
        """A picture of one tile."""
        vision = self.model.config.vision_config
        tiles, size = vision.max_num_tiles, vision.image_size
        mask = torch.zeros(1, 1, tiles, dtype=torch.long)
        mask[:, :, 0] = 1
        pixels = torch.zeros(1, 1, tiles, vision.num_channels, size, size)
        return [pixels, torch.ones(1, 1, dtype=torch.long), mask]


def _crossing(model: Any, images: Any) -> list[tuple[int, Any]]:
    """Return the layers of the language model that read pictures, and their numbers."""
    decoder, config = language_model(model), model.config.get_text_config()
    found = layers.find(decoder, config.num_hidden_layers)
    assert found is not None
    return [(index, found[1][index]) for index in sorted(getattr(config, images.layers))]


def _asking(layer: Any) -> Any:
    """Return the part of a layer that asks for keys and values: the innermost that is told of pictures."""
    told = [one for one in layer.modules() if _STATES in inspect.signature(one.forward).parameters]
    return told[-1]


def read_picture(model: Any, images: Any) -> Tracing:
    """Describe how to trace the vision tower of `model`.

    Args:
        model: From `loader.load_meta`, its tower possibly with fewer layers than its config says.
        images: As a recipe declares them.
    """
    module = Read(model, images).eval()
    names = [
        f"{name}.{layer}" for layer, _ in module.asking for name in ("cross_key", "cross_value")
    ]
    return Tracing(
        module=module,
        inputs={"given": module.example},
        dynamic_shapes={"given": [{} for _ in module.names]},
        input_names=module.names,
        output_names=names,
    )


class _Seeing:
    """A retained state of which some layers are what was read of pictures.

    Args:
        state: Of the others, and of all.
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
    """What a layer reads of pictures; nothing of one that reads none. Read where it asks, as the layer's own."""

    def __init__(self, state: RetainedState, layer: int) -> None:
        self._state, self._layer = state, layer
        self.is_initialized = f"cross_key.{layer}" in state.past

    @property
    def keys(self) -> Tensor:
        """(batch, heads, rows of all pictures, head_dim)."""
        return self._state.rows_of(f"cross_key.{self._layer}").flatten(2, 4)

    @property
    def values(self) -> Tensor:
        """The same."""
        return self._state.rows_of(f"cross_value.{self._layer}").flatten(2, 4)


class Step(decoder_tracing.Step):
    """One call of a language model that reads pictures by cross-attention."""

    def call(
        self, input_ids: Tensor, position_ids: Tensor, state: RetainedState, more: Sequence[Tensor]
    ) -> Any:
        """Run transformers' forward with what was read of pictures, and masks that are told."""
        (seen,) = more
        rows = next(state.past[one.name].shape[4] for one in self.states if not one.written)
        told = dict(zip((SEEN, _WHOLE_ROWS), _masks(seen, rows), strict=True))
        decoder = language_model(self.model)
        forward = decoder.forward
        with swapped(
            (decoder, "forward", lambda *args, **given: forward(*args, **{**given, **told}))
        ):
            return _call(self.model, input_ids, position_ids, _Seeing(state))


def _call(model: Any, input_ids: Tensor, position_ids: Tensor, state: _Seeing) -> Any:
    return model(
        input_ids=input_ids, position_ids=position_ids, past_key_values=state, use_cache=True
    )


def _masks(seen: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Return what is added to scores, (batch, 1, seq, rows of all pictures), and which tokens see any, as 1."""
    sees = (seen > 0).flatten(2).any(-1)
    hidden = (seen < 0) | ((seen == 0) & sees[:, :, None, None])
    bias = torch.where(hidden, torch.finfo(torch.float32).min, 0.0)[..., None]
    bias = bias.expand(-1, -1, -1, -1, rows).flatten(2)[:, None]
    return bias, sees.to(torch.float32)[:, None, :, None]


def tracing(model: Any, images: Any, **variant: Any) -> Tracing:
    """Describe how to trace the language model of `model`.

    Args:
        model: From `loader.load_meta`, possibly with fewer layers than its config says.
        images: As a recipe declares them.
        **variant: As of `qeff_zoo.tasks.text_generation.decoder_tracing.tracing`.
    """
    tiles = model.config.vision_config.max_num_tiles

    def probe(model: Any) -> list[State]:
        own = decoder_tracing.probe(model, language_model(model), _probed)
        return sorted([*own, *_read_states(model, images)], key=lambda state: state.layer)

    def more(batch: Any, seq: Any, _: Any, position_ids: Tensor) -> dict[str, tuple[Tensor, Any]]:
        seen = torch.ones(*position_ids.shape, decoder_tracing.SOURCE, tiles, dtype=torch.long)
        return {SEEN: (seen, {0: batch, 1: seq, 2: Dim(PICTURES, min=2)})}

    made = decoder_tracing.tracing(model, step=Step, probe=probe, more=more, **variant)
    rows = _rows_of(model)

    def sized(size: Any, _: int = 0) -> Any:
        return rows if size == _ROWS else size

    def then(graph: Any) -> None:
        if made.then:
            made.then(graph)
        rename(graph.graph.inputs, sized)

    states = [replace(one, axes=tuple(map(sized, one.axes))) for one in made.states]
    return replace(made, states=states, then=then)


def _probed(model: Any, input_ids: Tensor, position_ids: Tensor, state: RetainedState) -> Any:
    """Run the layers of the text alone."""
    return _call(model, input_ids, position_ids, _Seeing(state))


def _read_states(model: Any, images: Any) -> list[State]:
    """Return what the language model retains of pictures."""
    tiles = model.config.vision_config.max_num_tiles
    return [
        State(
            name=f"{name}.{layer}",
            kind="cross",
            layer=layer,
            axes=("batch_size", part.num_key_value_heads, PICTURES, tiles, _ROWS, part.head_dim),
        )
        for layer, module in _crossing(model, images)
        for part in (_asking(module),)
        if [*part.parameters()]  # else the layer is not traced
        for name in ("cross_key", "cross_value")
    ]


def _rows_of(model: Any) -> int:
    """Return the rows of a tile: one of the whole, and one of each patch."""
    vision = model.config.vision_config
    return int((vision.image_size // vision.patch_size) ** 2 + 1)
