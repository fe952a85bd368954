# SPDX-License-Identifier: Apache-2.0
"""Multi-head latent attention that optionally retains every head's keys and values in place of their latents.

transformers' cache holds the latents, which are small, and expands the whole context in every call. With expanded
states, a token takes many times the memory and no further work. Modules with `expand_kv(latent, rotated)` are of this
kind.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torch import Tensor

from qeff_zoo.export.layers import plain

#: Functions by layer index: (latents, rotated keys) of new tokens -> (keys, values) of every head.
Expanders: TypeAlias = Mapping[int, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]]


def expand(model: Any) -> int:
    """Make every latent attention retain expanded keys and values; return their number."""
    attentions = [module for module in model.modules() if hasattr(module, "expand_kv")]
    for module in attentions:
        module._expand_new = module.expand_kv
        module.expand_kv = _as_retained
    return len(attentions)


def expanders_of(model: Any) -> Expanders:
    """Return the functions that expand new tokens, for the layers that `expand` changed."""
    return {
        plain(module.layer_idx): module._expand_new
        for module in model.modules()
        if hasattr(module, "_expand_new")
    }


def _as_retained(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    return key, value
