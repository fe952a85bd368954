# SPDX-License-Identifier: Apache-2.0
"""The cache seam: transformers' cache interface on tensors that the caller keeps between calls.

Keys and values are written at their positions. Convolutions and recurrences retain the inputs of their next token; a
row that starts at position 0 reads them as empty, whatever an earlier request left there.

A compute context (`comp_ctx_lengths`) is the length of the KV cache that a call reads: keys, values and masks have only
the first rows, while the cache keeps all `ctx_len`. Only the length of the tensor counts: it is a size like any other.
The results are equal as long as all of the call's positions are below it, since all further rows are masked. States of
windows and recurrences have no such rows and stay unchanged.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from transformers import Cache

from qeff_zoo.export import ops  # noqa: F401  (defines torch.ops.qeff_zoo)
from qeff_zoo.export.layers import plain
from qeff_zoo.export.transforms.latent_kv import Expanders
from qeff_zoo.graph.states import State, StateKind

#: States by the graph's name of an input: `past_key.3`, `past_value.3`, `past_index.3`, `conv_state.3`,
#: `recurrent_state.3`.
States: TypeAlias = dict[str, Tensor]
#: Cache lengths of sliding-window layers, by layer index.
Windows: TypeAlias = Mapping[int, int]


class RetainedState(Cache):
    """Replacement of a transformers cache: new tokens go to their positions, attention reads the whole context.

    Args:
        states: Retained states that `Probe` recorded.
        past: States before the call, all with the batch (or the slots) first: keys and values (…, kv_heads, ctx_len or
            window, head_dim), an indexer's keys (…, 1, ctx_len, head_dim), `conv_state` (…, channels, kernel),
            `recurrent_state` in any shape.
        position_ids: Positions, (batch, seq); -1 is padding and writes nothing; a row's tokens are consecutive.
        batch_index: Batch slot of each row, (batch, 1), for continuous batching.
        expanders: Layers whose keys and values are retained expanded, see `transforms.latent_kv`.
        comp_ctx_lengths: Tensor of the length that the call reads, with any values; None for all rows.
    """

    is_compileable = True
    #: Some forwards set bidirectional attention only in a call on an empty cache; here a mask is for any call.
    is_initialized = False

    def __init__(
        self,
        states: Sequence[State],
        past: States,
        position_ids: Tensor,
        batch_index: Tensor | None = None,
        expanders: Expanders | None = None,
        comp_ctx_lengths: Tensor | None = None,
    ) -> None:
        self.states = {state.name: state for state in states}
        self.past, self.position_ids, self.batch_index = past, position_ids, batch_index
        self.windows: Windows = {
            state.layer: int(state.axes[2]) for state in states if state.kind == "window"
        }
        self.expanders, self.comp_ctx_lengths = expanders or {}, comp_ctx_lengths
        self.present: States = {}
        #: Columns whose logits the call returns, (batch, 1) by default: the one of each row's highest position.
        self.needed = position_ids.argmax(1, keepdim=True)
        #: Positions whose queries are computed, (batch, seq); after `narrow`, those of the needed columns.
        self.queries = position_ids
        #: Whether the tokens of a call attend to each other in both directions.
        self.bidirectional = False

    # --- queries -----------------------------------------------------------------------------------
    @property
    def narrowed(self) -> bool:
        """Whether hidden states have the needed columns alone."""
        return self.queries is not self.position_ids

    def narrow(self, *values: Tensor) -> list[Tensor]:
        """Continue with the needed columns of queries and masks; keys and values stay those of all tokens.

        Args:
            *values: Tensors (batch, seq, size).

        Returns:
            Their needed columns, (batch, needed, size).
        """
        self.queries = self.position_ids.gather(1, self.needed)
        return [self.only_needed(value) for value in values]

    def only_needed(self, values: Tensor) -> Tensor:
        """Return the needed columns of (batch, seq, size), (batch, needed, size)."""
        columns = self.needed[:, :, None].expand(-1, -1, values.shape[2])
        return values.gather(1, columns)

    # --- attention: keys and values ----------------------------------------------------------------
    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write (batch, kv_heads, seq, head_dim) at the positions; return all rows that attention may read."""
        layer = plain(layer_idx)
        if layer in self.expanders:
            key_states, value_states = self.expanders[layer](key_states, value_states)
        kind: StateKind = "window" if layer in self.windows else "growing"
        pair = ("past_key", key_states), ("past_value", value_states)
        key, value = (self._keep(kind, _name(name, layer), new) for name, new in pair)
        return key, value

    def update_indexer(self, indexer_key_states: Tensor, layer_idx: int) -> Tensor:
        """Write the indexer's keys (batch, seq, head_dim) of sparse attention; return those of the context."""
        name = _name("past_index", layer_idx)
        return self._keep("index", name, indexer_key_states.unsqueeze(1)).squeeze(1)

    def _keep(self, kind: StateKind, name: str, new: Tensor) -> Tensor:
        """Write rows of new tokens; return all rows that the call may read."""
        return self._slide(name, new) if kind == "window" else self._write(name, new)

    def _write(self, name: str, new: Tensor) -> Tensor:
        past, slots = self.past[name], self.batch_index
        if slots is None:
            self.present[name] = torch.ops.qeff_zoo.cache_write(past, self.position_ids, new)
        else:
            self.present[name] = torch.ops.qeff_zoo.slot_write(past, slots, self.position_ids, new)
        context = self.present[name]
        if self.comp_ctx_lengths is not None:
            context = torch.ops.qeff_zoo.context_read(context, self.comp_ctx_lengths)
        return self._rows(context)

    def _slide(self, name: str, new: Tensor) -> Tensor:
        """Return the window before this call with the new tokens, and retain the newest of both."""
        before, window = self.past[name], self.past[name].shape[2]
        joined = torch.cat([self._rows(before), new.to(before.dtype)], dim=2)
        newest = self.position_ids.amax(1, keepdim=True)
        kept = (self.position_ids >= 0) & (self.position_ids > newest - window)
        rows = torch.where(kept, self.position_ids % window, -1)
        # Written to the tensor that was read: a session writes states in place, and not before they are read.
        self._replace(name, torch.ops.qeff_zoo.cache_write(joined[:, :, :window], rows, new))
        return joined

    def rows_of(self, name: str) -> Tensor:
        """Return this call's rows of a state that calls do not write."""
        return self._rows(self.past[name])

    def _rows(self, state: Tensor) -> Tensor:
        """Return this call's rows of a state."""
        if self.batch_index is None:
            return state
        rows: Tensor = torch.ops.qeff_zoo.slot_read(state, self.batch_index)
        return rows

    # --- convolutions and recurrences --------------------------------------------------------------
    def is_recording_past(self, *_: Any, **__: Any) -> bool:
        """Always False: states are never rolled back."""
        return False

    def get_conv_state(self, *_: Any, **__: Any) -> None:
        """Return None, so that transformers takes the path of `update_conv_state`, at any length."""

    def update_conv_state(  # type: ignore[override]
        self,
        conv_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        *,
        conv_kernel_size: int,
        **_: Any,
    ) -> Tensor:
        """Return (batch, channels, kernel + seq): columns before this call, then the new ones; retain the newest."""
        name = _name("conv_state", layer_idx, state_idx)
        before = self.before(name)
        if before is None:
            before = conv_states.new_zeros(*conv_states.shape[:2], conv_kernel_size)
        window: Tensor
        window, newest = torch.ops.qeff_zoo.convolution_window(
            before, self.position_ids, conv_states
        )
        self._replace(name, newest)
        return window

    def get_recurrent_state(self, *_: Any, **__: Any) -> None:
        """Return None: `transforms.recurrence` reads the state with `before`, at any length."""

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any
    ) -> Tensor:
        """Retain the last state of a recurrence, which padding must not have changed."""
        self._replace(_name("recurrent_state", layer_idx, state_idx), recurrent_states)
        return recurrent_states

    def before(self, name: str) -> Tensor | None:
        """Return this call's rows of a state before the call: zeros for rows that start at position 0."""
        before: Tensor = torch.ops.qeff_zoo.state_before(
            self._rows(self.past[name]), self.position_ids
        )
        return before

    def _replace(self, name: str, rows: Tensor) -> None:
        past = self.past[name]
        if self.batch_index is None:
            self.present[name] = rows.to(past.dtype)
        else:
            self.present[name] = torch.ops.qeff_zoo.slot_replace(past, self.batch_index, rows)

    # --- masks -------------------------------------------------------------------------------------
    @property
    def is_sliding(self) -> list[bool]:
        """Layers with a window, whose masks fit their keys."""
        return [layer in self.windows for layer in range(max(self._layers(), default=-1) + 1)]

    @property
    def is_linear(self) -> list[bool]:
        """Layers without keys, whose masks are not used."""
        keyed = {
            state.layer for state in self.states.values() if state.kind in ("growing", "window")
        }
        return [layer not in keyed for layer in range(max(self._layers(), default=-1) + 1)]

    @property
    def is_dummy(self) -> list[bool]:
        """False for every layer."""
        return [False] * len(self.is_linear)

    def _layers(self) -> set[int]:
        return {state.layer for state in self.states.values()}

    def get_query_offset(self, layer_idx: int = 0) -> Tensor:  # type: ignore[override]
        """Return the true positions of the queries, for masks. Padding is masked as at position 0."""
        positions = self.queries.clamp(min=0)
        if self.bidirectional:
            positions = positions.amax(1, keepdim=True).expand_as(positions)
        return positions

    def get_mask_sizes(  # type: ignore[override]
        self, query_length: int, layer_idx: int = 0
    ) -> tuple[int, int | Tensor]:
        """Return the number of keys of a mask, and the first position; for a window, all positions (batch, keys)."""
        window = self.windows.get(layer_idx)
        if window is None:
            return self._context_length(), 0
        # Rows hold the newest positions before this call: row r the largest that is r modulo the window.
        positions = self.position_ids
        last = positions.masked_fill(positions < 0, _FAR).amin(1, keepdim=True) - 1
        rows = torch.arange(window, device=positions.device)
        held = last - (last - rows) % window
        return window + query_length, torch.cat([held, positions], dim=1)

    def _ctx_len(self) -> int:
        full = (name for name, state in self.states.items() if state.kind == "growing")
        name = next(full, None)
        return self.position_ids.shape[1] if name is None else self.past[name].shape[2]

    def _context_length(self) -> int:
        """Length of the cache that the call reads."""
        lengths = self.comp_ctx_lengths
        return self._ctx_len() if lengths is None else lengths.shape[0]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of keys before this call's, so that the total is the length read (as ALiBi counts)."""
        return self._context_length() - self.position_ids.shape[1]

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        """Return the length of the cache."""
        return self._ctx_len()

    def has_previous_state(self, *_: Any, **__: Any) -> bool:
        """Always True: `before` returns the previous state."""
        return True

    def __len__(self) -> int:
        return max(self._layers(), default=-1) + 1


