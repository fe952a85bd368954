# SPDX-License-Identifier: Apache-2.0
"""Priority of threads."""

import os
import sys
import threading

_NICENESS = 10  # a tenth of a CPU's time where other threads want it


def lower_priority() -> None:
    """Lower the priority of this thread, if the system has priorities of threads."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        niceness = os.getpriority(os.PRIO_PROCESS, thread) + _NICENESS
        os.setpriority(os.PRIO_PROCESS, thread, niceness)
