# SPDX-License-Identifier: Apache-2.0
"""One call of a causal language model on retained states, for tracing: `text-generation`.

IN   input_ids (batch_size, seq_len) i64    position_ids (batch_size, seq_len) i64, -1 is padding
     [batch_index (batch_size, 1) i64]      batch slot of each row, for continuous batching
     past_key.i, past_value.i               (batch_size | full_batch_size, kv_heads, ctx_len, head_dim); window
                                            layers have the length of the window in place of ctx_len
     past_index.i                           (batch_size | full_batch_size, 1, ctx_len, head_dim), for sparse attention
     conv_state.i, recurrent_state.i        (batch_size | full_batch_size, …), for layers without keys
     [comp_ctx_lengths (comp_ctx_lengths,) i64]   as many zeros as the length of the KV cache that the call reads:
                                                  any length above all of its positions gives the same logits
     [num_logits_to_keep (num_logits_to_keep,) i64]   as many zeros as positions whose logits the call returns
OUT  logits (batch_size, 1, vocab)          logits of the highest position in each row
     logits (batch_size, num_logits_to_keep, vocab)   with that input: for as many positions up to the highest; a row
                                                     with fewer has all of them first, and the rest is undefined
     logits (batch_size, num_logits_to_keep, heads + 1, vocab)   with draft heads: for each position the model's, then
                                                                 those of the heads
     [hidden_states (batch_size, seq_len, hidden)]   inputs of a draft program for every token: those of the output
                                                     head, or states within the model, joined by a matrix of the
                                                     draft program
     <state>_RetainedState                  for every state
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.export import Dim

from qeff_zoo.checkpoint.config import positions_of
from qeff_zoo.checkpoint.draft_heads import PREFIX
from qeff_zoo.contract import Tracing
from qeff_zoo.errors import ExportError
from qeff_zoo.export.draft_heads.modules import build
from qeff_zoo.export.loader import hollow
from qeff_zoo.export.transforms.latent_kv import expand, expanders_of
from qeff_zoo.export.transforms.retained_state import Probe, RetainedState
from qeff_zoo.export.transforms.window_cache import windows_of
from qeff_zoo.export.uncomputed import without_values
from qeff_zoo.graph.passes import hidden_states as within
from qeff_zoo.graph.passes.slots import remove as remove_slots
from qeff_zoo.graph.states import State

#: Function from the symbols of rows, tokens and cache, and example positions, to examples by name with their symbols.
More: TypeAlias = Callable[[Any, Any, Any, Tensor], Mapping[str, tuple[Tensor, Any]]]

_ENDLESS = 1 << 31  # positions
# Example sizes: at least 2, or torch.export specializes.
_BATCH, _SLOTS, _KEPT, _SEQ, _COMP_CTX, CTX, SOURCE = 2, 3, 4, 6, 8, 10, 7


class Step(nn.Module):
    """One call of a causal language model on retained states.

    Args:
        model: Hugging Face model whose attention is `qeff_zoo`.
        states: Retained states in order.
        names: Names of the inputs besides tokens and positions.
        hidden_states: Whether it returns the inputs of the output head.
        drafts: Whether draft heads, the model's `speculator`, add logits from the same states.
    """

    def __init__(
        self,
        model: Any,
        states: Sequence[State],
        names: tuple[str, ...] = (),
        *,
        hidden_states: bool = False,
        drafts: bool = False,
    ) -> None:
        super().__init__()
        self.model, self.states, self.names = model, states, names
        self.hidden_states, self.drafts = hidden_states, drafts

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        past: list[Tensor],
        batch_index: Tensor | None = None,
        comp_ctx_lengths: Tensor | None = None,
        num_logits_to_keep: Tensor | None = None,
        more: Sequence[Tensor] = (),
    ) -> tuple[Tensor, ...]:
        """Return logits of each row's highest positions, then the new states."""
        state = self.retained(position_ids, past, batch_index, comp_ctx_lengths)
        if num_logits_to_keep is not None:
            count, last = num_logits_to_keep.shape[0], position_ids.shape[1] - 1
            first = (state.needed + 1 - count).clamp(min=0)
            state.needed = (first + torch.arange(count)[None]).clamp(max=last)

        hidden: list[Tensor] = []
        needed: list[Tensor] = []

        def only_needed(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
            hidden.append(args[0])
            needed.append(args[0] if state.narrowed else state.only_needed(args[0]))
            return (needed[0],)

        head = self.head.register_forward_pre_hook(only_needed)
        try:
            output = self.call(input_ids, position_ids.clamp(min=0), state, more)
        finally:
            head.remove()
        written = (job.name for job in self.states if job.written)
        outputs = [self.handed(output, hidden[0])] if self.hidden_states else []
        logits = self.with_heads(output.logits, needed[0]) if self.drafts else output.logits
        return (logits, *outputs, *(state.present[name] for name in written))

    def retained(
        self,
        position_ids: Tensor,
        past: list[Tensor],
        batch_index: Tensor | None,
        comp_ctx_lengths: Tensor | None,
    ) -> RetainedState:
        """Return the states of a call, see `forward`."""
        given = dict(zip((state.name for state in self.states), past, strict=True))
        expanders = expanders_of(self.model)
        return RetainedState(
            self.states, given, position_ids, batch_index, expanders, comp_ctx_lengths
        )

    def with_heads(self, logits: Tensor, needed: Tensor) -> Tensor:
        """Append the logits of draft heads to those of the model.

        Args:
            logits: Logits of the model, (rows, tokens, vocab).
            needed: States from which they were computed, (rows, tokens, size).
        """
        drafted = self.model.speculator(needed.flatten(0, 1), self.head)
        return torch.cat([logits[:, :, None], drafted.unflatten(0, needed.shape[:2])], 2)

    @property
    def head(self) -> Any:
        """Output head of the model."""
        return self.model.get_output_embeddings()

    def handed(self, output: Any, hidden: Tensor) -> Tensor:
        """Return the inputs of a draft program for every token.

        Args:
            output: Output of `call`.
            hidden: Inputs of the output head.
        """
        return hidden

    def call(
        self, input_ids: Tensor, position_ids: Tensor, state: RetainedState, more: Sequence[Tensor]
    ) -> Any:
        """Run transformers' forward."""
        return _call(self.model, input_ids, position_ids, state)


def _call(model: Any, input_ids: Tensor, position_ids: Tensor, state: RetainedState) -> Any:
    """Call a model by its own argument names: state-space models have another name for the cache."""
    known = inspect.signature(model.forward).parameters
    cache = "cache_params" if "cache_params" in known else "past_key_values"
    positions = {} if cache == "cache_params" else {"position_ids": position_ids}
    return model(input_ids=input_ids, use_cache=True, **positions, **{cache: state})


def probe(
    model: Any, inner: Any = None, call: Callable[[Any, Tensor, Tensor, RetainedState], Any] = _call
) -> list[State]:
    """Return every state in the graph's order, from one run of the model without any computation.

    Args:
        model: Model from `loader.load_meta`.
        inner: Model that has the states; None for `model`.
        call: Function that runs it on tokens, positions and states.
    """
    inner = inner or model

    def run() -> Probe:
        position_ids = torch.arange(_SEQ).expand(_BATCH, _SEQ)
        state = Probe(position_ids, windows_of(inner), expanders_of(inner))
        call(model, torch.zeros_like(position_ids), position_ids, state)
        return state

    states = without_values(model, run).found
    return sorted(states.values(), key=lambda state: state.layer)


def tracing(
    model: Any,
    *,
    continuous_batching: bool = False,
    expanded_kv: bool = False,
    comp_ctx_lengths: bool = False,
    num_logits_to_keep: bool = False,
    hidden_states: bool | Mapping[str, Any] = False,
    heads: Mapping[str, Any] | None = None,
    step: Callable[..., Step] = Step,
    more: More | None = None,
    probe: Callable[[Any], list[State]] = probe,
) -> Tracing:
    """Describe how to trace `model`: wrapped module, example inputs, names and symbols.

    Args:
        model: Model from `loader.load_meta`, possibly with fewer layers than its config has.
        continuous_batching: Whether `batch_index` selects batch slots; otherwise that input is removed.
        expanded_kv: Whether latent attention retains every head's keys and values in place of the latents.
        comp_ctx_lengths: Whether each call sets the length of the KV cache that it reads.
        num_logits_to_keep: Whether each call sets the number of positions whose logits it returns.
        hidden_states: Whether to return the inputs of the output head for every token; or the states that
            `within.hand_out` selects.
        heads: Declaration of draft heads whose logits are returned with the model's, see
            `qeff_zoo.checkpoint.draft_heads.kinds`.
        step: Class of the traced module.
        more: Function that returns further inputs.
        probe: Function that returns the states.

    Raises:
        ExportError: The model lacks the subject of an option.
    """
    if expanded_kv and not expand(model):
        raise ExportError(
            f"{type(model).__name__} has no latent attention, so no keys and values to expand. Expected a model such "
            f"as DeepSeek V3; leave the choice of the KV cache out."
        )
    states = probe(model)
    if heads:
        model.speculator = build(heads).eval()
        hollow(model.speculator)
    if comp_ctx_lengths and not any(state.grows for state in states):
        raise ExportError(
            f"{type(model).__name__} keeps windows or recurrent states only, of which no call can read less. "
            f"Expected a cache that grows with the context; leave the compute contexts out."
        )
    # A model may slice a table of its positions. torch.export assumes that a slice is shorter than the table.
    longest = (positions_of(vars(model.config.get_text_config())) or _ENDLESS) - 1
    batch, slots = Dim("batch_size", min=2), Dim("full_batch_size", min=2)
    seq, ctx = Dim("seq_len", min=2, max=longest), Dim("ctx_len", min=2, max=longest)
    sizes, symbols = {"batch_size": _SLOTS, "ctx_len": CTX}, {"batch_size": slots, "ctx_len": ctx}
    _add_others(states, sizes, symbols)
    position_ids = torch.arange(_SEQ).expand(_BATCH, _SEQ).contiguous()
    context, kept = comp_ctx_lengths * _COMP_CTX, num_logits_to_keep * _KEPT
    last = _behind_states(batch, {"comp_ctx_lengths": context, "num_logits_to_keep": kept}, longest)
    given = more(batch, seq, ctx, position_ids) if more else {}
    returned = {"hidden_states": hidden_states is True, "drafts": bool(heads)}
    return Tracing(
        module=step(model, states, tuple(given), **returned).eval(),
        inputs={
            "input_ids": torch.zeros_like(position_ids),
            "position_ids": position_ids,
            "past": [_example(state, sizes) for state in states],
            **{name: example for name, (example, _) in last.items()},
            **({"more": [example for example, _ in given.values()]} if given else {}),
        },
        dynamic_shapes={
            "input_ids": {0: batch, 1: seq},
            "position_ids": {0: batch, 1: seq},
            "past": [_dimensions(state, symbols) for state in states],
            **{name: axes for name, (_, axes) in last.items()},
            **({"more": [axes for _, axes in given.values()]} if given else {}),
        },
        input_names=["input_ids", "position_ids", *(state.name for state in states), *last, *given],
        output_names=[
            "logits",
            *["hidden_states"] * returned["hidden_states"],
            *(state.output for state in states if state.written),
        ],
        states=states,
        then=partial(_finish, slots=continuous_batching, hidden_states=hidden_states),
    )


def _finish(graph: Any, *, slots: bool, hidden_states: bool | Mapping[str, Any]) -> None:
    """Return states within the model from a portable graph, and remove batch slots from it."""
    if isinstance(hidden_states, Mapping):
        within.hand_out(graph, **hidden_states, matrix=f"{PREFIX}fc.weight")
    if not slots:
        remove_slots(graph)


def _example(state: State, sizes: Mapping[str, int]) -> Tensor:
    return torch.zeros([size if isinstance(size, int) else sizes[size] for size in state.axes])


def _dimensions(state: State, symbols: Mapping[str, Any]) -> dict[int, Any]:
    return {axis: symbols[one] for axis, one in enumerate(state.axes) if isinstance(one, str)}


def _behind_states(batch: Dim, counts: Mapping[str, int], longest: int) -> dict[str, Any]:
    """Return example and symbols of the inputs after the states. The counts give the lengths of some; 0 if absent."""
    last: dict[str, Any] = {"batch_index": (torch.zeros(_BATCH, 1).long(), {0: batch})}
    for name, count in counts.items():
        if count:
            last[name] = torch.zeros(count).long(), {0: Dim(name, min=2, max=longest)}
    return last


def _add_others(states: Sequence[State], sizes: dict[str, int], symbols: dict[str, Any]) -> None:
    """Set example sizes and dimensions for symbols of states other than rows and context."""
    for name in {size for state in states for size in state.axes if isinstance(size, str)}:
        sizes.setdefault(name, SOURCE)
        symbols.setdefault(name, Dim(name, min=2))
