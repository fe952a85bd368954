# SPDX-License-Identifier: Apache-2.0
"""Options that make ONNX Runtime compute on every processor what a manifest declares.

x86-64 without VNNI and AMX multiplies uint8 by int8 (see `per_channel`) in an instruction that sums pairs in 16 bits
and saturates. ONNX Runtime uses it all the same, unless a session requests exact products, which are as fast as those
of int8 in blocks. With VNNI products are right anyway, but a session that requests exact ones gets the slower ones
there, too.

On ARM64 its kernels of KleidiAI round the left side of a product by int4 with one scale a row, not in blocks.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

#: Entries of a session's configuration: exact products, and left sides that are rounded in blocks.
EXACT: Mapping[str, str] = MappingProxyType({"session.x64quantprecision": "1"})
IN_BLOCKS: Mapping[str, str] = MappingProxyType({"mlas.disable_kleidiai": "1"})
_SUM_IN_32_BITS = ("avx512_vnni", "avx_vnni", "amx_int8")
_DESCRIPTION = Path("/proc/cpuinfo")


def options() -> Mapping[str, str]:
    """Return the entries of a session's configuration on this processor."""
    return IN_BLOCKS if sums_in_32_bits() else {**IN_BLOCKS, **EXACT}


@cache
def sums_in_32_bits() -> bool:
    """Whether this processor is known to have VNNI or AMX; only x86-64 needs them."""
    try:
        words = _DESCRIPTION.read_text(encoding="utf-8", errors="replace").split()
    except OSError:  # not Linux
        return False
    return not set(words).isdisjoint(_SUM_IN_32_BITS)
