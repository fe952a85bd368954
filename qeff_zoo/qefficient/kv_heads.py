# SPDX-License-Identifier: Apache-2.0
"""QEfficient's `replicate_kv_heads` -> the number of KV heads of a build."""

from collections.abc import Mapping
from typing import Any

from qeff_zoo.checkpoint.config import HEADS, kv_heads_of, size_of


def replicated(text_config: Mapping[str, Any], devices: int) -> int | None:
    """Return the smallest number of KV heads that several devices share evenly; None if that of the model stays.

    Args:
        text_config: Raw configuration of the language model.
        devices: Number of devices that the model is sliced over.
    """
    heads, own = size_of(text_config, HEADS), kv_heads_of(text_config)
    if not heads or not own or devices <= own or devices % own:
        return None
    counts = range(2 * own, heads + 1, own)
    return next((count for count in counts if devices % count == 0 == heads % count), None)
