# SPDX-License-Identifier: Apache-2.0
"""Priority of threads and processes."""

import os
import sys
import threading
from contextlib import suppress

_NICENESS = 10  # a tenth of a CPU's time where other threads want it


def lower_priority() -> None:
    """Lower the priority of this thread, if the system has priorities of threads."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        niceness = os.getpriority(os.PRIO_PROCESS, thread) + _NICENESS
        os.setpriority(os.PRIO_PROCESS, thread, niceness)


def run_when_idle() -> None:
    """Let this process use only CPU time that no other process wants, as far as the system can."""
    if sys.platform != "win32":
        os.nice(19)
    if sys.platform == "linux":
        with suppress(OSError):  # a container may forbid it
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
