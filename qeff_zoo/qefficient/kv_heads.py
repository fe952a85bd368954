# SPDX-License-Identifier: Apache-2.0
"""QEfficient's `replicate_kv_heads` -> the number of KV heads of a build."""

from collections.abc import Mapping
from typing import Any

#: Mark of a config whose attention has latents in place of KV heads.
_LATENT = "kv_lora_rank"


def replicated(text_config: Mapping[str, Any], devices: int) -> int | None:
    """Return the smallest number of KV heads that several devices share evenly; None if that of the model stays.

    Args:
        text_config: Raw configuration of the language model.
        devices: Number of devices that the model is sliced over.
    """
    heads = int(text_config.get("num_attention_heads") or text_config.get("n_head") or 1)
    own = int(text_config.get("num_key_value_heads") or heads)
    if text_config.get(_LATENT) or devices <= own or devices % own:
        return None
    counts = range(2 * own, heads + 1, own)
    return next((count for count in counts if devices % count == 0 == heads % count), None)
