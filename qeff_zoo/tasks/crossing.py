# SPDX-License-Identifier: Apache-2.0
"""The two programs of an encoder-decoder, as they are traced: what is read once, and what is written of it.

Program `encoder`
IN   input_features (batch_size, bins, frames) f32      a window of sound, as the model takes it
OUT  cross_key.i, cross_value.i (batch_size, heads, source, head_dim)   what layer i of the decoder asks of it

Program `decoder`: as in `qeff_zoo.tasks.decoding`, with
IN   cross_key.i, cross_value.i (batch_size | full_batch_size, …)       states that no call writes

The forward is transformers' own, by its own seam: a cache of two halves. While the encoder is traced the second half
notes what is written to it; while the decoder is traced it has that already.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.export import Dim
from transformers import Cache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from qeff_zoo.export.layers import plain
from qeff_zoo.states import State
from qeff_zoo.tasks import Tracing, decoding
from qeff_zoo.transforms.retained_state import Probe, RetainedState

_BATCH, _SEQ = 2, 6  # of the example
_KEY, _VALUE = "cross_key", "cross_value"


class Cross(Cache):
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
    def layers(self) -> "Cross":  # type: ignore[override]
        """Layers by index."""
        return self

    def __getitem__(self, layer_idx: Any) -> Any:
        # Read where a layer asks, so that the trace counts it as the layer's own.
        assert self._state is not None
        key, value = (self._state.rows_of(f"{name}.{plain(layer_idx)}") for name in (_KEY, _VALUE))
        return SimpleNamespace(keys=key, values=value)

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


class Both(EncoderDecoderCache):
    """A cache of transformers whose halves are a retained state and what was read.

    Args:
        own: Of self-attention.
        cross: Of cross-attention.
    """

    def __init__(self, own: RetainedState, cross: Cross) -> None:
        self.self_attention_cache: Any = own
        self.cross_attention_cache: Any = cross
        self.is_updated = _Updated(cross.is_there)  # type: ignore[assignment]

    def get_query_offset(self, layer_idx: int = 0) -> Any:
        """The true positions of the queries."""
        return self.self_attention_cache.get_query_offset(layer_idx)


class Read(nn.Module):
    """The whole forward on one token, of which only what the decoder asks of the sound is kept.

    Args:
        model: Hugging Face model whose attention is `qeff_zoo`.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, sound: Tensor) -> tuple[Tensor, ...]:
        """Return keys and values of every layer of the decoder."""
        cross = Cross()
        positions = torch.zeros(sound.shape[0], 1, dtype=torch.long)
        _call(self.model, positions, positions, Both(Probe(positions, {}, {}), cross), sound)
        return tuple(value for _, _, value in cross.named())


class Step(decoding.Step):
    """One call of the decoder."""

    def call(
        self, input_ids: Tensor, position_ids: Tensor, state: RetainedState, more: Sequence[Tensor]
    ) -> Any:
        """Run transformers' forward from what was read."""
        return _call(self.model, input_ids, position_ids, Both(state, Cross(state)))


def _call(
    model: Any, input_ids: Tensor, position_ids: Tensor, cache: Both, sound: Tensor | None = None
) -> Any:
    if sound is None:  # of what was read, keys and values are there
        nothing = torch.zeros(input_ids.shape[0], 1, model.config.hidden_size)
        given: Mapping[str, Any] = {"encoder_outputs": BaseModelOutput(last_hidden_state=nothing)}
    else:
        given = {model.main_input_name: sound}
    return model(
        **given,
        decoder_input_ids=input_ids,
        decoder_position_ids=position_ids,
        past_key_values=cache,
        use_cache=True,
    )


def _window(model: Any) -> Tensor:
    """Return an example of what the encoder reads: as many frames as it has positions for."""
    convolutions = [one for one in model.get_encoder().modules() if isinstance(one, nn.Conv1d)]
    frames = model.config.max_source_positions
    for one in convolutions:
        frames *= one.stride[0]
    return torch.zeros(_BATCH, convolutions[0].in_channels, frames)


def probe(model: Any) -> list[State]:
    """Return every state of the decoder in the graph's order, by running the model once without computing anything.

    Args:
        model: From `loader.load_meta`.
    """
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        positions = torch.arange(_SEQ).expand(_BATCH, _SEQ)
        own, cross = Probe(positions, {}, {}), Cross()
        _call(model, torch.zeros_like(positions), positions, Both(own, cross), _window(model))
    read = [
        State(name=name, kind="cross", layer=layer, axes=("batch_size", *map(int, value.shape[1:])))
        for name, layer, value in cross.named()
    ]
    return sorted([*own.found.values(), *read], key=lambda state: state.layer)


def read_sound(model: Any) -> Tracing:
    """Describe how to trace the encoder of `model`.

    Args:
        model: From `loader.load_meta`, its encoder possibly with fewer layers than its config says.
    """
    names = [state.name for state in probe(model) if not state.written]
    return Tracing(
        module=Read(model).eval(),
        inputs={"sound": _window(model)},
        dynamic_shapes={"sound": {0: Dim("batch_size", min=2)}},
        input_names=[model.main_input_name],
        output_names=names,
    )


def tracing(model: Any, **variant: Any) -> Tracing:
    """Describe how to trace the decoder of `model`.

    Args:
        model: From `loader.load_meta`, its decoder possibly with fewer layers than its config says.
        **variant: As of `qeff_zoo.tasks.decoding.tracing`.
    """
    return decoding.tracing(model, step=Step, probe=probe, **variant)
