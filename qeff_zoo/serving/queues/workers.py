# SPDX-License-Identifier: Apache-2.0
"""Workers: processes for inputs whose cost is unknown before the work is done, such as grammars and long texts.

A worker ends if its client leaves, or beyond its limits; the next request gets a new one. Each client has some CPU time
with priority; beyond it, workers in the background do its work, with CPU time that others leave, until some time has
passed. Processes start when they are first needed, by their own command: a fork of this process would copy the locks of
its other threads, and `multiprocessing` would run the operator's script again.
"""

import atexit
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar, cast

from qeff_zoo.errors import GenerationError, ServingError
from qeff_zoo.serving.errors import ApiError
from qeff_zoo.serving.queues.accounts import Budgets, Turns, current
from qeff_zoo.serving.queues.threads import in_thread

_T = TypeVar("_T")
_COMMAND = (sys.executable, "-m", "qeff_zoo.runtime.worker")
#: CPU seconds with priority of a client that has used none, about ten large images; and of those, the seconds that come
#: back each second.
_BUDGET, _RATE = 3.0, 0.1


@dataclass(frozen=True, kw_only=True)
class WorkLimits:
    """Limits of one request in a worker.

    Args:
        cpu_seconds: CPU time.
        wall_seconds: Time on a busy machine.
        nbytes: Memory of the process. An idle one has 50 MB, and the vocabulary of its model after a first grammar.
    """

    cpu_seconds: int = 30
    wall_seconds: float = 120.0
    nbytes: int = 1 << 30