_FAR = (1 << 31) - 1  # beyond every position; compilers for devices truncate integers to 32 bits


def _name(what: str, layer_idx: int, state_idx: int = 0) -> str:
    return f"{what}{f'_{state_idx}' if state_idx else ''}.{plain(layer_idx)}"


def _layer(name: str) -> int:
    """Return the layer of a name from `_name`."""
    return int(name.rpartition(".")[2])


class Probe(RetainedState):
    """Records every state in one forward call from position 0, and stores nothing.

    Args:
        position_ids: Positions, (batch, seq).
        windows: Layers that retain only a number of newest positions.
        expanders: Functions that expand latents, see `RetainedState`.
    """

    def __init__(self, position_ids: Tensor, windows: Windows, expanders: Expanders) -> None:
        super().__init__([], {}, position_ids, expanders=expanders)
        self.windows, self.found = windows, dict[str, State]()

    def _keep(self, kind: StateKind, name: str, new: Tensor) -> Tensor:
        rows = self.windows[_layer(name)] if kind == "window" else "ctx_len"
        self._note(name, kind, (new.shape[1], rows, new.shape[3]))
        return new

    def _note(self, name: str, kind: StateKind, sizes: tuple[int | str, ...]) -> None:
        axes = ("batch_size", *sizes)
        self.found[name] = State(name=name, kind=kind, layer=_layer(name), axes=axes)

    def before(self, name: str) -> None:
        """Return None, since no call came before."""

    def _replace(self, name: str, rows: Tensor) -> None:
        self._note(name, "recurrent", tuple(rows.shape[1:]))

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Return as many keys as tokens."""
        return query_length, 0
