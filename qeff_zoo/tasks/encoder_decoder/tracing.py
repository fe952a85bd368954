# SPDX-License-Identifier: Apache-2.0
"""The two programs of an encoder-decoder, as they are traced: what is read once, and what is written of it.

Program `encoder`
IN   input_features (batch_size, bins, frames) f32      a window of sound, as the model takes it; or
     input_values (batch_size, seq_len) f32, input_features (batch_size, seq_len, bins) f32   a sound of any length; or
     input_ids (batch_size, seq_len) i64                a text; or
     pixel_values (batch_size, channels, height, width) f32   a picture, of the one size that the model takes; or
     both of these, the text beginning with tokens in whose places the picture is put
     [attention_mask (batch_size, seq_len) i64]         of what has any length: 0 is padding behind it
OUT  cross_key.i, cross_value.i (batch_size, heads, source, head_dim)   what layer i of the decoder asks of it
     [lengths (batch_size,) i64]                        of sounds of any length: how many of those rows are of the sound

Program `decoder`: as in `qeff_zoo.tasks.text_generation.decoder_tracing`, with
IN   cross_key.i, cross_value.i (batch_size | full_batch_size, …)       states that no call writes; of what has any
                                                        length with encoder_ctx_len rows, of which it takes the first
     [encoder_attention_mask (batch_size, encoder_ctx_len) i64]         of the same: 1 in the rows that it has

The forward is transformers' own, by its own seam: a cache of two halves. While the encoder is traced the second half
notes what is written to it; while the decoder is traced it has that already.
"""

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from transformers import Cache, EncoderDecoderCache
from transformers.masking_utils import causal_mask_function
from transformers.modeling_outputs import BaseModelOutput

from qeff_zoo.checkpoint.config import positions_of
from qeff_zoo.export.concrete import Unsqueezed
from qeff_zoo.export.layers import plain
from qeff_zoo.export.transforms.attention import additive_mask
from qeff_zoo.export.transforms.modules import vision_tower
from qeff_zoo.export.transforms.retained_state import Probe, RetainedState
from qeff_zoo.export.uncomputed import uncomputed
from qeff_zoo.graph.states import State
from qeff_zoo.tasks import Tracing, prefix_image_tracing
from qeff_zoo.tasks.speech import ctc_tracing
from qeff_zoo.tasks.text_generation import decoder_tracing

_BATCH, _SEQ = 2, 6  # of the example
_ENDLESS = 1 << 31  # positions
#: Rows of what the decoder asks of a text or sound of any length, and the input that says which of them one has.
SOURCE, MASK = "encoder_ctx_len", "encoder_attention_mask"
_KEY, _VALUE = "cross_key", "cross_value"
_CROSS_AXES = 4


