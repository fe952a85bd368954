# SPDX-License-Identifier: Apache-2.0
"""Work in steps: a generator that pauses between them for other work, and returns its result."""

from collections.abc import Generator
from typing import TypeAlias, TypeVar

_T = TypeVar("_T")
#: A generator that pauses after each step, and returns the result.
Steps: TypeAlias = Generator[None, None, _T]


def finished(steps: Steps[_T]) -> _T:
    """Run all steps at once, and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _T = end.value
            return result
