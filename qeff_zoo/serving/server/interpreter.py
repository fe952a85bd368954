# SPDX-License-Identifier: Apache-2.0
"""Settings of the Python interpreter for a server, whose threads share one lock (the GIL), and of its allocator."""

import gc
import sys

from qeff_zoo.runtime.memory import MMAP_THRESHOLD, TRIM_THRESHOLD, set_malloc

_SWITCH = 0.002  # seconds that a thread may hold the GIL while another waits for it
_YOUNG = 10_000  # new objects until garbage is collected; Python's 700 are those of one request
#: Bytes of freed memory that a thread may keep, and size from which on an allocation is returned once it is freed.
#: glibc's own limits grow with the requests, to 64 MiB for each thread, and `malloc_trim` does not return those.
_KEPT, _LARGE = 8 << 20, 4 << 20


def tune() -> None:
    """Shorten the pauses of threads and return freed memory: for the process of a server, before its threads start."""
    sys.setswitchinterval(_SWITCH)
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
    set_malloc({MMAP_THRESHOLD: _LARGE, TRIM_THRESHOLD: _KEPT})


def settle() -> None:
    """Exempt the existing objects from garbage collection, after a model was loaded or closed.

    A collection of the objects of all imported modules would stop every thread for about 0.1 seconds. An object that
    nothing refers to is freed all the same; only those in cycles are not, until the next call.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
