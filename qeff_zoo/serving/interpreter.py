# SPDX-License-Identifier: Apache-2.0
"""Settings of the Python interpreter for a server, whose threads share one lock (the GIL)."""

import gc
import sys

_SWITCH = 0.002  # seconds that a thread may hold the GIL while another waits for it
_YOUNG = 10_000  # new objects until garbage is collected; Python's 700 are those of one request


def tune() -> None:
    """Shorten the pauses of threads: hold the GIL for less time, and collect garbage less often."""
    sys.setswitchinterval(_SWITCH)
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])


def settle() -> None:
    """Exempt the existing objects from garbage collection, after a model was loaded or closed.

    A collection of the objects of all imported modules would stop every thread for about 0.1 seconds. An object that
    nothing refers to is freed all the same; only those in cycles are not, until the next call.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
