# SPDX-License-Identifier: Apache-2.0
"""A tiny configuration -> the same one with sizes that the kernels of production take.

Tiny configurations are awkward on purpose: heads of 24, experts of 48. Kernels of real sizes do not take those, and
what they would compute is left to portable bodies. All widths grow by one factor, so what differed still differs.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from qeff_zoo.scaffold import shrinking

#: Rotary embeddings inside the kernel of attention rotate a multiple of so many numbers, of heads of such a multiple.
HEAD = 16
#: The kernel of experts takes sizes that are multiples of a block of quantized values.
BLOCK = 32
_FACTORS = range(1, 9)
_WIDTHS = re.compile(
    r"(^|_)(hidden_size(_per_layer_input)?|intermediate_size(_mlp)?|latent_size|state_size|head_dim|rotary_dim"
    r"|proj_dim|ffn_dim|dim_model_base|d_model|d_state|d_head|d_ssm|d_rel|dff|n_embd|n_inner|lru_width"
    r"|kv_channels|lora_rank|norm_rank|laurel_rank|adapter_rank|dt_rank|step_rank|mrope_section)$"
)
#: One number for each pair of a head's.
_BY_PAIR = ("long_factor", "short_factor")
#: Wider sums of weights stay as large as they were.
_SPREADS = ("initializer_range", "init_std", "embedding_initializer_range")
_ATTENTION = (
    *("head_dim", "global_head_dim", "swa_head_dim", "kv_channels"),
    *("rotary_dim", "qk_rope_head_dim"),
)
_EXPERTS = ("moe_intermediate_size", "expert_ffn_hidden_size", "moe_latent_size")


def aligned(config: Mapping[str, Any]) -> dict[str, Any]:
    """Widen a configuration by the least factor that suits the kernels.

    Args:
        config: Of a tiny model, `model_type` included.

    Raises:
        ValueError: No factor does.
    """
    for factor in _FACTORS:
        wide = widened(config, factor)
        with suppress(ValueError):  # transformers refuses some sizes
            if all(size % unit == 0 for size, unit in _sizes(wide)):
                return wide
    raise ValueError(
        f"The tiny configuration of {config['model_type']!r} has sizes {sorted(set(_sizes(config)))}: each is to "
        f"be a multiple of the second number, and no factor up to {_FACTORS[-1]} makes them so. Expected an even number"
        f" of heads, say; change the recipe's tiny configuration."
    )


def widened(config: Mapping[str, Any], factor: int) -> dict[str, Any]:
    """Make all widths of a configuration so many times as large."""
    # Sizes of single layers are listed by number.
    return {key: _widen(str(key), value, factor) for key, value in config.items()}


def _widen(key: str, value: Any, factor: int) -> Any:
    if isinstance(value, Mapping):
        return widened(value, factor)
    if isinstance(value, list) and key in _BY_PAIR:
        return [item for item in value for _ in range(factor)]
    if key in _SPREADS:
        return value / factor**0.5
    if not _WIDTHS.search(key):
        return value
    if isinstance(value, list):
        return [_widen(key, item, factor) for item in value]
    return value * factor if type(value) is int else value


def _sizes(config: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """Give sizes, and of what each is to be a multiple."""
    parsed = shrinking.parse(config).get_text_config()
    parsed.allow_global_per_layer_attribute_access = True
    known = parsed.to_dict()
    heads = getattr(parsed, "num_attention_heads", None) or 1
    hidden = parsed.hidden_size
    layers = (known.get("per_layer_config") or {}).values()
    found = [one[name] for one in (known, *layers) for name in _ATTENTION if one.get(name)]
    if not any(known.get(name) for name in ("head_dim", "kv_channels", "qk_rope_head_dim")):
        found.append(hidden // heads)
    # Where the rotated part has a size of its own, what a share says follows from that.
    shares = [] if known.get("qk_rope_head_dim") else [*_shares(known)]
    for size in found:
        yield size, HEAD
        yield from ((int(size * share), HEAD) for share in shares)
    if any("experts" in key for key in known):
        inner = [known[name] for name in _EXPERTS if known.get(name)]
        yield from ((size, BLOCK) for size in inner or [parsed.intermediate_size])
        yield hidden, BLOCK


def _shares(config: Mapping[str, Any]) -> Iterator[float]:
    """Give the parts of heads that are rotated."""
    for key, value in config.items():
        if key in ("partial_rotary_factor", "rotary_pct", "rope_pct") and value:
            yield value
        if key == "rope_parameters" and isinstance(value, Mapping):
            yield from _shares(value)
            for kind in value.values():
                yield from _shares(kind) if isinstance(kind, Mapping) else ()
