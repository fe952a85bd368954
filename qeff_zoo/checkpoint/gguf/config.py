# SPDX-License-Identifier: Apache-2.0
"""Conversion of a GGUF file's metadata to the config.json of its model, with llama.cpp's defaults for absent values.

configs.json maps metadata to config values for each model.
Source: https://github.com/ggml-org/llama.cpp, src/models/*.cpp, src/llama-model.cpp
"""

import json
import math
from array import array
from collections.abc import Callable, Mapping, MutableMapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from statistics import NormalDist
from typing import Any

from qeff_zoo.checkpoint.files import some
from qeff_zoo.checkpoint.gguf.index import GgufHeader
from qeff_zoo.checkpoint.gguf.rope import rope_of, rotated_share
from qeff_zoo.checkpoint.safetensors_index import TensorInfo
from qeff_zoo.errors import CheckpointError, UnsupportedModelError

from . import names as gguf_names

_Fields = MutableMapping[str, Any]
#: Metadata that may be lists.
_LISTS = ("attention.sliding_window_pattern", "rope.dimension_sections")
#: Metadata that other values are divided by, or counted with.
_SIZES = ("attention.head_count", "block_count", "embedding_length", "expert_used_count")
#: Values of `pooling_type`; 4 is that of rerankers, not of embedding models.
_POOLINGS = (None, "mean", "cls", "lasttoken")


#: Context of GLM 5.2, by which llama.cpp knows that layers share indexers.
_SHARING_CONTEXT = 1 << 20


@cache
def _known() -> Mapping[str, Any]:
    """Return configs.json."""
    path = Path(__file__).with_name("configs.json")
    known: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return known


def config_of(name: str, header: GgufHeader) -> dict[str, Any]:
    """Return the config.json of a file's model.

    Args:
        name: Name of the file, for messages.
        header: Header of the file.

    Raises:
        CheckpointError: The metadata are inconsistent.
        UnsupportedModelError: A config value is neither in the metadata nor among llama.cpp's defaults,
            or metadata are unknown.
    """
    architecture = gguf_names.architecture_of(name, header.metadata)
    fields = _fields_of(architecture, header.metadata)
    drafts = fields.pop(gguf_names.DRAFT_LAYERS, 0)
    if type(drafts) is int and type(fields.get("block_count")) is int:
        fields["block_count"] -= drafts
    kind, entry = _entry(name, architecture, fields, header.tensors)
    keys: dict[str, str] = {}
    for group in entry["keys"]:
        keys |= _known()["keys"][group]
    keys |= entry.get("also", {})
    optional = {*_known()["optional"], *entry.get("optional", ())}
    if missing := [key for key in keys if key not in fields and key not in optional]:
        raise _refused(name, architecture, f"its metadata lack {_named(architecture, missing)}")
    _require_numbers(name, architecture, fields, entry)
    for key, only in entry.get("only", {}).items():
        if fields.get(key, only[0]) not in only:
            named = f"{_named(architecture, [key])} is {fields[key]!r}, and {only} is computed"
            raise _refused(name, architecture, named)
    config: dict[str, Any] = {
        "model_type": kind,
        "architectures": _made(entry["architectures"], header.tensors),
        **{key: _made(value, header.tensors) for key, value in entry.get("set", {}).items()},
    }
    if entry.get("tied", True):
        config["tie_word_embeddings"] = "output.weight" not in header.tensors
    if "token_embd.weight" in header.tensors:
        config["vocab_size"] = header.tensors["token_embd.weight"].shape[0]
    try:
        for rule in entry.get("rules", ()):
            _RULES[rule](fields, config, entry)
    except KeyError as error:
        missing = [str(error.args[0])]
        raise _refused(
            name, architecture, f"its metadata lack {_named(architecture, missing)}"
        ) from error
    except ValueError as error:
        raise _refused(name, architecture, str(error)) from error
    size = _head_size(name, architecture, fields, keys)
    _add_layers(fields, config, entry)
    if entry.get("rope", True):
        rope = _rope(name, fields, entry, header.tensors, size)
        config["rope_parameters"] = rope | config.pop("rope_parameters", {})
    if size and entry.get("head_dim", True):
        config[entry.get("head_dim", "head_dim")] = size
    ignored = set(entry.get("ignored", ()))
    for key, ours in keys.items():
        if key in fields and key not in ignored:
            config[ours] = fields.pop(key)
    ignored |= set(_known()["ignored"])
    if odd := [key for key in fields if key not in ignored]:
        raise _refused(
            name, architecture, f"its metadata {_named(architecture, odd)} mean nothing here"
        )
    return config


