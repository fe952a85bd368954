# SPDX-License-Identifier: Apache-2.0
"""Fields of a raw config.json that have several names: the part of the language model, tokens, positions."""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

#: Parts of a config for a language model, and for its image and audio encoders.
_TEXT, _TOWERS = "text_config", frozenset({"vision_config", "audio_config"})


def model_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config of the generating model; of several, that of the one with a language model and an encoder.

    Args:
        config: Raw config.json.
    """
    name = _part_of(config)
    return config[name] if name else config


def text_config_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config of the language model; the whole config without another model.

    Args:
        config: Raw config.json.
    """
    whole = model_config(config)
    inner = whole.get(_TEXT) or whole.get("decoder")
    return inner if isinstance(inner, Mapping) else config


#: Fields with the number of attention heads, and with that of their keys and values.
HEADS = ("num_attention_heads", "decoder_attention_heads", "n_head", "num_heads", "n_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "kv_n_heads")


def size_of(config: Mapping[str, Any], names: Sequence[str]) -> int | None:
    """Return a positive number by the first of several fields; None without any.

    Args:
        config: Raw config.json; its parts for the language model and for attention are read, too.
        names: Names of the fields.
    """
    text = text_config_of(config)
    attention = (part.get("attn_config") or {} for part in (text, config))
    for part in (config, text, *attention):
        for name in names:
            value = part.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


def kv_heads_of(config: Mapping[str, Any]) -> int | None:
    """Return the number of key/value heads of a language model; None with latents, or without attention heads.

    Args:
        config: Raw config.json, or a text model's part of it.
    """
    text = text_config_of(config)
    if text.get("kv_lora_rank"):
        return None
    # Falcon's first architecture ignores `num_kv_heads`.
    if text.get("multi_query") and not text.get("new_decoder_architecture"):
        return 1
    return size_of(config, KV_HEADS) or size_of(config, HEADS)


def token_of(config: Mapping[str, Any], name: str) -> int | None:
    """Return the id of a token by its field, in some older configs an index; None if it is absent.

    Args:
        config: Config of the generating model.
        name: Name of the field; `part.field` for a field of a part.
    """
    *parts, field = name.split(".")
    part = reduce(lambda whole, one: whole.get(one) or {}, parts, config)
    token = part.get(field, part.get(field.replace("_id", "_index")))
    return None if token is None else int(token)


def _part_of(config: Mapping[str, Any]) -> str:
    parts = {name: value.keys() for name, value in config.items() if isinstance(value, Mapping)}
    read = (name for name, part in parts.items() if _TEXT in part and not _TOWERS.isdisjoint(part))
    return "" if _TEXT in config else next(read, "")


def parsed_model_config(config: Any) -> Any:
    """Return the same part of a config parsed by transformers."""
    name = _part_of(config.to_dict())
    return getattr(config, name) if name else config


#: Fields of configs with the number of positions in a table or a mask.
POSITIONS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_target_positions",
    "model_max_length",
)
#: Minimum of positions: more than the tokens and cache lengths of traced examples.
LEAST_POSITIONS = 16


def positions_of(config: Mapping[str, Any]) -> int | None:
    """Return the number of positions in a config; None if it sets none.

    Args:
        config: Raw config.json, or a text model's part of it.
    """
    return next(
        (int(config[name]) for name in POSITIONS if isinstance(config.get(name), int)), None
    )


#: Fields of a text model's config, and their values in a model whose attention is bidirectional.
_BIDIRECTIONAL: Mapping[str, tuple[Any, ...]] = {
    "use_bidirectional_attention": (True, "all"),
    "is_causal": (False,),
}


def bidirectional_by(config: Mapping[str, Any]) -> str | None:
    """Return the field that makes a decoder's attention bidirectional, as in embedding models; None if it is causal.

    Args:
        config: Raw config.json.
    """
    return next(
        (name for name, values in _BIDIRECTIONAL.items() if config.get(name) in values), None
    )
