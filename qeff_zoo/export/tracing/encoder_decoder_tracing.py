# SPDX-License-Identifier: Apache-2.0
"""The two programs of an encoder-decoder, for tracing: the encoder, and one call of the decoder.

Program `encoder`
IN   input_features (batch_size, bins, frames) f32      a window of audio, as the model takes it; or
     input_values (batch_size, seq_len) f32, input_features (batch_size, seq_len, bins) f32   audio of any length; or
     input_ids (batch_size, seq_len) i64                a text; or
     pixel_values (batch_size, channels, height, width) f32   an image, of the model's one size; or
     both of these, if the text begins with placeholder tokens of the image
     [attention_mask (batch_size, seq_len) i64]         for inputs of any length: 0 is padding after them
OUT  cross_key.i, cross_value.i (batch_size, heads, source, head_dim)   keys and values for cross-attention in layer i
     [lengths (batch_size,) i64]                        for audio of any length: number of its rows without padding

Program `decoder`: as in `qeff_zoo.export.tracing.decoder_tracing`, with
IN   cross_key.i, cross_value.i (batch_size | full_batch_size, …)       states that no call writes; for inputs of any
                                                        length with encoder_ctx_len rows, the first of which it fills
     [encoder_attention_mask (batch_size, encoder_ctx_len) i64]         for the same: 1 in the filled rows

The forward is transformers' own, through its cache of two halves. During the trace of the encoder the second half
records its updates; during the trace of the decoder it has these values already.
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
from qeff_zoo.contract import Tracing
from qeff_zoo.export.concrete import Unsqueezed
from qeff_zoo.export.layers import plain
from qeff_zoo.export.tracing import ctc_tracing, decoder_tracing, prefix_image_tracing
from qeff_zoo.export.transforms.attention import additive_mask
from qeff_zoo.export.transforms.modules import vision_tower
from qeff_zoo.export.transforms.retained_state import Probe, RetainedState
from qeff_zoo.export.uncomputed import without_values
from qeff_zoo.graph.states import State

_BATCH, _SEQ = 2, 6  # of the example
_ENDLESS = 1 << 31  # positions
#: Length of the cross-attention states for text or audio of any length, and the input that masks its unused rows.
SOURCE, MASK = "encoder_ctx_len", "encoder_attention_mask"
_KEY, _VALUE = "cross_key", "cross_value"
_CROSS_AXES = 4


class CrossCache(Cache):
    """The cross-attention half of a cache.

    Args:
        state: State with keys and values; None while they are computed.
    """

    is_compileable = True

    def __init__(self, state: RetainedState | None = None) -> None:
        self._state = state
        #: Recorded keys and values by layer.
        self.noted: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def is_there(self) -> bool:
        """Whether keys and values exist already."""
        return self._state is not None

    @property
    def layers(self) -> "CrossCache":  # type: ignore[override]
        """Layers by index."""
        return self

    def __getitem__(self, layer_idx: Any) -> Any:
        # Read on demand, so that the trace counts it as the layer's own.
        assert self._state is not None
        key, value = (self._state.rows_of(f"{name}.{plain(layer_idx)}") for name in (_KEY, _VALUE))
        return SimpleNamespace(keys=key, values=value)

    def pair(self, layer_idx: Any) -> tuple[Tensor, Tensor]:
        """Return keys and values of a layer, existing or recorded."""
        if self.is_there:
            there = self[layer_idx]
            return there.keys, there.values
        return self.noted[plain(layer_idx)]

    def __len__(self) -> int:
        return 1  # it is true that there is one

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Record keys and values, (batch, heads, source, head_dim)."""
        self.noted[plain(layer_idx)] = key_states, value_states
        return key_states, value_states

    def named(self) -> Iterator[tuple[str, int, Tensor]]:
        """Yield name, layer and value of each recorded tensor."""
        for layer, pair in sorted(self.noted.items()):
            for name, value in zip((_KEY, _VALUE), pair, strict=True):
                yield f"{name}.{layer}", layer, value


class _Updated:
    """Mapping of every layer to one value: whether its cross-attention has keys already."""

    def __init__(self, value: bool) -> None:
        self._value = value

    def get(self, _: Any) -> bool:
        """Return the value for a layer."""
        return self._value

    def __setitem__(self, _: Any, __: bool) -> None:
        """Ignore the update of a layer, which needs its new keys no more in this call."""


class EncDecCache(EncoderDecoderCache):
    """Cache of transformers whose halves are a retained state and the cross-attention states.

    Args:
        own: State of self-attention.
        cross: State of cross-attention.
    """

    def __init__(self, own: RetainedState, cross: CrossCache) -> None:
        self.self_attention_cache: Any = own
        self.cross_attention_cache: Any = cross
        self.is_updated = _Updated(cross.is_there)  # type: ignore[assignment]

    def get_query_offset(self, layer_idx: int = 0) -> Any:
        """Return the true positions of the queries."""
        return self.self_attention_cache.get_query_offset(layer_idx)

    def get_seq_length(self, layer_idx: int = 0) -> Any:
        """Return the offset from 0, 1, 2, … to the true positions of the tokens, (batch, seq)."""
        positions = self.self_attention_cache.position_ids
        return positions.clamp(min=0) - torch.arange(positions.shape[1])