def pooling_of(metadata: Mapping[str, Any]) -> str | None:
    """Return the pooling of a file's embedding model, as in sentence-transformers; None for other models.

    Args:
        metadata: Metadata of the file.
    """
    kind = metadata.get(f"{metadata.get('general.architecture')}.pooling_type", 0)
    return _POOLINGS[kind] if kind in range(1, len(_POOLINGS)) else None


def _fields_of(architecture: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of the architecture without its prefix, with float32 numbers in their original form."""
    start = f"{architecture}."
    return {
        key.removeprefix(start): float(f"{value:.7g}") if isinstance(value, float) else value
        for key, value in metadata.items()
        if key.startswith(start)
    }


def _entry(
    name: str, architecture: str, fields: Mapping[str, Any], tensors: Mapping[str, TensorInfo]
) -> tuple[str, Mapping[str, Any]]:
    """Return the model of an architecture that a file has."""
    layouts, models = gguf_names.layouts(), _known()["models"]
    likely = [
        (entry.get("model_type", kind), entry)
        for kind, entry in models.items()
        if architecture == entry.get("architecture")
        or ("architecture" not in entry and architecture in layouts[kind].architectures)
    ]
    for kind, entry in likely:
        if _fits(entry.get("when", {}), fields, tensors):
            return kind, entry
    if likely:
        conditions = [_in_words(architecture, entry["when"], fields) for _, entry in likely]
        raise _refused(name, architecture, f"it has {' and '.join(sorted(set(conditions)))}")
    raise gguf_names.unknown(name, architecture)


def _fits(
    when: Mapping[str, Any], fields: Mapping[str, Any], tensors: Mapping[str, TensorInfo]
) -> bool:
    """Whether a file has the tensor or value that distinguishes one model of an architecture from others."""
    if "tensor" in when:
        return when["tensor"] in tensors
    value = fields.get(when.get("key", ""))
    return not when or (value == when["is"] if "is" in when else bool(value))


def _in_words(architecture: str, when: Mapping[str, Any], fields: Mapping[str, Any]) -> str:
    """Return what a file has in place of what a model of its architecture has."""
    if "tensor" in when:
        return f"no tensor {when['tensor']!r}"
    actual, expected = fields.get(when["key"]), when.get("is", "a value")
    return f"{architecture}.{when['key']} {actual!r} in place of {expected!r}"


def _require_numbers(
    name: str, architecture: str, fields: Mapping[str, Any], entry: Mapping[str, Any]
) -> None:
    """Refuse metadata that are not numbers, sizes of 0, and values per layer for models with a single value."""
    for key, value in fields.items():
        ignored = key in entry.get("ignored", ())
        lists = key in _LISTS or key in entry.get("by layer", ()) or key == "rope.scaling.type"
        if lists or (ignored and isinstance(value, array)):
            continue
        size = key in _SIZES and not ignored
        if not isinstance(value, int | float) or (size and value <= 0):
            shown = "values by layer" if isinstance(value, array) else repr(value)
            raise CheckpointError(
                f"{name!r} says {architecture}.{key}: {shown}. Expected one {'size' if size else 'number'}. Get the "
                "file again from its source, or name the checkpoint that it was made from with --config-from."
            )


def _named(architecture: str, keys: list[str]) -> str:
    return some([f"{architecture}.{key}" for key in keys], 10)


def _refused(name: str, architecture: str, why: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{name!r} is GGUF of architecture {architecture!r}, and its metadata do not make a configuration: {why}. "
        "Expected a value for each setting of the model. Name the checkpoint that it was made from with --config-from."
    )


def _made(value: Any, tensors: Mapping[str, TensorInfo]) -> Any:
    """Return the value of an entry: a constant, or one that depends on a tensor: its existence, rows or layers."""
    if not isinstance(value, dict):
        return value
    if "rows" in value:
        fitting = (info for name, info in tensors.items() if fnmatchcase(name, value["rows"]))
        return next((info.shape[0] for info in fitting), value.get("else", 0))
    if "layers" in value:
        parts = (tensor.split(".", 2) for tensor in tensors if tensor.startswith("blk."))
        return sorted(int(layer) for _, layer, leaf in parts if leaf == value["layers"])
    if "has" in value:
        present = any(fnmatchcase(tensor, value["has"]) for tensor in tensors)
        return value["then"] if present and "then" in value else value.get("else", present)
    return value["lacks"] not in tensors


def _head_size(name: str, architecture: str, fields: _Fields, keys: Mapping[str, str]) -> int:
    """Return the head size, 0 without heads; add the number of key/value heads."""
    if "attention.head_count" not in keys:
        return 0
    heads = fields["attention.head_count"]
    key_heads = fields.pop("attention.head_count_kv", heads)
    if "attention.head_count_kv" in keys:
        fields["attention.head_count_kv"] = key_heads
    size: int = fields.pop("attention.key_length", fields["embedding_length"] // heads)
    value = fields.pop("attention.value_length", size)
    if size != value:
        raise _contradiction(
            name, f"{architecture}.attention.key_length {size!r}", f"value_length {value!r}"
        )
    return size


def _contradiction(name: str, one: str, other: str) -> CheckpointError:
    return CheckpointError(
        f"{name!r} says {one} and {other}. Expected one number. Name the checkpoint that it was made from with "
        "--config-from."
    )


def _add_layers(fields: _Fields, config: dict[str, Any], entry: Mapping[str, Any]) -> None:
    """Add the sliding window, and the layers that have it."""
    window = entry.get("window")
    if window is None:
        return
    layers = fields["block_count"]
    pattern = fields.pop("attention.sliding_window_pattern", window["every"])
    size = fields.pop("attention.sliding_window", window.get("default", 0))
    if window.get("layers", layers) != layers:
        size = 0  # llama.cpp has it for one size of model alone
    slides = (
        [bool(element) for element in pattern]
        if isinstance(pattern, array)
        else [layer % pattern < pattern - 1 for layer in range(layers)]
    )
    config["layer_types"] = [
        "sliding_attention" if size and slide else "full_attention" for slide in slides[:layers]
    ]
    if size or "off" in window:
        config["sliding_window"] = size or window["off"]


def _rope(
    name: str,
    fields: _Fields,
    entry: Mapping[str, Any],
    tensors: Mapping[str, TensorInfo],
    size: int,
) -> dict[str, Any]:
    """Return the parameters of RoPE, once or for each type of layer."""
    rotated = fields.pop("rope.dimension_count", size)
    sections = fields.pop("rope.dimension_sections", ()) if "sections" in entry else ()
    partial = entry.get("partial", False)
    if rotated != size and not partial:
        raise _contradiction(name, f"rope.dimension_count {rotated!r}", f"heads of {size!r} values")
    if "proportional" in entry:
        share = rotated_share(tensors)
        rope = rope_of(name, fields, {}, rotated)
        rope |= {"rope_type": "proportional", "partial_rotary_factor": share}
    else:
        rope = rope_of(name, fields, tensors, rotated)
    if partial:
        rope["partial_rotary_factor"] = rotated / size
    if len(sections):
        rope |= {
            "mrope_section": [section for section in sections if section],
            "mrope_interleaved": True,
        }
    if rope["rope_type"] != "default":
        rope |= entry.get("rope values", {})
    if "local rope" not in entry:
        return rope
    theta = fields.pop("rope.freq_base_swa", entry["local rope"] or rope["rope_theta"])
    sliding = {"rope_type": "default", "rope_theta": theta}
    return {"sliding_attention": sliding, "full_attention": rope}


def _multi_query(fields: _Fields, config: dict[str, Any], _: Mapping[str, Any]) -> None:
    config["multi_query"] = fields.get("attention.head_count_kv") == 1


def _query_scale(fields: _Fields, config: dict[str, Any], entry: Mapping[str, Any]) -> None:
    """Set the scale of queries by the head size; in the largest Gemma, by the width of the model."""
    wide: int = fields["embedding_length"] // fields["attention.head_count"]
    largest = fields["block_count"] == entry["layers of 27b"]
    config["query_pre_attn_scalar"] = wide if largest else fields.get("attention.key_length", wide)


def _layers_of_heads(fields: _Fields, config: dict[str, Any], _: Mapping[str, Any]) -> None:
    """Mark layers without key/value heads as convolutions."""
    heads = fields["attention.head_count_kv"]
    counts = list(heads) if isinstance(heads, array) else [heads] * fields["block_count"]
    config["layer_types"] = ["full_attention" if count else "conv" for count in counts]
    fields["attention.head_count_kv"] = max(counts)


def _delta_attention(fields: _Fields, config: dict[str, Any], _: Mapping[str, Any]) -> None:
    """Add the layers of linear attention, and the size of its value heads."""
    interval = fields.pop("full_attention_interval", 4)
    kinds = ["linear_attention"] * (interval - 1) + ["full_attention"]
    config["layer_types"] = [kinds[at % interval] for at in range(fields["block_count"])]
    inner = fields.pop("ssm.inner_size")
    config["linear_value_head_dim"] = inner // fields["ssm.time_step_rank"]


def _delta_attention_of_heads(
    fields: _Fields, config: dict[str, Any], _: Mapping[str, Any]
) -> None:
    """Mark layers without key/value heads as linear attention, with as many heads as the others; and experts."""
    heads, layers = fields["attention.head_count_kv"], fields["block_count"]
    counts = list(heads) if isinstance(heads, array) else [heads] * layers
    config["layer_types"] = ["full_attention" if count else "linear_attention" for count in counts]
    config["linear_num_heads"] = fields["attention.head_count"]
    dense = fields.pop("leading_dense_block_count", 0)
    config["mlp_layer_types"] = ["dense" if at < dense else "sparse" for at in range(layers)]


def _state_heads(fields: _Fields, config: dict[str, Any], _: Mapping[str, Any]) -> None:
    config["head_dim"] = fields["ssm.inner_size"] // fields["ssm.time_step_rank"]


def _hybrid_layers(fields: _Fields, config: dict[str, Any], _: Mapping[str, Any]) -> None:
    """Mark layers without key/value heads as state space layers, with the sizes of these."""
    heads = fields["attention.head_count_kv"]
    counts = list(heads) if isinstance(heads, array) else [heads] * fields["block_count"]
    config["layer_types"] = ["full_attention" if count else "linear_attention" for count in counts]
    fields["attention.head_count_kv"] = max(counts)
    inner = fields["ssm.inner_size"]
    config["mamba_d_head"] = inner // fields["ssm.time_step_rank"]
    config["mamba_expand"] = inner // fields["embedding_length"]
    rotates = fields.pop("rope.scaling.finetuned", True)
    config["position_embedding_type"] = "rope" if rotates else "nope"
    if not fields.get("expert_count"):
        fields.setdefault("expert_shared_feed_forward_length", fields["feed_forward_length"])


def _periods(fields: _Fields, config: dict[str, Any], _: Mapping[str, Any]) -> None:
    """Add the layers of attention and of experts, both in equal intervals."""
    heads = fields["attention.head_count_kv"]
    counts = list(heads) if isinstance(heads, array) else [heads] * fields["block_count"]
    fields["attention.head_count_kv"] = max(counts)
    attention = [layer for layer, count in enumerate(counts) if count]
    config["mamba_expand"] = fields["ssm.inner_size"] // fields["embedding_length"]
    for kind, layers in {"attn": attention, "expert": config.pop("expert_layers")}.items():
        first, second = [*layers, *[fields["block_count"]] * 2][:2]
        period = max(second - first, first + 1)
        if layers != [*range(first, fields["block_count"], period)]:
            raise ValueError(f"{kind} in the layers {layers} has unequal intervals")
        config[f"{kind}_layer_offset"], config[f"{kind}_layer_period"] = first, period


def _layers_of_one_module(fields: _Fields, config: dict[str, Any], _: Mapping[str, Any]) -> None:
    """Add the only module of each layer: attention with its heads, an MLP or experts with their width, or a state."""
    forward = "moe" if "expert_count" in fields else "mlp"
    names = ("attention.head_count_kv", "feed_forward_length")
    heads, widths = (
        [*one] if isinstance(one := fields[name], array) else [one] * fields["block_count"]
        for name in names
    )
    config["layers_block_type"] = [
        "full_attention" if count else forward if width else "linear_attention"
        for count, width in zip(heads, widths, strict=True)
    ]
    fields.update(zip(names, (max(heads), max(widths)), strict=True))
    config["mamba_head_dim"] = fields["ssm.inner_size"] // fields["ssm.time_step_rank"]


def _clipped_attention(fields: _Fields, config: dict[str, Any], _: Mapping[str, Any]) -> None:
    config["attn_config"] = {"clip_qkv": fields.pop("attention.clamp_kqv", None)}


def _experts_of_each_layer(fields: _Fields, config: dict[str, Any], _: Mapping[str, Any]) -> None:
    """Add the experts, with weights whose sum is 1, and the number of key/value heads."""
    config["attn_config"] |= {
        "kv_n_heads": fields["attention.head_count_kv"],
        "rope_theta": fields.get("rope.freq_base", 10000.0),
    }
    config["ffn_config"] = {
        "ffn_hidden_size": fields.pop("feed_forward_length"),
        "moe_num_experts": fields.pop("expert_count"),
        "moe_top_k": fields.pop("expert_used_count"),
        "moe_normalize_expert_weights": 1.0,
    }


def _sparse_layers(fields: _Fields, config: dict[str, Any], _: Mapping[str, Any]) -> None:
    """Add the share of values that each layer's gate zeroes, and the width of each layer's MLP."""
    thresholds = fields.pop("activation_sparsity_scale")
    config["activation_sparsity_pattern"] = [
        round(NormalDist().cdf(threshold), 6) if math.isfinite(threshold) else 0.0
        for threshold in thresholds
    ]
    widths = fields["feed_forward_length"]
    fields["feed_forward_length"] = list(widths) if isinstance(widths, array) else widths


def _heads_of_full_layers(fields: _Fields, config: dict[str, Any], _: Mapping[str, Any]) -> None:
    """Add the heads of layers without a window; their values may be their keys."""
    config["global_head_dim"] = fields["attention.key_length"]
    for part in ("key", "value"):
        fields[f"attention.{part}_length"] = fields.pop(f"attention.{part}_length_swa")
    rotated = fields.pop("rope.dimension_count", 0), fields.pop("rope.dimension_count_swa", 0)
    sizes = config["global_head_dim"], fields["attention.key_length"]
    if any(one not in (0, size) for one, size in zip(rotated, sizes, strict=True)):
        raise ValueError(f"it rotates {rotated} values of heads of {sizes}")
    layers, slides = fields["block_count"], fields["attention.sliding_window_pattern"]
    heads = fields["attention.head_count_kv"]
    counts = list(heads) if isinstance(heads, array) else [heads] * layers
    pairs = {bool(slide): count for slide, count in zip(slides, counts, strict=True)}
    fields["attention.head_count_kv"] = pairs[True]
    config["num_global_key_value_heads"] = pairs[False]
    own = range(layers - fields.get("attention.shared_kv_layers", 0))
    config["attention_k_eq_v"] = not {*own} <= {*config.pop("layers_of_values")}


def _wider_layers(fields: _Fields, config: dict[str, Any], _: Mapping[str, Any]) -> None:
    """Set the width of the first layers' MLPs, and whether those of layers with shared keys have twice that."""
    widths = fields["feed_forward_length"]
    if isinstance(widths, array):
        fields["feed_forward_length"] = widths[0]
        config["use_double_wide_mlp"] = widths[-1] == 2 * widths[0]


def _norms_of_queries(fields: _Fields, config: dict[str, Any], _: Mapping[str, Any]) -> None:
    """Add norms of queries and keys, which the larger Llama 4 lacks: it is known by its experts."""
    config["use_qk_norm"] = fields.get("expert_count") != 128


def _query_temperature(fields: _Fields, config: dict[str, Any], _: Mapping[str, Any]) -> None:
    """Add the scale of queries by the logarithm of their position; 0 is none."""
    beta = fields.pop("attention.temperature_scale", 0.0)
    original = fields.get("rope.scaling.original_context_length", fields["context_length"])
    config["rope_parameters"] = {
        "llama_4_scaling_beta": beta,
        "original_max_position_embeddings": original,
    }


def _first_layer_global(fields: _Fields, config: dict[str, Any], _: Mapping[str, Any]) -> None:
    """Add the layers with a window: all but the first of each interval."""
    interval = fields.pop("attention.sliding_window_pattern", 3)
    if isinstance(interval, array):
        slides = [bool(one) for one in interval]
    else:
        slides = [bool(at % interval) for at in range(fields["block_count"])]
    config["layer_types"] = ["sliding_attention" if slide else "full_attention" for slide in slides]


def _latent_attention(fields: _Fields, config: dict[str, Any], _: Mapping[str, Any]) -> None:
    """Set the head sizes of latent attention, which older files have under other names."""
    rotated = fields["rope.dimension_count"]
    usual = fields["embedding_length"] // fields["attention.head_count"]
    sizes = [
        fields.pop(f"attention.{one}_mla", fields.get(f"attention.{one}", usual))
        for one in ("key_length", "value_length")
    ]
    fields.update({"attention.key_length": rotated, "attention.value_length": rotated})
    fields["attention.head_count_kv"] = fields["attention.head_count"]
    config["qk_rope_head_dim"] = rotated
    config["qk_nope_head_dim"], config["v_head_dim"] = sizes[0] - rotated, sizes[1]


def _shared_indexers(fields: _Fields, config: dict[str, Any], _: Mapping[str, Any]) -> None:
    """Mark layers that attend to the keys of the layer before them; older files name none."""
    layers = fields["block_count"]
    since = 2 if fields["context_length"] >= _SHARING_CONTEXT else layers
    usual = [at <= since or (at - since) % 4 == 0 for at in range(layers)]
    types = fields.pop("attention.indexer.types", usual)
    config["indexer_types"] = ["full" if kind else "shared" for kind in types[:layers]]


def _expansion(fields: _Fields, config: dict[str, Any], _: Mapping[str, Any]) -> None:
    config["expand"] = fields["ssm.inner_size"] // fields["embedding_length"]


def _window_of_all_layers(fields: _Fields, config: dict[str, Any], _: Mapping[str, Any]) -> None:
    config["sliding_window"] = fields.pop("attention.sliding_window", 0) or None


def _original_context(fields: _Fields, config: dict[str, Any], _: Mapping[str, Any]) -> None:
    config["original_max_position_embeddings"] = fields.get(
        "rope.scaling.original_context_length", fields["context_length"]
    )


def _expert_sizes(fields: _Fields, _: dict[str, Any], entry: Mapping[str, Any]) -> None:
    """Add sizes of experts, which llama.cpp derives from others if files omit them."""
    dense = fields["feed_forward_length"]
    fields.setdefault("expert_feed_forward_length", dense // fields["expert_used_count"])
    if "expert_shared_feed_forward_length" in entry["also"]:
        fields.setdefault("expert_shared_feed_forward_length", dense)


#: Rules for config values that depend on several metadata.
_RULES: Mapping[str, Callable[[_Fields, dict[str, Any], Mapping[str, Any]], None]] = {
    "multi query": _multi_query,
    "query scale": _query_scale,
    "layers of heads": _layers_of_heads,
    "expansion": _expansion,
    "query temperature": _query_temperature,
    "clipped attention": _clipped_attention,
    "experts of each layer": _experts_of_each_layer,
    "sparse layers": _sparse_layers,
    "heads of full layers": _heads_of_full_layers,
    "wider layers": _wider_layers,
    "norms of queries": _norms_of_queries,
    "first layer global": _first_layer_global,
    "latent attention": _latent_attention,
    "shared indexers": _shared_indexers,
    "delta attention": _delta_attention,
    "delta attention of heads": _delta_attention_of_heads,
    "state heads": _state_heads,
    "hybrid layers": _hybrid_layers,
    "periods": _periods,
    "layers of one module": _layers_of_one_module,
    "window of all layers": _window_of_all_layers,
    "original context": _original_context,
    "expert sizes": _expert_sizes,
}
