# SPDX-License-Identifier: Apache-2.0
"""A process that works on inputs of clients, within limits of time and memory; see `qeff_zoo.serving.queues.workers`.

    python -m qeff_zoo.runtime.worker NBYTES [background]

Pickled pairs come in on stdin: seconds of CPU time, and a function without arguments. Pickled triples go out on the
former stdout: the CPU seconds of the work, whether the function returned, and its result or exception. The process
imports no program and no server, and starts within half a second.
"""

import math
import os
import pickle
import signal
import sys
import time
import traceback
from contextlib import suppress
from typing import BinaryIO

from qeff_zoo.errors import ZooError

_NICENESS = 5  # a third of a CPU's time where the model wants it


def _serve(requests: BinaryIO, replies: BinaryIO) -> None:
    while True:
        try:
            seconds, work = pickle.load(requests)
        except EOFError:  # the server has ended
            return
        _limit_time(seconds)
        begun = time.process_time()
        try:
            result = work()
            reply = _packed(begun, returned=True, result=result)
            del result
        except (ZooError, MemoryError) as error:
            reply = _packed(begun, returned=False, result=error)
        except Exception:
            reply = _packed(begun, returned=False, result=RuntimeError(traceback.format_exc()))
        del work
        replies.write(reply)
        replies.flush()
        del reply


def _packed(begun: float, *, returned: bool, result: object) -> bytes:
    """Return a reply.

    Args:
        begun: CPU time of this process before the work.
        returned: Whether the work returned.
        result: Result or exception of the work.
    """
    reply = time.process_time() - begun, returned, result
    return pickle.dumps(reply, pickle.HIGHEST_PROTOCOL)


def _limit_time(seconds: float) -> None:
    """End this process with SIGXCPU after more seconds of CPU time, on systems that have such a limit."""
    if sys.platform != "win32":
        import resource

        soft = math.ceil(time.process_time() + seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))


def _limit_memory(nbytes: int) -> None:
    """Fail allocations beyond a number of bytes, on Linux."""
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (nbytes, nbytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _run_when_idle() -> None:
    """Use only CPU time that other processes leave, as far as the system can."""
    if sys.platform != "win32":
        os.nice(19)
    if sys.platform == "linux":
        with suppress(OSError):  # a container may forbid it
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def main(nbytes: str, *background: str) -> None:
    """Serve requests until stdin ends.

    Args:
        nbytes: Memory of the process.
        background: "background" for a process that uses only CPU time that other processes leave.
    """
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # of a terminal; the server ends its workers itself
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # for text that a library prints
    if background:
        _run_when_idle()
    elif sys.platform != "win32":
        os.nice(_NICENESS)
    _limit_memory(int(nbytes))
    _serve(sys.stdin.buffer, replies)


if __name__ == "__main__":
    main(*sys.argv[1:])
