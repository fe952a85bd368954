# SPDX-License-Identifier: Apache-2.0
"""Key/value heads, repeated: more than a checkpoint has, so that each of several devices has some of its own.

Neighbouring queries share a key/value head, so each is repeated in its place: 0, 0, 1, 1, …. Every query then finds the
keys and values that it had. Rows of the checkpoint are read more than once; no weight is computed.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from qeff_zoo.checkpoint.config import HEADS, kv_heads_of, size_of
from qeff_zoo.checkpoint.expressions import concat, cut
from qeff_zoo.errors import UnsupportedModelError
from qeff_zoo.recipe import Recipe

if TYPE_CHECKING:
    from qeff_zoo.weights.bindings import Binding

#: As configs call the number of key/value heads.
KV_HEADS = "num_key_value_heads"
_HEADS, _BY_LAYER = "num_attention_heads", "num_attention_heads_per_layer"
_LATENT = "kv_lora_rank"


def counts(config: Mapping[str, Any]) -> list[int]:
    """Return how many key/value heads a model may have besides its own, which they repeat; ascending.

    Args:
        config: Raw config.json.
    """
    own, heads = config.get(KV_HEADS), config.get(_HEADS)
    if not (isinstance(own, int) and isinstance(heads, int) and own > 0) or config.get(_LATENT):
        return []
    shared = math.gcd(heads, *config.get(_BY_LAYER) or ())
    return [count for count in range(2 * own, shared + 1, own) if shared % count == 0]


def problems(name: str, config: Mapping[str, Any], recipe: Recipe, heads: int) -> Iterator[str]:
    """Explain in one sentence why a checkpoint's key/value heads cannot be replicated; empty if they can.

    Args:
        name: Name of the checkpoint.
        config: Raw config.json.
        recipe: Recipe of its `model_type`.
        heads: Requested number of heads.
    """
    fitting = counts(config)
    if why := _never(config, recipe):
        yield f"--kv-heads is {heads}, but the key/value heads of {name!r} cannot be repeated: {why}. Leave it out."
    elif not fitting:
        yield (
            f"--kv-heads is {heads}, but {name!r} has no key/value head that several queries share and that could be "
            f"repeated for them: by config.json it has {kv_heads_of(config)} for {size_of(config, HEADS)} heads. "
            "Leave it out."
        )
    elif heads not in fitting:
        yield (
            f"--kv-heads is {heads}; expected a multiple of the {config[KV_HEADS]} that {name!r} has, and one that its "
            f"{config[_HEADS]} attention heads are a multiple of. Choose one of {', '.join(map(str, fitting))}."
        )


def _never(config: Mapping[str, Any], recipe: Recipe) -> str:
    if recipe.fixed_kv_heads:
        return recipe.fixed_kv_heads
    if config.get(_LATENT):
        return "latent attention keeps latents, which all heads share"
    if not recipe.retains_context:
        return "it keeps windows and recurrent states only"
    others = [path for path, count in _named(config) if path != KV_HEADS and count]
    return f"some of its layers have another number of them (`{others[0]}`)" if others else ""


def _named(config: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every number of key/value heads that a config names, with where it does."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _named(value, f"{path}{name}.")
        elif name.endswith("key_value_heads"):
            yield path + name, value


def widened(config: Mapping[str, Any], heads: int | None) -> Mapping[str, Any]:
    """Return a config with another number of key/value heads; None for its own."""
    return config if heads is None else {**config, KV_HEADS: heads}


def repeat(bound: "Binding", model: Any, wide: Any) -> "Binding":
    """Bind a model with more key/value heads to the weights of one with fewer.

    Args:
        bound: Expressions of the weights with fewer heads.
        model: The one with fewer, a `PreTrainedModel`, on the meta device if need be.
        wide: The other; its config says how many heads it has.

    Raises:
        UnsupportedModelError: Some weight, bound or not, has more than rows for each head.
    """
    heads = getattr(model.config.get_text_config(), KV_HEADS)
    times = getattr(wide.config.get_text_config(), KV_HEADS) // heads
    own = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    expressions, shapes = dict(bound.expressions), dict(bound.shapes)
    for name, value in wide.state_dict().items():
        shape, before = tuple(value.shape), own.get(name)
        if before == shape:
            continue
        if not before or before[0] % heads or shape != (before[0] * times, *before[1:]):
            raise UnsupportedModelError(
                f"The {heads} key/value heads cannot be repeated: {name!r} is {list(before or ())} in the model, and "
                f"{list(shape)} with {times} times as many heads; expected so many times the rows, as of weights that "
                "make keys or values and nothing else. Leave --kv-heads out."
            )
        if name in expressions:
            each, e = before[0] // heads, expressions[name]
            parts = [cut(0, head * each, (head + 1) * each, e) for head in range(heads)]
            expressions[name] = concat(0, *(part for part in parts for _ in range(times)))
            shapes[name] = shape
    return replace(bound, expressions=expressions, shapes=shapes)
