# SPDX-License-Identifier: Apache-2.0
"""Whether a processor's integer products are exact, and the option that makes ONNX Runtime use exact ones.

x86-64 without VNNI and AMX multiplies uint8 by int8 (see `per_channel`) in an instruction that sums pairs in 16 bits
and saturates. ONNX Runtime takes it all the same, unless a session asks for exact products, which are as fast as those
of int8 in blocks. It knows VNNI, but not that products are right with it: asked there too, it takes the slower ones.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

#: Entries of a session's configuration.
EXACT: Mapping[str, str] = MappingProxyType({"session.x64quantprecision": "1"})
#: What ONNX Runtime may not open with them, for people.
REFUSED = (
    "On a processor without VNNI and AMX it opens no graph that multiplies by one matrix of --weights w8a8 in several "
    "places: build with --weights int8 for it."
)
_SUM_IN_32_BITS = ("avx512_vnni", "avx_vnni", "amx_int8")
_DESCRIPTION = Path("/proc/cpuinfo")


@cache
def sums_in_32_bits() -> bool:
    """Whether this processor is known to have VNNI or AMX; only x86-64 needs them."""
    try:
        words = _DESCRIPTION.read_text(encoding="utf-8", errors="replace").split()
    except OSError:  # not Linux
        return False
    return not set(words).isdisjoint(_SUM_IN_32_BITS)
