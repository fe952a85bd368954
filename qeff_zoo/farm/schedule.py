# SPDX-License-Identifier: Apache-2.0
"""Schedule of a farm: which steps of which cells may start, in which order, and what their results lead to.

In: cells with their steps, then results. Out: steps that are ready. Pure: Ray runs the steps, or a simulation does.

- The graphs of an architecture are traced by one step; all cells with the same graphs wait for it.
- One package at a time is published to a repository.
- A failed step makes its cell red; the third failure of one kind makes all that would follow red, too.
- Publications go first, then whatever begins the longest rest of a cell.
"""

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from qeff_zoo.farm.estimates import BUILD, PUBLISH, TRACE, VALIDATE
from qeff_zoo.farm.planning import BUILT, PUBLISHED, RED, STALE, Cell

#: Validation of an earlier package by the present software.
REVALIDATE = "revalidate"
#: Failures of one kind after which its remaining steps are not tried.
FAILURES = 3
#: Name of something that one cell at a time does.
Key: TypeAlias = tuple[str, ...]

#: Number of times that a package is built again because its machine, and with it the package, is gone.
_REBUILDS = 2


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of one cell.

    Args:
        name: Name of the step.
        number: Number of the cell.
        cell: The cell.
        node: Machine that has the package; empty for any.
    """

    name: str
    number: int
    cell: Cell
    node: str = ""

    @property
    def seconds(self) -> float:
        """Estimated wall time."""
        return _seconds(self.cell, self.name)

    @property
    def memory(self) -> int:
        """Estimated bytes of memory."""
        assert self.cell.needs is not None
        return self.cell.needs.memory[VALIDATE if self.name == REVALIDATE else self.name]

    @property
    def disk(self) -> int:
        """Estimated bytes of disk; only a build takes room for long."""
        assert self.cell.needs is not None
        return self.cell.needs.disk if self.name in (BUILD, REVALIDATE) else 0

    @property
    def kind(self) -> tuple[str, str]:
        """Kind of the step: failures of one kind have one cause."""
        if self.name == PUBLISH:
            return (self.name, str(self.cell.remote))
        return (self.name, f"{self.cell.model_type} for {self.cell.target}")


@dataclass(frozen=True, kw_only=True)
class Result:
    """Result of one step.

    Args:
        failure: Class of the error; empty after success.
        reason: Text of the error.
        node: Machine that ran it.
        seconds: Wall time.
        memory: Peak of the process's memory in bytes.
        absent: Whether the machine lacks the package that the step is of.
        refused: Whether no machine is large enough; other packages of its kind may be smaller.
        versions: Versions of the evidence, after a validation.
        url: URL of the commit, after a publication.
        warnings: Warnings, a text each.
    """

    failure: str = ""
    reason: str = ""
    node: str = ""
    seconds: float = 0.0
    memory: int = 0
    absent: bool = False
    refused: bool = False
    versions: dict[str, str] = field(default_factory=dict)
    url: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(kw_only=True)
class Progress:
    """Progress of one cell.

    Args:
        cell: The cell.
        rest: Steps that are left.
        state: Present state, see `qeff_zoo.farm.planning`.
        reason: Reason of a red cell.
        node: Machine that has the package.
        results: Results by step.
        rebuilds: Number of times that the cell was built again.
    """

    cell: Cell
    rest: deque[str]
    state: str
    reason: str = ""
    node: str = ""
    results: dict[str, Result] = field(default_factory=dict)
    rebuilds: int = 0


class Schedule:
    """Steps of all cells, and their order.

    Args:
        cells: All cells of a plan.
        revalidate: Whether cells with stale evidence are validated again, not built.
    """

    def __init__(self, cells: Sequence[Cell], *, revalidate: bool = False) -> None:
        self.progress = [
            Progress(cell=cell, rest=deque(cell.steps), state=cell.state, reason=cell.why)
            for cell in cells
        ]
        for one in self.progress:
            if revalidate and one.state == STALE:
                one.rest = deque([REVALIDATE])
            elif one.rest and one.state != RED:
                one.reason = ""
        #: Machine with the store that the plan was made with; empty if there is only one.
        self.home = ""
        self._running: set[int] = set()
        self._heap: list[tuple[float, int]] = []
        self._traced: set[Key] = set()
        #: Cell that traces graphs, or publishes to a remote, by these; and the cells that wait for it, in their order.
        self._holders: dict[Key, int] = {}
        self._waiting: dict[Key, deque[int]] = {}
        self._failures = Counter[tuple[tuple[str, str], str]]()
        for number in sorted(range(len(cells)), key=lambda number: -self._left(number)):
            self._enqueue(number)

    @property
    def done(self) -> bool:
        """Whether nothing is running or left."""
        return not self._running and not self._heap

    def next(self) -> Step | None:
        """Return the step to start now; None if none is ready."""
        while self._heap:
            _, number = heapq.heappop(self._heap)
            one = self.progress[number]
            if one.rest:
                self._running.add(number)
                return Step(name=one.rest[0], number=number, cell=one.cell, node=one.node)
            self._release(number)  # it is not to be tried any more
        return None

    def finish(self, step: Step, result: Result) -> None:
        """Take the result of a step."""
        self._running.discard(step.number)
        one = self.progress[step.number]
        one.results[step.name] = result
        if result.absent and not step.node and self.home:
            one.node = self.home  # a package that was there before the run
        elif result.absent and one.rebuilds < _REBUILDS:
            one.rebuilds += 1
            one.rest, one.node = deque([BUILD, *one.rest]), ""
        elif result.failure and step.name == REVALIDATE:
            one.rest, one.reason = deque(one.cell.steps), result.reason
        elif result.failure:
            self._fail(one, step, result)
        else:
            self._succeed(one, step, result)
        self._release(step.number)
        self._enqueue(step.number)

    def _enqueue(self, number: int) -> None:
        """Make the next step of a cell ready, or let the cell wait."""
        one = self.progress[number]
        if one.rest and one.rest[0] == TRACE and one.cell.graphs in self._traced:
            one.rest.popleft()
        if not one.rest:
            return
        key = _exclusive(one)
        if key and self._holders.setdefault(key, number) != number:
            self._waiting.setdefault(key, deque()).append(number)
            return
        first = one.rest[0] == PUBLISH
        heapq.heappush(self._heap, (-math.inf if first else -self._left(number), number))

    def _release(self, number: int) -> None:
        """Let the cells go on that wait for what a cell did."""
        for key in [key for key, holder in self._holders.items() if holder == number]:
            del self._holders[key]
            waiting = self._waiting.pop(key, deque())
            for each in waiting:
                self._enqueue(each)

    def _succeed(self, one: Progress, step: Step, result: Result) -> None:
        one.rest.popleft()
        if step.name == TRACE:
            self._traced.add(step.cell.graphs)
        elif step.name == REVALIDATE:
            one.state = PUBLISHED if step.cell.older_path else BUILT
            one.reason = ""
        else:
            one.node = result.node
            one.state = PUBLISHED if step.name == PUBLISH else BUILT
            one.reason = ""

    def _fail(self, one: Progress, step: Step, result: Result) -> None:
        one.state, one.reason = RED, result.reason
        one.rest.clear()
        kind = (step.kind, result.failure)
        self._failures[kind] += not result.refused
        if self._failures[kind] < FAILURES:
            return
        for number, other in enumerate(self.progress):
            steps = (Step(name=name, number=number, cell=other.cell) for name in other.rest)
            if number not in self._running and any(each.kind == step.kind for each in steps):
                other.state = RED
                other.reason = (
                    f"Not tried after {FAILURES} failures of this kind ({step.name}, {step.kind[1]}), of which the "
                    f"last: {result.reason}"
                )
                other.rest.clear()

    def _left(self, number: int) -> float:
        one = self.progress[number]
        return sum(_seconds(one.cell, name) for name in one.rest)


def _exclusive(one: Progress) -> Key | None:
    """Return what only one cell at a time does: the trace of some graphs, or a publication to a remote."""
    if one.rest[0] == TRACE:
        return (TRACE, *one.cell.graphs)
    return (PUBLISH, str(one.cell.remote)) if one.rest[0] == PUBLISH else None


def _seconds(cell: Cell, name: str) -> float:
    return cell.needs.seconds[VALIDATE if name == REVALIDATE else name] if cell.needs else 0.0


class Executor(Protocol):
    """Machines that run steps."""

    @property
    def room(self) -> int:
        """Number of steps that may be submitted now."""

    def submit(self, step: Step) -> Result | None:
        """Start a step; return a result if it cannot be started."""

    def wait(self) -> Sequence[tuple[Step, Result]]:
        """Wait for steps that are done, for a while."""


def drive(
    schedule: Schedule,
    executor: Executor,
    done: Callable[[Step, Result], Any] = lambda step, result: None,
    begun: Callable[[Step], Any] = lambda step: None,
) -> None:
    """Run a schedule to its end.

    Args:
        schedule: The schedule.
        executor: Machines.
        done: Called after each step, when its result is in the schedule.
        begun: Called before each step.
    """
    while not schedule.done:
        finished: list[tuple[Step, Result]] = []
        while executor.room > 0 and (step := schedule.next()):
            begun(step)
            if (refused := executor.submit(step)) is not None:
                finished.append((step, refused))
        for step, result in finished or executor.wait():
            schedule.finish(step, result)
            done(step, result)
