# SPDX-License-Identifier: Apache-2.0
"""What the processes of one test run share: whichever comes first makes it, and the others wait."""

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class WhenNeeded(dict[str, T]):
    """Values by name, each made when a test first needs it.

    Args:
        make: Maker of the value of a name.
    """

    def __init__(self, make: Callable[[str], T]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, name: str) -> T:
        self[name] = self._make(name)
        return self[name]


def made_once(path: Path, make: Callable[[Path], object]) -> Path:
    """Return a file or folder, which is there whole or not at all.

    Args:
        path: Where it is.
        make: Makes it, at a place beside it.
    """
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            unfinished = path.with_name(f"unfinished-{path.name}")
            make(unfinished)
            unfinished.rename(path)
    return path
