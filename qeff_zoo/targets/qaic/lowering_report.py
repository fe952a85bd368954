# SPDX-License-Identifier: Apache-2.0
"""Report of how a Cloud AI 100 graph computes its parts: codes for programs, a clause for people."""

from collections.abc import Mapping
from types import MappingProxyType

from qeff_zoo.targets.base import STORED_WAYS

WAYS: Mapping[str, str] = MappingProxyType(
    {
        "growing": "by scatter and gather, of every position",
        "index": "by scatter and gather, of an indexer's keys",
        "window": "by scatter and gather, of the newest positions",
        "recurrent": "as a whole",
        "cross": "as the host wrote them, of what an encoder has read",
        "scan": "by a Scan over tokens, which a compiler may refuse",
        "table": "looked up by position",
        "computed": "computed in float16, since they depend on more than the position",
        "blocked": "in blocks, as --blocking-mode says",
        "all_tokens": "each expert on all tokens",
        **STORED_WAYS,
        "decoded": "in floats as all others, since integers are taken of 4 bits alone, without offsets or act-order",
    }
)
