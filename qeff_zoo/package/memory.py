# SPDX-License-Identifier: Apache-2.0
"""Memory that a session of a package needs at least: its programs and weights, and its states in full."""

import math
from collections.abc import Mapping
from typing import Any

_BYTES = {
    **dict.fromkeys(("float64", "int64", "uint64"), 8),
    **dict.fromkeys(("float32", "int32", "uint32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
}
_MOST = 1 << 63
_LOADED = ("graph", "weights", "program")


def needed_memory(manifest: Mapping[str, Any]) -> int:
    """Return the bytes of a package's programs, weights and states.

    Args:
        manifest: Content of a manifest, not checked against its schema.

    Raises:
        ValueError: A value has another type than in a manifest.
    """
    try:
        files = sum(file["size"] for file in manifest["files"] if file["role"] in _LOADED)
        needed = int(files + sum(map(_states, manifest["programs"])))
    except (KeyError, TypeError, AttributeError, ArithmeticError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    if not 0 <= needed < _MOST:
        raise ValueError("its sizes are no sizes")
    return needed


def _states(program: Mapping[str, Any]) -> int:
    largest: dict[str, int] = {}
    for specialization in program["specializations"]:
        for symbol, value in specialization["symbols"].items():
            largest[symbol] = max(largest.get(symbol, 0), int(value))
    slots = largest.get("full_batch_size", largest.get("batch_size", 1))
    sizes = {**largest, "batch_size": slots}
    return sum(
        math.prod(sizes.get(axis, 1) if isinstance(axis, str) else axis for axis in state["axes"])
        * _BYTES.get(state["dtype"], 1)
        for state in program["states"]
    )