class Read(nn.Module):
    """The encoder, and its keys and values for the decoder's cross-attention.

    Args:
        model: Hugging Face model whose attention is `qeff_zoo`.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        states, self.cross_attentions = cross_attentions(model)
        self.model, self.names = model, [state.name for state in states]

    def forward(self, source: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return keys and values of every layer of the decoder."""
        cross = CrossCache()
        positions = torch.zeros(source[0].shape[0], 1, dtype=torch.long)
        given = dict(zip(_source(self.model), source, strict=True))
        if _has_prompt(self.model):
            given = _embedded(self.model, given)
        lengths = []
        if _has_end(self.model):
            name, mask = self.model.main_input_name, given["attention_mask"]
            given[name] = ctc_tracing.silenced(given[name], mask)
            lengths = [ctc_tracing.frames_of(_counter(self.model), mask.sum(1))]
        cache = EncDecCache(Probe(positions, {}, {}), cross)
        if self.cross_attentions:
            read = reader_of(self.model)(**given)[0]
            for module, width in self.cross_attentions:
                query = torch.zeros(*positions.shape, width)
                module(query, key_value_states=read, past_key_values=cache)
        else:  # the whole forward on one token, mostly unused
            _call(self.model, positions, positions, cache, given)
        return (*(value for _, _, value in cross.named()), *lengths)


