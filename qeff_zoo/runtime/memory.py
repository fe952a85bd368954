# SPDX-License-Identifier: Apache-2.0
"""Memory of states, and the available memory: a cache that is too large is rejected before the process is killed."""

import ctypes
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo.errors import GenerationError, SettingsError
from qeff_zoo.graph.states import State
from qeff_zoo.runtime.program import Memory, Specializations
from qeff_zoo.terminal.printing import human_size

#: Environment variable with a limit in bytes, below the available memory.
MEMORY_ENV = "QEFF_ZOO_MEMORY"
_MEMINFO = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")
#: Options of glibc's `mallopt`: maximum number of arenas (each thread has its own), size from which on an allocation is
#: returned to the system once it is freed, and free bytes at the end of an arena from which on they are returned.
ARENA_MAX, MMAP_THRESHOLD, TRIM_THRESHOLD = -8, -3, -1


def available_memory() -> int | None:
    """Return the bytes available without swapping, within a container's or the user's limit (`MEMORY_ENV`).

    Returns:
        Available bytes; None if the system does not report them (systems other than Linux).

    Raises:
        SettingsError: If the user's limit is not a number.
    """
    bounds: list[int] = []
    if chosen := os.environ.get(MEMORY_ENV, "").strip():
        if not chosen.isdecimal():
            raise SettingsError(
                f"{MEMORY_ENV} is {chosen!r}; expected bytes, 8000000000 for 8 GB. Correct or unset it."
            )
        bounds.append(int(chosen))
    with suppress(OSError):
        lines = dict(line.split(":") for line in _MEMINFO.read_text(encoding="ascii").splitlines())
        bounds.append(int(lines["MemAvailable"].split()[0]) << 10)
    with suppress(OSError, ValueError):  # "max" for no limit
        limit = int((_GROUP / "memory.max").read_text(encoding="ascii"))
        used = int((_GROUP / "memory.current").read_text(encoding="ascii"))
        bounds.append(limit - used + _reclaimable())
    return min(bounds, default=None)


def _reclaimable() -> int:
    """Return the bytes of the group's page cache."""
    lines = (_GROUP / "memory.stat").read_text(encoding="ascii").splitlines()
    counted = dict(line.split() for line in lines)
    return int(counted.get("inactive_file", 0)) + int(counted.get("active_file", 0))


def set_malloc(options: Mapping[int, int]) -> None:
    """Set options of glibc's allocator, if this is the C library of the process.

    Args:
        options: Values by option.
    """
    with suppress(OSError, AttributeError):  # another C library
        library = ctypes.CDLL(None)
        for option in options.items():
            library.mallopt(*option)


def return_freed() -> None:
    """Return freed memory of glibc's allocator to the system, if this is the C library of the process."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def new_states(
    states: Sequence[State],
    dtypes: Mapping[str, np.dtype[Any]],
    specializations: Specializations,
    *,
    is_current: bool = True,
) -> Memory:
    """Return new states in zeroed pages, so that memory is allocated when positions are first written.

    Args:
        states: States of a program.
        dtypes: Data types by name.
        specializations: Specializations of the program in the manifest.
        is_current: See `Memory`.

    Raises:
        GenerationError: If the states do not fit into memory.
    """
    if not states:
        return Memory({})
    every = [entry["symbols"] for entry in specializations]
    rows = max(int(one.get("full_batch_size", one["batch_size"])) for one in every)
    symbols = {symbol for one in every for symbol in one}
    largest = {symbol: max(int(one.get(symbol, 0)) for one in every) for symbol in symbols}
    sizes: Mapping[int | str, int] = {**largest, "batch_size": rows, "full_batch_size": rows}
    ctx_len = largest.get("ctx_len", 0)
    shapes = {state.name: [int(sizes.get(size, size)) for size in state.axes] for state in states}
    needed = sum(math.prod(shape) * dtypes[name].itemsize for name, shape in shapes.items())
    available = available_memory()
    if available is not None and needed > available:
        raise GenerationError(
            f"The KV cache of {rows} x {ctx_len:,} tokens needs "
            f"{human_size(needed)}; expected at most the {human_size(available)} of memory that "
            "are free. Free some, or build with a smaller --ctx-len, --batch-size or "
            "--full-batch-size."
        )
    arrays = {name: np.zeros(shape, dtypes[name]) for name, shape in shapes.items()}
    return Memory(arrays, is_current=is_current)
