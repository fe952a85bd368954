# SPDX-License-Identifier: Apache-2.0
"""Peak of this process's memory, by counters of Linux."""

import os
import re
from pathlib import Path

import pytest

_COUNTERS = Path("/proc/self/clear_refs")
#: Mark of tests that read the peak: other systems, and some containers, do not reset it.
needs_counters = pytest.mark.skipif(
    not os.access(_COUNTERS, os.W_OK), reason="the counters of memory cannot be reset"
)


def peak_memory() -> int:
    """Return the largest size of this process in memory since `reset_peak`, in bytes."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) << 10  # type: ignore[index]


def reset_peak() -> int:
    """Forget the largest size; return the present one, in bytes."""
    _COUNTERS.write_text("5")
    return peak_memory()