def cross_attentions(model: Any) -> tuple[list[State], list[tuple[Any, int]]]:
    """Return the decoder's cross-attention states, and its modules over the encoder's output with their queries' width.

    Returns:
        The states, and an empty list if modules attend to something derived from that output.
    """
    read: list[Tensor] = []
    noted: dict[Any, tuple[int, Any]] = {}

    def note(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if (states := kwargs.get("key_value_states")) is not None:
            query = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
            noted[module] = int(query.shape[-1]), states

    hooks = [
        reader_of(model).register_forward_hook(lambda *given: read.append(given[-1][0])),
        *(
            module.register_forward_pre_hook(note, with_kwargs=True)
            for module in model.get_decoder().modules()
        ),
    ]
    states = [state for state in probe(model) if not state.written]
    for hook in hooks:
        hook.remove()
    inner = {name: kept for name, kept in noted.items() if len(set(name.modules()) & {*noted}) == 1}
    same = all(source is read[0] for _, source in inner.values())
    return states, [(module, width) for module, (width, _) in inner.items()] if same else []


def reader_of(model: Any) -> Any:
    """Return the encoder: in a model that is no encoder-decoder class, its vision encoder."""
    return model.get_encoder() if model.config.is_encoder_decoder else vision_tower(model)


def writer_of(model: Any) -> Any:
    """Return the module that has the decoder layers alone."""
    if prefix_image_tracing.precedes(model):
        return prefix_image_tracing.writer_of(model)
    decoder = model.get_decoder()  # of some an encoder-decoder of text
    return decoder.get_decoder() if decoder.config.is_encoder_decoder else decoder


class Step(decoder_tracing.Step):
    """One call of the decoder."""

    @property
    def head(self) -> Any:
        """Output head; some models expose it on their decoder alone."""
        embeddings = self.model.get_output_embeddings()
        return (
            self.model.get_decoder().get_output_embeddings() if embeddings is None else embeddings
        )

    def call(
        self, input_ids: Tensor, position_ids: Tensor, state: RetainedState, more: Sequence[Tensor]
    ) -> Any:
        """Run transformers' forward from encoder states whose keys and values exist."""
        width = reader_of(self.model).config.hidden_size
        nothing = torch.zeros(input_ids.shape[0], 1, width)
        read: Any = BaseModelOutput(last_hidden_state=nothing)
        read.attention_mask = None  # some models read it here, not from an argument
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
    if _has_prompt(model) and "pixel_values" in given:
        given = _embedded(model, given)
    with Unsqueezed():  # positions; some models expect those of a single row
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
    """Return the token positions as the forward takes them, or else the mask for a forward that derives them."""
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
    """Run the decoder of a class whose own forward takes neither encoder states nor a cache."""
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


def _has_prompt(model: Any) -> bool:
    """Return whether the encoder reads a prompt besides an image."""
    return bool(model.config.is_encoder_decoder and hasattr(model.config, "vision_config"))


def _embedded(model: Any, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Replace the embeddings of placeholder tokens, with which a text begins, by the features of the image."""
    tokens = given["input_ids"]
    # (batch, rows, hidden)
    features = model.get_image_features(given["pixel_values"]).pooler_output
    rows = torch.arange(tokens.shape[1]).clamp(max=features.shape[1] - 1)
    there = (tokens == model.config.image_token_id)[..., None]
    embedded = torch.where(there, features[:, rows], model.get_input_embeddings()(tokens))
    return {"inputs_embeds": embedded, "attention_mask": given["attention_mask"]}


def _hands_on_positions(model: Any) -> bool:
    """Return whether a decoder of its own architecture takes the positions of tokens, and does not count them."""
    decoder = model.get_decoder()
    apart = model.config.get_text_config() is not model.config
    counts = any(
        hasattr(module, "create_position_ids_from_input_ids") for module in decoder.modules()
    )
    return apart and not counts and "position_ids" in inspect.signature(decoder.forward).parameters


def _has_end(model: Any) -> bool:
    """Return whether a model encodes audio of any length, whose end its encoder respects."""
    return hasattr(model, "audio_lengths") or _counter(model) is not model


def _counter(model: Any) -> Any:
    """Return the module that computes the number of feature rows: an encoder that is a full model, or the model."""
    encoder = reader_of(model)
    return encoder if hasattr(encoder, ctc_tracing.SUBSAMPLED) else model


def _source(
    model: Any, size: tuple[int, int] | None = None
) -> dict[str, tuple[Tensor, dict[int, Any]]]:
    """Return an example of each input of the encoder, and symbols of its axes.

    Args:
        model: Hugging Face model.
        size: Height and width of images, if the config does not set them.
    """
    batch = Dim("batch_size", min=2)
    if _has_end(model):
        audio, mask, seq = ctc_tracing.example(model)
        axes = {0: batch, 1: seq}
        return {model.main_input_name: (audio, axes), "attention_mask": (mask, axes)}
    if model.main_input_name == "pixel_values" or prefix_image_tracing.precedes(model):
        return {"pixel_values": (_example_image(reader_of(model).config), {0: batch})}
    if model.main_input_name != "input_ids":
        return {model.main_input_name: (_window(model), {0: batch})}
    text = model.config.text_config if _has_prompt(model) else model.config
    longest = positions_of(vars(text)) or _ENDLESS
    axes = {0: batch, 1: Dim("seq_len", min=2, max=longest - 1)}
    tokens = torch.ones(_BATCH, decoder_tracing.SOURCE, dtype=torch.long)
    inputs = {"input_ids": (tokens, axes), "attention_mask": (tokens.clone(), axes)}
    if _has_prompt(model):
        inputs["pixel_values"] = _example_image(model.config.vision_config, size), {0: batch}
    return inputs


def _example_image(config: Any, size: Any = None) -> Tensor:
    """Return an example image: of the encoder's one size, or for any size one row of features."""
    size = size or getattr(config, "image_size", None) or math.prod(config.patch_stride)
    height, width = (size, size) if isinstance(size, int) else size
    return torch.zeros(_BATCH, getattr(config, "num_channels", 3), height, width)


def _window(model: Any) -> Tensor:
    """Return an example window, with as many frames as the encoder has positions."""
    convolutions = [
        module for module in reader_of(model).modules() if isinstance(module, nn.Conv1d)
    ]
    frames = model.config.max_source_positions
    for convolution in convolutions:
        frames *= convolution.stride[0]
    return torch.zeros(_BATCH, convolutions[0].in_channels, frames)


def probe(model: Any) -> list[State]:
    """Return every state of the decoder in the graph's order, from one run of the model without any computation.

    Args:
        model: Model from `loader.load_meta`.
    """

    def run() -> tuple[Probe, CrossCache, bool]:
        positions = torch.arange(_SEQ).expand(_BATCH, _SEQ)
        own, cross = Probe(positions, {}, {}), CrossCache()
        source = {name: example for name, (example, _) in _source(model).items()}
        _call(model, torch.zeros_like(positions), positions, EncDecCache(own, cross), source)
        return own, cross, "attention_mask" in source

    own, cross, is_masked = without_values(model, run)
    rows = SOURCE if is_masked else None
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
        model: Model from `loader.load_meta`, its encoder possibly with fewer layers than its config has.
        size: Height and width of images, if the config does not set them.
    """
    source, has_end, module = _source(model, size), _has_end(model), Read(model).eval()
    return Tracing(
        module=module,
        inputs={"source": [example for example, _ in source.values()]},
        dynamic_shapes={"source": [axes for _, axes in source.values()]},
        input_names=[*source],
        output_names=[*module.names, *(["lengths"] if has_end else [])],
        then=_name_rows if has_end else None,
        checked_later=has_end,
    )


def _name_rows(graph: Any) -> None:
    """Name the symbol of the number of rows, in place of its expression in the trace."""
    for output in graph.graph.outputs:
        if len(output.shape) == _CROSS_AXES:
            output.shape = type(output.shape)([*output.shape[:2], "rows", output.shape[3]])


def tracing(model: Any, **variant: Any) -> Tracing:
    """Describe how to trace the decoder of `model`.

    Args:
        model: Model from `loader.load_meta`, its decoder possibly with fewer layers than its config has.
        **variant: Arguments of `qeff_zoo.export.tracing.decoder_tracing.tracing`.
    """

    def more(batch: Any, *_: Any) -> dict[str, tuple[Tensor, Any]]:
        mask = torch.ones(_BATCH, decoder_tracing.SOURCE, dtype=torch.long)
        return {MASK: (mask, {0: batch, 1: Dim(SOURCE, min=2)})}

    masked = "attention_mask" in _source(model)
    return decoder_tracing.tracing(
        model, step=Step, probe=probe, more=more if masked else None, **variant
    )
