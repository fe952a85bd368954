# SPDX-License-Identifier: Apache-2.0
"""Workers: processes for inputs whose cost is unknown before the work is done, such as grammars and long texts.

A worker ends if its client leaves, or beyond its limits; the next request gets a new one. Processes start when they are
first needed, by their own command: a fork of this process would copy the locks of its other threads, and
`multiprocessing` would run the operator's script again.
"""

import atexit
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar, cast

from qeff_zoo.errors import GenerationError, ServingError
from qeff_zoo.serving.errors import ApiError
from qeff_zoo.serving.queues.accounts import Turns
from qeff_zoo.serving.queues.threads import in_thread

_T = TypeVar("_T")
_COMMAND = (sys.executable, "-m", "qeff_zoo.runtime.worker")


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
        self._threads = ThreadPoolExecutor(count, "qeff-zoo workers")
        self._turns = Turns(max(1, count - 1))  # one is left for other clients
        self._limits = limits
        self._idle: list[_Worker] = []  # appended and popped by several threads, which is atomic

    async def run(self, work: Callable[[], _T], cpu_seconds: int | None = None) -> _T:
        """Call a function in a worker. Cancellation ends the worker.

        Args:
            work: A function of a module that workers can import, with its arguments; and its result, can be pickled.
            cpu_seconds: CPU time of the work, if it is less than that of all work.

        Raises:
            GenerationError: The work exceeds its limits.
            ApiError: The worker ended for another reason.
        """
        limits = self._limits
        if cpu_seconds is not None:
            limits = replace(limits, cpu_seconds=min(cpu_seconds, limits.cpu_seconds))
        call = _Call(limits, self._idle, work)
        async with self._turns.one():
            return cast("_T", await in_thread(self._threads, call, call.stop))

    def check(self) -> None:
        """Start a worker, and wait for its first reply.

        Raises:
            ServingError: It does not start.
        """
        command = " ".join((*_COMMAND, str(self._limits.nbytes)))
        try:
            _Call(self._limits, self._idle, os.getpid)()
        except (OSError, ApiError, GenerationError) as error:
            raise ServingError(
                f"Cannot start a process for the inputs of clients, `{command}`: {error} "
                "Expected a process that replies. Run this command to see why; a container may limit processes or "
                "memory."
            ) from error

    def close(self) -> None:
        """End idle workers."""
        while self._idle:
            self._idle.pop().end()


class _Call:
    """One call in a worker, which another thread may stop."""

    def __init__(self, limits: WorkLimits, idle: list["_Worker"], work: Callable[[], Any]) -> None:
        self._limits, self._idle, self._work = limits, idle, work
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
        try:
            found = worker.reply((self._limits.cpu_seconds, self._work))
        except (EOFError, OSError, pickle.UnpicklingError) as error:
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
        if worker.is_alive and not _is_full(*found):
            self._idle.append(worker)
        else:
            worker.end()
        return found

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
            self._worker = (None if fresh else self._living()) or _Worker(self._limits)
            return self._worker

    def _living(self) -> "_Worker | None":
        """Return an idle worker that lives, and end those that do not."""
        with suppress(IndexError):  # other threads take from this list too
            while not (worker := self._idle.pop()).is_alive:
                worker.end()
            return worker
        return None


class _Worker:
    """One process."""

    def __init__(self, limits: WorkLimits) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        environment["RAYON_NUM_THREADS"] = environment["TOKENIZERS_PARALLELISM"] = "1"
        self._process = subprocess.Popen(
            [*_COMMAND, str(limits.nbytes)],
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

    def reply(self, request: tuple[int, Callable[[], Any]]) -> tuple[bool, Any]:
        """Return the reply to seconds of CPU time and work: whether it returned, and its result or exception."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(pickle.dumps(request, pickle.HIGHEST_PROTOCOL))
        self._process.stdin.flush()
        found = cast("tuple[bool, Any]", pickle.load(self._process.stdout))
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