class Workers:
    """Pool of workers.

    Args:
        count: Number of processes; None for a fourth of the CPUs, and at least two.
        limits: Limits of one request.
    """

    def __init__(self, count: int | None = None, limits: WorkLimits = WorkLimits()) -> None:
        count = count or max(2, (os.cpu_count() or 1) // 4)
        self._prompt = _Lane(count)
        self._background = _Lane(max(1, count // 2), is_background=True)
        self._turns = Turns(max(1, count - 1))  # one is left for other clients
        self._budgets = Budgets(_BUDGET, _RATE)
        self._limits = limits

    async def run(self, work: Callable[[], _T], cpu_seconds: int | None = None) -> _T:
        """Call a function in a worker. Cancellation ends the worker.

        Args:
            work: A function of a module that workers can import, with its arguments; and its result, can be pickled.
            cpu_seconds: CPU time of the work, if it is less than that of all work.

        Raises:
            GenerationError: The work exceeds its limits.
            ApiError: The worker ended for another reason.
        """
        limits, client = self._limits, current()
        if cpu_seconds is not None:
            limits = replace(limits, cpu_seconds=min(cpu_seconds, limits.cpu_seconds))
        async with self._turns.one():
            lane = self._prompt if self._budgets.is_left(client) else self._background
            call = _Call(limits, lane, work)
            try:
                return cast("_T", await in_thread(lane.threads, call, call.stop))
            finally:
                if not lane.is_background:
                    self._budgets.spend(client, call.seconds)

    def check(self) -> None:
        """Start a worker, and wait for its first reply.

        Raises:
            ServingError: It does not start.
        """
        command = " ".join((*_COMMAND, str(self._limits.nbytes)))
        try:
            _Call(self._limits, self._prompt, os.getpid)()
        except (OSError, ApiError, GenerationError) as error:
            raise ServingError(
                f"Cannot start a process for the inputs of clients, `{command}`: {error} "
                "Expected a process that replies. Run this command to see why; a container may limit processes or "
                "memory."
            ) from error

    def close(self) -> None:
        """End idle workers."""
        for lane in (self._prompt, self._background):
            while lane.idle:
                lane.idle.pop().end()


class _Lane:
    """Workers of one priority, and the threads that wait for their replies.

    Args:
        count: Number of workers.
        is_background: Whether they use only CPU time that other processes leave.
    """

    def __init__(self, count: int, *, is_background: bool = False) -> None:
        self.threads = ThreadPoolExecutor(count, "qeff-zoo workers")
        self.is_background = is_background
        #: Workers without work, appended and popped by several threads, which is atomic.
        self.idle: list[_Worker] = []


class _Call:
    """One call in a worker, which another thread may stop."""

    def __init__(self, limits: WorkLimits, lane: _Lane, work: Callable[[], Any]) -> None:
        self._limits, self._lane, self._work = limits, lane, work
        #: CPU seconds of the work so far; of a worker that was killed, its time.
        self.seconds = 0.0
        self._worker: _Worker | None = None
        self._stopped = False
        self._lock = threading.Lock()

    def __call__(self) -> Any:
        worker = self._taken()
        returned, result = self._reply(worker)
        if _is_full(returned, result) and worker.replies > 1:  # what earlier work left took memory
            returned, result = self._reply(self._taken(fresh=True))
        if returned:
            return result
        if _is_full(returned, result):
            raise _too_much(f"{self._limits.nbytes >> 20:,} MiB of memory")
        raise result

    def _reply(self, worker: "_Worker") -> tuple[bool, Any]:
        """Return a worker's reply; it is idle then, or has ended."""
        limit = threading.Timer(self._limits.wall_seconds, worker.kill)
        limit.daemon = True
        limit.start()
        begun = time.monotonic()
        try:
            seconds, *found = worker.reply((self._limits.cpu_seconds, self._work))
            self.seconds += seconds
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            self.seconds += time.monotonic() - begun
            code = worker.end()
            if self._stopped:
                raise CancelledError from error
            raise _ended(code, self._limits) from error
        except BaseException:  # the work cannot be pickled
            worker.end()
            raise
        finally:
            limit.cancel()
            with self._lock:
                self._worker = None
        returned, result = found
        if worker.is_alive and not _is_full(returned, result):
            self._lane.idle.append(worker)
        else:
            worker.end()
        return returned, result

    def stop(self) -> None:
        """End the worker, whose reply has no reader."""
        with self._lock:
            self._stopped = True
            if self._worker:
                self._worker.kill()

    def _taken(self, *, fresh: bool = False) -> "_Worker":
        """Return a new worker, or an idle one that lives."""
        with self._lock:
            if self._stopped:
                raise CancelledError
            self._worker = (None if fresh else self._living()) or _Worker(
                self._limits, is_background=self._lane.is_background
            )
            return self._worker

    def _living(self) -> "_Worker | None":
        """Return an idle worker that lives, and end those that do not."""
        with suppress(IndexError):  # other threads take from this list too
            while not (worker := self._lane.idle.pop()).is_alive:
                worker.end()
            return worker
        return None


class _Worker:
    """One process.

    Args:
        limits: Limits of each request.
        is_background: Whether it uses only CPU time that other processes leave.
    """

    def __init__(self, limits: WorkLimits, *, is_background: bool) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        environment["RAYON_NUM_THREADS"] = environment["TOKENIZERS_PARALLELISM"] = "1"
        self._process = subprocess.Popen(
            [*_COMMAND, str(limits.nbytes), *(["background"] if is_background else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        #: Number of requests that it replied to.
        self.replies = 0

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def reply(self, request: tuple[int, Callable[[], Any]]) -> tuple[float, bool, Any]:
        """Return the reply to seconds of CPU time and work.

        Returns:
            The CPU seconds of the work, whether it returned, and its result or exception.
        """
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(pickle.dumps(request, pickle.HIGHEST_PROTOCOL))
        self._process.stdin.flush()
        found = cast("tuple[float, bool, Any]", pickle.load(self._process.stdout))
        self.replies += 1
        return found

    def kill(self) -> None:
        """End the process at once; `reply` fails then."""
        self._process.kill()

    def end(self) -> int:
        """End the process, and return its exit code: that of its own end, if it ended before."""
        try:
            self._process.wait(0.2)  # its pipe may close first
        except subprocess.TimeoutExpired:
            self._process.kill()
        code = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe
            with suppress(OSError):  # of a request that was not sent
                pipe.close()
        return code


def _is_full(returned: bool, result: Any) -> bool:
    return not returned and isinstance(result, MemoryError)


def _ended(code: int, limits: WorkLimits) -> Exception:
    """Return the error of a request whose worker ended."""
    if code == -getattr(signal, "SIGXCPU", 0):
        return _too_much(f"{limits.cpu_seconds} seconds of CPU time")
    if code == -getattr(signal, "SIGKILL", 9):
        return _too_much(f"{limits.wall_seconds:.0f} seconds, or the memory of this machine,")
    return ApiError(
        503,
        f"The process that read this request ended with {code}; expected a reply. Send the request again, or a simpler "
        "one.",
        code="worker_ended",
    )


def _too_much(limit: str) -> GenerationError:
    return GenerationError(
        f"It takes more than {limit} to read this; expected less. Make it shorter or simpler."
    )


@cache
def shared() -> Workers:
    """Return the workers of this process."""
    workers = Workers()
    atexit.register(workers.close)
    return workers


if hasattr(os, "register_at_fork"):  # a fork has no threads, and the pipes of another process
    os.register_at_fork(after_in_child=shared.cache_clear)
