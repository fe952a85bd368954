# SPDX-License-Identifier: Apache-2.0
"""RoPE with length-dependent frequencies: by the length of the package's context, not of one call.

transformers chooses in each call, by its positions; cached keys may have been rotated by other frequencies. Here
`longrope` takes one set of factors for every text, as vLLM does: the long ones if the context is longer than the
original one, else the short ones, unless a build sets them. `dynamic` frequencies change only beyond the model's own
positions, where the plan allows no context.
"""

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from qeff_zoo.export.transforms.modules import give
from qeff_zoo.export.transforms.retained_state import RetainedState


def follow_context(model: nn.Module, factors: str | None = None) -> int:
    """Change every rotary embedding whose frequencies transformers would change between calls.

    Args:
        model: Model, changed in place.
        factors: Factors of longrope, "short" or "long", whatever the context; None for the context's.

    Returns:
        Number of modules changed.
    """
    context = _Context(factors)
    rotaries: list[Any] = [
        module for module in model.modules() if {*_kinds(module).values()} & _CHANGING
    ]
    for rotary in rotaries:
        give(rotary, _forward)
        rotary._context = context
        rotary._long = {
            layer_type: _long_frequencies(rotary, layer_type)
            for layer_type, kind in _kinds(rotary).items()
            if kind == "longrope"
        }
    if rotaries:
        model.register_forward_pre_hook(context.note, with_kwargs=True)
    return len(rotaries)


_CHANGING = {"dynamic", "longrope"}


def _kinds(module: nn.Module) -> dict[str | None, str]:
    """Return the kind of RoPE by layer type; None is the key if there is one for all."""
    kind = getattr(module, "rope_type", None)
    return kind if isinstance(kind, dict) else {None: kind} if isinstance(kind, str) else {}


class _Context:
    """Length of texts: the context of the running call, unless the factors are set.

    Args:
        factors: Set factors, "short", "long" or None.
    """

    def __init__(self, factors: str | None) -> None:
        self._factors = factors
        self.rows: int | None = None

    def exceeds(self, original: int, position_ids: Tensor) -> Tensor:
        """Return whether texts are longer than the original context, (1)."""
        if self._factors is not None:
            return torch.full((1,), self._factors == "long", device=position_ids.device)
        rows = position_ids.shape[1] if self.rows is None else self.rows
        return torch.full((1,), rows, dtype=torch.long, device=position_ids.device) > original

    def note(self, _: nn.Module, __: Any, kwargs: dict[str, Any]) -> None:
        caches = (value for value in kwargs.values() if isinstance(value, RetainedState))
        self.rows = next((cache.get_max_cache_shape() for cache in caches), None)


class _WithFrequencies:
    """A rotary embedding with other frequencies."""

    def __init__(self, rotary: nn.Module, **frequencies: Tensor) -> None:
        self.__dict__.update(frequencies, _rotary=rotary)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rotary, name)


def _forward(self: Any, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> Any:
    own = {} if layer_type is None else {"layer_type": layer_type}
    name = "inv_freq" if layer_type is None else f"{layer_type}_inv_freq"
    frequencies = getattr(self, name)
    if layer_type in self._long:
        original = _parameters(self, layer_type)["original_max_position_embeddings"]
        long = self._context.exceeds(original, position_ids)
        frequencies = torch.where(long, self._long[layer_type], frequencies)
    function = inspect.unwrap(type(self).forward)
    return function(_WithFrequencies(self, **{name: frequencies}), x, position_ids, **own)


def _parameters(rotary: Any, layer_type: str | None) -> Any:
    parameters = rotary.config.rope_parameters
    return parameters if layer_type is None else parameters[layer_type]


def _long_frequencies(rotary: Any, layer_type: str | None) -> Tensor:
    beyond = _parameters(rotary, layer_type)["original_max_position_embeddings"] + 1
    own = {} if layer_type is None else {"layer_type": layer_type}
    frequencies, _ = ROPE_INIT_FUNCTIONS["longrope"](rotary.config, seq_len=beyond, **own)
    return frequencies