class CrossCache(Cache):
    """The half of a cache that cross-attention reads.

    Args:
        state: Has keys and values already; None while they are made.
    """

    is_compileable = True

    def __init__(self, state: RetainedState | None = None) -> None:
        self._state = state
        #: By layer, those that were made.
        self.noted: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def is_there(self) -> bool:
        """Whether keys and values need not be made."""
        return self._state is not None

    @property
    def layers(self) -> "CrossCache":  # type: ignore[override]
        """Layers by index."""
        return self

    def __getitem__(self, layer_idx: Any) -> Any:
        # Read where a layer asks, so that the trace counts it as the layer's own.
        assert self._state is not None
        key, value = (self._state.rows_of(f"{name}.{plain(layer_idx)}") for name in (_KEY, _VALUE))
        return SimpleNamespace(keys=key, values=value)

    def pair(self, layer_idx: Any) -> tuple[Tensor, Tensor]:
        """Return keys and values of a layer, whether they were there or made."""
        if self.is_there:
            there = self[layer_idx]
            return there.keys, there.values
        return self.noted[plain(layer_idx)]

    def __len__(self) -> int:
        return 1  # it is true that there is one

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Note what is made, (batch, heads, source, head_dim)."""
        self.noted[plain(layer_idx)] = key_states, value_states
        return key_states, value_states

    def named(self) -> Iterator[tuple[str, int, Tensor]]:
        """Yield name, layer and value of each that was made."""
        for layer, pair in sorted(self.noted.items()):
            for name, value in zip((_KEY, _VALUE), pair, strict=True):
                yield f"{name}.{layer}", layer, value


class _Updated:
    """Says of every layer whether its cross-attention has keys, whatever a layer says of itself."""

    def __init__(self, value: bool) -> None:
        self._value = value

    def get(self, _: Any) -> bool:
        """Tell of a layer."""
        return self._value

    def __setitem__(self, _: Any, __: bool) -> None:
        """A layer that has made its keys needs them no more in this call."""


class EncDecCache(EncoderDecoderCache):
    """A cache of transformers whose halves are a retained state and what was read.

    Args:
        own: Of self-attention.
        cross: Of cross-attention.
    """

    def __init__(self, own: RetainedState, cross: CrossCache) -> None:
        self.self_attention_cache: Any = own
        self.cross_attention_cache: Any = cross
        self.is_updated = _Updated(cross.is_there)  # type: ignore[assignment]

    def get_query_offset(self, layer_idx: int = 0) -> Any:
        """The true positions of the queries."""
        return self.self_attention_cache.get_query_offset(layer_idx)

    def get_seq_length(self, layer_idx: int = 0) -> Any:
        """What a model adds to 0, 1, 2, …, to have the positions of its tokens: their true ones, (batch, seq)."""
        positions = self.self_attention_cache.position_ids
        return positions.clamp(min=0) - torch.arange(positions.shape[1])


class Read(nn.Module):
    """The encoder, and keys and values of what the decoder asks of it.

    Args:
        model: Hugging Face model whose attention is `qeff_zoo`.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.asking = model, asking(model)

    def forward(self, source: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return keys and values of every layer of the decoder."""
        cross = CrossCache()
        positions = torch.zeros(source[0].shape[0], 1, dtype=torch.long)
        given = dict(zip(_source(self.model), source, strict=True))
        if _asks(self.model):
            given = _embedded(self.model, given)
        lengths = []
        if _has_end(self.model):
            name, mask = self.model.main_input_name, given["attention_mask"]
            given[name] = ctc_tracing.silenced(given[name], mask)
            lengths = [ctc_tracing.frames_of(_counter(self.model), mask.sum(1))]
        cache = EncDecCache(Probe(positions, {}, {}), cross)
        if self.asking:
            read = reader_of(self.model)(**given)[0]
            for module, width in self.asking:
                query = torch.zeros(*positions.shape, width)
                module(query, key_value_states=read, past_key_values=cache)
        else:  # the whole forward on one token, most of which is of no use
            _call(self.model, positions, positions, cache, given)
        return (*(value for _, _, value in cross.named()), *lengths)


def asking(model: Any) -> list[tuple[Any, int]]:
    """Return the modules of the decoder that ask what the encoder returns, and the width of their queries.

    Returns:
        None of them where they ask for something that was made of it.
    """
    read: list[Tensor] = []
    noted: dict[Any, tuple[int, Any]] = {}

    def note(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if (asked := kwargs.get("key_value_states")) is not None:
            query = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
            noted[module] = int(query.shape[-1]), asked

    hooks = [
        reader_of(model).register_forward_hook(lambda *given: read.append(given[-1][0])),
        *(
            module.register_forward_pre_hook(note, with_kwargs=True)
            for module in model.get_decoder().modules()
        ),
    ]
    probe(model)
    for hook in hooks:
        hook.remove()
    inner = {one: kept for one, kept in noted.items() if len(set(one.modules()) & {*noted}) == 1}
    same = all(asked is read[0] for _, asked in inner.values())
    return [(module, width) for module, (width, _) in inner.items()] if same else []


def reader_of(model: Any) -> Any:
    """Return the half that reads: of a model that is not made as an encoder-decoder, the tower of pictures."""
    return model.get_encoder() if model.config.is_encoder_decoder else vision_tower(model)


def writer_of(model: Any) -> Any:
    """Return the half that writes, which has the layers of a decoder alone."""
    if prefix_image_tracing.precedes(model):
        return prefix_image_tracing.writer_of(model)
    decoder = model.get_decoder()  # of some an encoder-decoder of text
    return decoder.get_decoder() if decoder.config.is_encoder_decoder else decoder


class Step(decoder_tracing.Step):
    """One call of the decoder."""

    @property
    def head(self) -> Any:
        """What makes logits; some models know it as their decoder's alone."""
        found = self.model.get_output_embeddings()
        return self.model.get_decoder().get_output_embeddings() if found is None else found

    def call(
        self, input_ids: Tensor, position_ids: Tensor, state: RetainedState, more: Sequence[Tensor]
    ) -> Any:
        """Run transformers' forward from what was read, of which keys and values are there."""
        width = reader_of(self.model).config.hidden_size
        nothing = torch.zeros(input_ids.shape[0], 1, width)
        read: Any = BaseModelOutput(last_hidden_state=nothing)
        read.attention_mask = None  # some models look here for what others are given
        given: dict[str, Any] = {"encoder_outputs": read}
        for there in more:
            mask = torch.where(there > 0, 0.0, torch.finfo(nothing.dtype).min)
            read.attention_mask = mask[:, None, None].expand(-1, 1, input_ids.shape[1], -1)
            given["attention_mask"] = read.attention_mask
        return _call(
            self.model, input_ids, position_ids, EncDecCache(state, CrossCache(state)), given
        )


def _call(
    model: Any,
    input_ids: Tensor,
    position_ids: Tensor,
    cache: EncDecCache,
    given: Mapping[str, Any],
) -> Any:
    if _asks(model) and "pixel_values" in given:
        given = _embedded(model, given)
    with Unsqueezed():  # positions, of which some models expect those of a single row
        if not model.config.is_encoder_decoder:
            return _write(model, input_ids, position_ids, cache, given)
        return model(
            **given,
            **_placed(model, position_ids, cache),
            decoder_input_ids=input_ids,
            past_key_values=cache,
            use_cache=True,
        )


def _placed(model: Any, position_ids: Tensor, cache: EncDecCache) -> dict[str, Tensor]:
    """Say where tokens are, as the forward takes it; else it asks the cache, and needs their mask."""
    name = "decoder_position_ids"
    if name in inspect.signature(model.forward).parameters or _hands_on_positions(model):
        return {name: position_ids}
    return {"decoder_attention_mask": _causal(position_ids, cache)}


def _causal(position_ids: Tensor, cache: EncDecCache) -> Tensor:
    rule: Any = causal_mask_function  # of numbers, and of tensors alike
    mask: Tensor = additive_mask(
        q_length=position_ids.shape[1],
        kv_length=cache.self_attention_cache.get_mask_sizes(position_ids.shape[1])[0],
        mask_function=rule,
        q_offset=cache.get_query_offset(),
    )
    return mask


def _write(
    model: Any,
    input_ids: Tensor,
    position_ids: Tensor,
    cache: EncDecCache,
    given: Mapping[str, Any],
) -> Any:
    """Run a decoder beside a tower, whose forward is that of both and knows neither what was read nor a cache."""
    mask = _causal(position_ids, cache)
    if prefix_image_tracing.precedes(model):
        return prefix_image_tracing.write(model, input_ids, position_ids, mask, cache, given)
    read = given.get("encoder_outputs") or reader_of(model)(**given)
    return model.get_decoder()(
        input_ids=input_ids,
        position_ids=position_ids,
        attention_mask=mask,
        encoder_hidden_states=read[0],
        past_key_values=cache,
        use_cache=True,
    )


def _asks(model: Any) -> bool:
    """Tell whether an encoder reads a prompt besides a picture."""
    return bool(model.config.is_encoder_decoder and hasattr(model.config, "vision_config"))


def _embedded(model: Any, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Put what a tower has seen into the places of a picture's tokens, with which a text begins."""
    tokens = given["input_ids"]
    seen = model.get_image_features(given["pixel_values"]).pooler_output  # (batch, rows, hidden)
    rows = torch.arange(tokens.shape[1]).clamp(max=seen.shape[1] - 1)
    there = (tokens == model.config.image_token_id)[..., None]
    embedded = torch.where(there, seen[:, rows], model.get_input_embeddings()(tokens))
    return {"inputs_embeds": embedded, "attention_mask": given["attention_mask"]}


def _hands_on_positions(model: Any) -> bool:
    """Tell whether a decoder of another architecture than the whole is told where its tokens are, or counts them."""
    decoder = model.get_decoder()
    apart = model.config.get_text_config() is not model.config
    counts = any(hasattr(one, "create_position_ids_from_input_ids") for one in decoder.modules())
    return apart and not counts and "position_ids" in inspect.signature(decoder.forward).parameters


def _has_end(model: Any) -> bool:
    """Tell whether a model reads sounds of any length, whose ends its encoder knows."""
    return hasattr(model, "heard") or _counter(model) is not model


def _counter(model: Any) -> Any:
    """Return what counts the rows of a sound: an encoder that is a model by itself, or the whole."""
    encoder = reader_of(model)
    return encoder if hasattr(encoder, ctc_tracing.SUBSAMPLED) else model


def _source(
    model: Any, size: tuple[int, int] | None = None
) -> dict[str, tuple[Tensor, dict[int, Any]]]:
    """Return an example of each input of the encoder, and symbols of its axes.

    Args:
        model: Hugging Face model.
        size: Height and width of pictures, where its configuration does not say them.
    """
    batch = Dim("batch_size", min=2)
    if _has_end(model):
        sound, mask, seq = ctc_tracing.example(model)
        axes = {0: batch, 1: seq}
        return {model.main_input_name: (sound, axes), "attention_mask": (mask, axes)}
    if model.main_input_name == "pixel_values" or prefix_image_tracing.precedes(model):
        return {"pixel_values": (_picture(reader_of(model).config), {0: batch})}
    if model.main_input_name != "input_ids":
        return {model.main_input_name: (_window(model), {0: batch})}
    text = model.config.text_config if _asks(model) else model.config
    longest = positions_of(vars(text)) or _ENDLESS
    axes = {0: batch, 1: Dim("seq_len", min=2, max=longest - 1)}
    tokens = torch.ones(_BATCH, decoder_tracing.SOURCE, dtype=torch.long)
    found = {"input_ids": (tokens, axes), "attention_mask": (tokens.clone(), axes)}
    if _asks(model):
        found["pixel_values"] = _picture(model.config.vision_config, size), {0: batch}
    return found


def _picture(config: Any, size: Any = None) -> Tensor:
    """Return an example of pictures, of the one size that the encoder takes; of any size that is seen as one row."""
    size = size or getattr(config, "image_size", None) or math.prod(config.patch_stride)
    height, width = (size, size) if isinstance(size, int) else size
    return torch.zeros(_BATCH, getattr(config, "num_channels", 3), height, width)


def _window(model: Any) -> Tensor:
    """Return an example of a window: as many frames as the encoder has positions for."""
    convolutions = [one for one in reader_of(model).modules() if isinstance(one, nn.Conv1d)]
    frames = model.config.max_source_positions
    for one in convolutions:
        frames *= one.stride[0]
    return torch.zeros(_BATCH, convolutions[0].in_channels, frames)


def probe(model: Any) -> list[State]:
    """Return every state of the decoder in the graph's order, by running the model once without computing anything.

    Args:
        model: From `loader.load_meta`.
    """
    with uncomputed():
        positions = torch.arange(_SEQ).expand(_BATCH, _SEQ)
        own, cross = Probe(positions, {}, {}), CrossCache()
        source = {name: example for name, (example, _) in _source(model).items()}
        _call(model, torch.zeros_like(positions), positions, EncDecCache(own, cross), source)
    rows = SOURCE if "attention_mask" in source else None
    read = [
        State(name=name, kind="cross", layer=layer, axes=_axes(value, rows))
        for name, layer, value in cross.named()
    ]
    return sorted([*own.found.values(), *read], key=lambda state: state.layer)


def _axes(value: Tensor, rows: str | None) -> tuple[int | str, ...]:
    _, heads, source, size = map(int, value.shape)
    return "batch_size", heads, rows or source, size


def read_source(model: Any, size: tuple[int, int] | None = None) -> Tracing:
    """Describe how to trace the encoder of `model`.

    Args:
        model: From `loader.load_meta`, its encoder possibly with fewer layers than its config says.
        size: Height and width of pictures, where its configuration does not say them.
    """
    source, has_end = _source(model, size), _has_end(model)
    states = [state.name for state in probe(model) if not state.written]
    return Tracing(
        module=Read(model).eval(),
        inputs={"source": [example for example, _ in source.values()]},
        dynamic_shapes={"source": [axes for _, axes in source.values()]},
        input_names=[*source],
        output_names=[*states, *(["lengths"] if has_end else [])],
        then=_name_rows if has_end else None,
        checked_later=has_end,
    )


def _name_rows(graph: Any) -> None:
    """Give the number of rows a name, in place of how it was computed."""
    for one in graph.graph.outputs:
        if len(one.shape) == _CROSS_AXES:
            one.shape = type(one.shape)([*one.shape[:2], "rows", one.shape[3]])


def tracing(model: Any, **variant: Any) -> Tracing:
    """Describe how to trace the decoder of `model`.

    Args:
        model: From `loader.load_meta`, its decoder possibly with fewer layers than its config says.
        **variant: As of `qeff_zoo.tasks.text_generation.decoder_tracing.tracing`.
    """

    def more(batch: Any, *_: Any) -> dict[str, tuple[Tensor, Any]]:
        mask = torch.ones(_BATCH, decoder_tracing.SOURCE, dtype=torch.long)
        return {MASK: (mask, {0: batch, 1: Dim(SOURCE, min=2)})}

    masked = "attention_mask" in _source(model)
    return decoder_tracing.tracing(
        model, step=Step, probe=probe, more=more if masked else None, **variant
    )
