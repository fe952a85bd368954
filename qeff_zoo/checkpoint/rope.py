# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint's configuration says of its RoPE: scalings, once or for each type of layer."""

from collections.abc import Mapping
from typing import Any


def rope_scalings(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return what a config says of its RoPE: once, or for each type of layer."""
    found = config.get("rope_scaling") or config.get("rope_parameters") or {}
    by_layer = [one for one in found.values() if isinstance(one, Mapping)]
    return by_layer or [found]


def is_dynamic(config: Mapping[str, Any]) -> bool:
    """Tell whether beyond the model's positions RoPE has another base for every length, which no cache can follow."""
    return any(
        (one.get("rope_type") or one.get("type")) == "dynamic" for one in rope_scalings(config)
    )
