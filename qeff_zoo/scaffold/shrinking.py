# SPDX-License-Identifier: Apache-2.0
"""A real configuration -> a tiny one of the same structure, awkward on purpose, for a recipe's tests.

Sizes shrink to numbers that no fact about the model can hide behind: heads that differ from KV heads, a head_dim that
is not hidden / heads, a window shorter than the prompt, soft-caps that bite. Switches and scalings stay as they are,
every kind of layer occurs at least twice, and what transformers would choose by itself is left out.
"""

import copy
from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from typing import Any

from qeff_zoo.export import architectures

# From which layer on, or up to which, there is another kind.
DEPTHS = (
    *("max_window_layers", "first_k_dense_replace", "num_dense_layers"),
    "moe_layer_start_index",
)
# transformers' name of a size (or an alias) -> the tiny size.
SIZES: Mapping[str, float] = {
    "vocab_size": 257,
    "hidden_size": 64,
    "word_embed_proj_dim": 64,
    **dict.fromkeys(("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner"), 96),
    **dict.fromkeys(("intermediate_size_mlp", "dense_intermediate_size"), 80),
    **dict.fromkeys(("moe_intermediate_size", "expert_ffn_hidden_size"), 48),
    **dict.fromkeys(("shared_expert_intermediate_size", "shared_intermediate_size"), 40),
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    "head_dim": 24,
    "rotary_dim": 8,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"), 5),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk"), 2),
    **dict.fromkeys(("max_position_embeddings", "max_seq_len"), 128),
    "original_max_position_embeddings": 32,
    **dict.fromkeys(("sliding_window", "window_size", "attention_chunk_size"), 7),
    "local_attention": 8,
    **dict.fromkeys(DEPTHS, 2),
    "query_pre_attn_scalar": 17,
    **dict.fromkeys(("initializer_range", "init_std"), 0.2),
}
# Every how many layers another kind comes: 2 lets each occur twice in four.
PERIODS = (
    "decoder_sparse_step",
    "interleave_moe_layer_step",
    "moe_layer_interval",
    "global_attn_every_n_layers",
)
_LAYERS = 4
_GROUPED_EXPERTS = 6  # in two groups
_EPSILONS, _EPSILON = ("_eps", "_epsilon"), 1e-2
_SCALES, _SCALE = ("_multiplier", "_scaling", "_scaling_factor", "logit_scale"), 1.5
_DERIVED_FROM_LATENT = ("head_dim", "qk_head_dim")  # latent attention computes them
#: Field of RoPE parameters with the number of pairs of each axis: time, height and width.
SECTIONS = "mrope_section"
_NOT_PARSED = {"auto_map", "quantization_config"}
_UNUSED_ENDINGS = ("_token_id", "_token_index", "dropout", "_pdrop", "layerdrop", "_prob", "_coef")
_UNUSED_PARTS = ("eps", "output_", "classifier", "summary_", "label", "dtype", "aux_loss")
_UNUSED = {
    *(
        "_name_or_path",
        "architectures",
        "auto_map",
        "chunk_size_feed_forward",
        "is_encoder_decoder",
    ),
    *("model_type", "num_nextn_predict_layers", "pretraining_tp", "problem_type", "return_dict"),
    *("quantization_config", "task_specific_params", "transformers_version", "use_cache"),
}


