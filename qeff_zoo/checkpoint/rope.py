# SPDX-License-Identifier: Apache-2.0
"""RoPE scalings in a checkpoint's configuration: one, or one per layer type."""

from collections.abc import Mapping
from typing import Any


def rope_scalings(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the RoPE scalings of a config: one, or one per layer type."""
    scalings = config.get("rope_scaling") or config.get("rope_parameters") or {}
    by_layer = [scaling for scaling in scalings.values() if isinstance(scaling, Mapping)]
    return by_layer or [scalings]


def is_dynamic(config: Mapping[str, Any]) -> bool:
    """Whether RoPE's base depends on the length beyond the model's positions, which no cache can follow."""
    return any(
        (scaling.get("rope_type") or scaling.get("type")) == "dynamic"
        for scaling in rope_scalings(config)
    )
