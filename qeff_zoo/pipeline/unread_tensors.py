# SPDX-License-Identifier: Apache-2.0
"""Checkpoint tensors that no program reads, in groups by their names."""

import re
from collections import Counter
from collections.abc import Iterable

#: Maximum number of groups that are told apart.
_MOST = 64
_REST = "others"


def unmatched(names: Iterable[str], read: Iterable[str]) -> dict[str, int]:
    """Return the number of tensors by the shortest beginning of their names that no tensor which is read has.

    Numbers within a beginning, such as those of layers, are written `*`.

    Args:
        names: Names of tensors that no program reads.
        read: Names of all other tensors.
    """
    begun = {one for name in read for one in _beginnings(name)}
    counts = Counter(
        re.sub(
            r"(?<=\.)\d+(?=\.|$)", "*", next((b for b in _beginnings(name) if b not in begun), name)
        )
        for name in sorted(names)
    )
    shown = dict(counts.most_common(_MOST))
    rest = counts.total() - sum(shown.values())
    return {**dict(sorted(shown.items())), **({_REST: rest} if rest else {})}


def _beginnings(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