def parse(config: Mapping[str, Any]) -> Any:
    """Read a raw configuration as transformers does.

    Args:
        config: With a `model_type`.

    Raises:
        ValueError: transformers refuses it.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import CONFIG_MAPPING

    architectures.register(config["model_type"])
    raw = {key: value for key, value in config.items() if key not in _NOT_PARSED}
    try:
        return CONFIG_MAPPING[config["model_type"]].from_dict(copy.deepcopy(raw))
    except (TypeError, KeyError, AttributeError, StrictDataclassError) as error:
        raise ValueError(str(error)) from error


def fields_of(config: Mapping[str, Any]) -> set[str]:
    """Return the fields that the class of a raw configuration has, under its own names."""
    parsed = parse(config)
    try:
        own = type(parsed)().to_dict()
    except (TypeError, ValueError):  # a class without usable defaults
        own = parsed.to_dict()
    # Many classes take head_dim without listing it: the modelling code asks for it.
    return {*own, *(["head_dim"] if config.get("head_dim") else [])}


def shrink(
    config: Mapping[str, Any], *, times: int = 1, plain: Collection[str] = ()
) -> dict[str, Any]:
    """Derive a tiny configuration.

    Args:
        config: Raw config.json of a real model.
        times: Factor of the number of layers.
        plain: Fields among "num_key_value_heads" and "head_dim" that must be as in plain multi-head attention.

    Returns:
        Arguments of the config class, without what it chooses by itself.

    Raises:
        ValueError: transformers refuses the real configuration or the tiny one.
    """
    parsed, known = parse(config), fields_of(config)
    full = parsed.to_dict()  # with `head_dim` where the configuration has it, listed or not
    canonical = {own: name for name, own in parsed.attribute_map.items()}
    names = {key: canonical.get(key, key) for key in full}
    tiny = {key: value for key, value in full.items() if _is_set(key, value, known)}
    floats = {key: value for key, value in full.items() if isinstance(value, float)}
    tiny |= {
        key: awkward(key, value)
        for key, value in floats.items()
        if key in tiny or (key in known and awkward(key, value) != value)
    }
    sizes = {
        key: _size(name, full, plain) for key, name in names.items() if _has_size(name, full[key])
    }
    cut, layers = _cut_lists(full, parsed, times)
    sizes |= {key: layers for key, name in names.items() if name == "num_hidden_layers"}
    tiny |= cut | sizes | {key: 2 for key in PERIODS if (full.get(key) or 1) > 1}
    if "qk_rope_head_dim" in full:
        tiny = {key: value for key, value in tiny.items() if key not in _DERIVED_FROM_LATENT}
    if full.get("rope_parameters"):
        pairs = (tiny.get("head_dim") or 64 // 4) // 2
        tiny["rope_parameters"] = _shrink_rope(full["rope_parameters"], pairs)
    ranks: Mapping[Any, int] = {name: rank for rank, name in enumerate(SIZES)}
    order = sorted(tiny, key=lambda key: ranks.get(names.get(key, key), len(ranks)))
    ordered = {key: tiny[key] for key in order}
    return _minimal(config["model_type"], ordered, {*sizes, "rope_parameters"})


def deepen(config: Mapping[str, Any], tiny: Mapping[str, Any]) -> dict[str, Any]:
    """Give a tiny configuration the layers of the real one, kinds and all.

    Args:
        config: Raw config.json of the real model.
        tiny: Configuration from `shrink`.
    """
    parsed = parse(config)
    full, cut = parsed.to_dict(), _cut_lists(parsed.to_dict(), parsed, 1)[0]
    depth = {
        parsed.attribute_map.get("num_hidden_layers", "num_hidden_layers"),
        *PERIODS,
        *DEPTHS,
    }
    return {
        **tiny,
        **{key: full[key] for key in full if key in {*depth, *cut} - {"n_group", "topk_group"}},
    }


def is_unused(key: str) -> bool:
    """Whether a field has no effect on the computation, or is no property of an architecture.

    Args:
        key: Name of the field.
    """
    return (
        key in _UNUSED
        or key.endswith(_UNUSED_ENDINGS)
        or any(part in key for part in _UNUSED_PARTS)
    )


def _is_set(key: str, value: Any, fields: set[str]) -> bool:
    """Whether a field can distinguish checkpoints beyond their size."""
    return (
        key in fields
        and not is_unused(key)
        and value == value
        and value not in (float("inf"), -float("inf"))
    )


def _has_size(name: str, value: Any) -> bool:
    return (
        name in SIZES
        and isinstance(value, int | float)
        and not isinstance(value, bool)
        and value > 0
    )


def _size(name: str, full: Mapping[str, Any], plain: Collection[str]) -> float:
    """Choose a tiny size that fits its neighbours."""
    latent = "qk_rope_head_dim" in full
    if name in ("num_key_value_heads", "num_kv_heads") and (
        latent or "num_key_value_heads" in plain
    ):
        return SIZES["num_attention_heads"]
    if name == "head_dim" and "head_dim" in plain:
        return SIZES["hidden_size"] // SIZES["num_attention_heads"]
    if SIZES[name] == SIZES["num_experts"] and "experts" in name and (full.get("n_group") or 1) > 1:
        return _GROUPED_EXPERTS
    if name in ("num_experts_per_tok", "moe_topk"):
        return min(SIZES[name], int(full.get(name, 2)))
    return SIZES[name]


def awkward(key: str, value: float) -> float:
    """Return a value that shows in the result of a tiny model if a graph drops it.

    Args:
        key: Name of the field.
        value: Published value: a scaling of 1 becomes another, as do the epsilon of a norm and a soft-cap.
    """
    if key.endswith(_EPSILONS):
        return _EPSILON
    if "softcap" in key or "soft_cap" in key:
        return 2.0 if "attn" in key else 5.0
    if key == "attention_multiplier":
        return 0.2
    return _SCALE if value == 1 and key.endswith(_SCALES) else value


def _cut_lists(full: Mapping[str, Any], parsed: Any, times: int) -> tuple[dict[str, Any], int]:
    """Cut lists with an entry per layer, all kinds kept, and lists of layer numbers; also return the layer count."""
    count = getattr(parsed, "num_hidden_layers", None)
    lists = {key: value for key, value in full.items() if isinstance(value, list) and value}
    numbers = {key for key, value in lists.items() if _ascends(value)}
    per_layer = [key for key, value in lists.items() if len(value) == count and key not in numbers]
    rows = list(zip(*(lists[key] for key in per_layer), strict=True))
    kinds = [row for index, row in enumerate(rows) if row not in rows[:index]][:_LAYERS]
    pattern = kinds * times * max(2, _LAYERS // max(1, len(kinds)))
    layers = len(pattern) or times * _LAYERS
    cut: dict[str, Any] = {key: [row[i] for row in pattern] for i, key in enumerate(per_layer)}
    for key in numbers:
        if key.endswith(("layers", "indices", "ids")):
            left = [number for number in lists[key] if number < layers]
            both = 2 <= len(left) <= layers - 2 or len(lists[key]) == count
            cut[key] = left if both else [0, 1]
    if (full.get("n_group") or 1) > 1:
        cut |= {"n_group": 2, "topk_group": 1}
    return cut, layers


def _ascends(values: list[Any]) -> bool:
    """Whether a list holds layer numbers rather than one value per layer."""
    whole = all(isinstance(value, int) and not isinstance(value, bool) for value in values)
    return whole and all(a < b for a, b in pairwise(values))


def _shrink_rope(rope: Mapping[str, Any], pairs: int, rank: int = 0) -> dict[str, Any]:
    """Keep the kind of RoPE, at bases and lengths that show within a few positions."""
    if all(isinstance(value, Mapping) for value in rope.values()):
        bases = sorted({value.get("rope_theta", 0) for value in rope.values()})
        return {
            key: _shrink_rope(v, pairs, bases.index(v.get("rope_theta", 0)))
            for key, v in rope.items()
        }
    kept = int(pairs * rope.get("partial_rotary_factor", 1.0))
    tiny = {
        key: [round(item, 2) for item in value[:kept]] if isinstance(value, list) else value
        for key, value in rope.items()
        if value is not None
    }
    sizes = {"rope_theta": 1000.0 * 10**rank, "factor": 4.0, "original_max_position_embeddings": 32}
    tiny |= {key: value for key, value in sizes.items() if key in tiny}
    if rope.get(SECTIONS):
        tiny[SECTIONS] = sections_of(rope, pairs)
    return {"rope_type": tiny.pop("rope_type", "default"), **tiny}


def sections_of(rope: Mapping[str, Any], pairs: int) -> list[int]:
    """Return the sections of a rotary embedding over several axes, scaled to a head unless they fit it.

    Args:
        rope: RoPE parameters with sections.
        pairs: Number of pairs of values in a head.
    """
    sections: list[int] = rope[SECTIONS]
    rotated = round(pairs * rope.get("partial_rotary_factor", 1.0))
    if sum(sections) == rotated or rotated < len(sections):
        return sections
    others = [max(1, rotated * section // sum(sections)) for section in sections[1:]]
    return [rotated - sum(others), *others]


def _minimal(model_type: str, tiny: dict[str, Any], kept: Iterable[str]) -> dict[str, Any]:
    """Leave out what the config class chooses by itself."""

    def meaning(config: Mapping[str, Any]) -> Any:
        return parse({"model_type": model_type, **config}).to_dict()

    whole = meaning(tiny)
    if (whole.get("pad_token_id") or 0) >= SIZES["vocab_size"]:
        tiny["pad_token_id"] = 0
        whole = meaning(tiny)
    for key in [key for key in tiny if key not in set(kept)]:
        rest = {name: value for name, value in tiny.items() if name != key}
        try:
            if meaning(rest) == whole:
                tiny = rest
        except ValueError:
            continue
    return {key: _difference(model_type, key, value) for key, value in tiny.items()}


def _difference(model_type: str, key: str, value: Any) -> Any:
    """Of a nested configuration, keep what is not its default."""
    from transformers import CONFIG_MAPPING

    nested = (CONFIG_MAPPING[model_type].sub_configs or {}).get(key)
    if nested is None or not isinstance(value, Mapping):
        return value
    default = nested().to_dict()
    return {name: item for name, item in value.items() if name in default and item != default[name]}
