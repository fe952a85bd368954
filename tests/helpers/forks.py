# SPDX-License-Identifier: Apache-2.0
"""Pytest plugin: with `--forks N`, tests run in N processes that are forked once all tests are collected.

To import torch, transformers and all test modules takes 14 seconds of CPU time, spent once here. Each process runs
a run of tests in their order, so that they share fixtures; one that has none left takes half of what another has.
"""

import functools
import itertools
import os
import signal
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, NoReturn

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--forks",
        type=int,
        default=0,
        metavar="N",
        help="processes that run the tests (0: this one)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    count = session.config.getoption("--forks")
    options = session.config.option
    if not count or not session.items or session.testsfailed or options.collectonly:
        return None
    run = _Run(session, min(count, len(session.items)))
    try:
        run.until_all_are_done()
    finally:
        run.stop()
    return True


@dataclass
class _Process:
    """A process that runs tests.

    Attributes:
        pid: Process number.
        connection: Pipe between it and the first process.
        waiting: Numbers of tests that it runs later.
        sent: Numbers of the test that it runs and of the next one, whose fixtures it keeps; None after the last.
    """

    pid: int
    connection: Connection
    waiting: deque[int]
    sent: deque[int | None] = field(default_factory=deque)


class _Run:
    """Distribution of the tests over processes, in the first process, which prints their reports."""

    def __init__(self, session: pytest.Session, count: int) -> None:
        self._session, self._hook = session, session.config.hook
        terminal = session.config.pluginmanager.getplugin("terminalreporter")
        terminal.showfspath = False  # as tests of several files run at a time
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined] # one for all
        total = len(session.items)
        bounds = [total * part // count for part in range(count + 1)]
        self._processes = list[_Process]()
        for start, stop in itertools.pairwise(bounds):
            self._start(deque(range(start, stop)))

    def _start(self, waiting: deque[int]) -> None:
        here, there = Pipe()
        if not (pid := os.fork()):
            here.close()
            for other in self._processes:
                other.connection.close()
            _run(self._session, there)
        there.close()
        process = _Process(pid, here, waiting)
        self._processes.append(process)
        self._send(process)
        self._send(process)

    def _send(self, process: _Process) -> None:
        """Send the number of the next test, or None, once, if there is none left."""
        if process.sent and process.sent[-1] is None:
            return
        if not process.waiting:
            richest = max(self._processes, key=lambda one: len(one.waiting))
            for _ in range((len(richest.waiting) + 1) // 2):
                process.waiting.appendleft(richest.waiting.pop())
        number = process.waiting.popleft() if process.waiting else None
        process.sent.append(number)
        with suppress(BrokenPipeError):  # it has ended, see `_end`
            process.connection.send(number)

    def until_all_are_done(self) -> None:
        """Receive reports until each process has ended."""
        while self._processes:
            for connection in wait([one.connection for one in self._processes]):
                process = next(one for one in self._processes if one.connection is connection)
                match _received(connection):
                    case "ended":
                        self._end(process)
                    case "next":
                        process.sent.popleft()
                        self._send(process)
                    case data:
                        config = self._session.config
                        read = self._hook.pytest_report_from_serializable
                        self._report(read(config=config, data=data))

    def _report(self, report: pytest.TestReport) -> None:
        self._hook.pytest_runtest_logreport(report=report)
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)

    def _end(self, process: _Process) -> None:
        """Report the test in which a process broke off, and have another one run the rest."""
        self._processes.remove(process)
        _, status = os.waitpid(process.pid, 0)
        number, *following = process.sent
        if number is None:
            return
        item = self._session.items[number]
        code = os.waitstatus_to_exitcode(status)
        reason = f"Its process ended with {code if code >= 0 else signal.Signals(-code).name}"
        self._report(pytest.TestReport(item.nodeid, item.location, {}, "failed", reason, "call"))
        left = deque(one for one in following if one is not None) + process.waiting
        if left:
            self._start(left)

    def stop(self) -> None:
        """Interrupt what still runs, and wait for its fixtures to end."""
        for process in self._processes:
            os.kill(process.pid, signal.SIGINT)
        for process in self._processes:
            os.waitpid(process.pid, 0)


def _received(connection: Connection) -> Any:
    try:
        return connection.recv()
    except (EOFError, ConnectionResetError):
        return "ended"


def _run(session: pytest.Session, connection: Connection) -> NoReturn:
    """Run tests by their numbers, and send reports."""
    plugins, hook = session.config.pluginmanager, session.config.hook
    plugins.unregister(name="terminalreporter")
    plugins.register(_Sender(session.config, connection))
    capture = plugins.getplugin("capturemanager")
    capture.stop_global_capturing()  # its files are those of the first process
    capture.start_global_capturing()
    code = 1
    try:
        number = connection.recv()
        while number is not None:
            following = connection.recv()
            next_item = None if following is None else session.items[following]
            hook.pytest_runtest_protocol(item=session.items[number], nextitem=next_item)
            connection.send("next")
            number = following
        code = 0
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            session._setupstate.teardown_exact(None)
        finally:
            os._exit(code)  # at once: the release of each object takes seconds


class _Sender:
    """Plugin that sends each report to the first process."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._send, self._config = connection.send, config
        self._data = functools.partial(config.hook.pytest_report_to_serializable, config=config)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._send(self._data(report=report))
