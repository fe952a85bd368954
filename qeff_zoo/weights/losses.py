# SPDX-License-Identifier: Apache-2.0
"""What mixtures of formats cost real models, for comparison with a plan, whose own model nothing has measured.

Mean KL in nats, of transformers in float32 with the rounded weights, to the float model, on Python's documentation; of
`benchmarks/rounding.py` (results/rounding_compare.json and rounding_gemma.json).
"""

from collections.abc import Mapping
from types import MappingProxyType

#: By model, then by bits a weight.
MEASURED: Mapping[str, Mapping[float, float]] = MappingProxyType(
    {
        "SmolLM2 135M": {
            5.16: 0.151,
            5.35: 0.142,
            5.51: 0.134,
            5.85: 0.107,
            6.17: 0.089,
            7.01: 0.047,
            8.51: 0.003,
        },
        "Gemma 3 270M": {5.16: 0.279, 5.31: 0.242, 5.51: 0.197},
    }
)


def nearest(bits: float) -> dict[str, tuple[float, float]]:
    """Return for each model the nearest measured number of bits a weight, and the mean KL at that.

    Args:
        bits: Bits a weight.

    Example:
        >>> nearest(7)["SmolLM2 135M"]
        (7.01, 0.047)
    """
    return {
        model: min(found.items(), key=lambda one: abs(one[0] - bits))
        for model, found in MEASURED.items()
    }
