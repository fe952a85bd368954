# SPDX-License-Identifier: Apache-2.0
"""Forward passes that take turns at each part of a model, whose weights are in memory one part at a time.

Only the reference process imports this. A pass is transformers' own forward, in a thread that waits before each part
until the weights of that are read. All passes that wait for a part run through it, one after the other, before the
next part is read.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy, deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.graph.numerics import RoundedMatrix
from qeff_zoo.runtime.memory import (
    ARENA_MAX,
    MMAP_THRESHOLD,
    TRIM_THRESHOLD,
    available_memory,
    set_malloc,
)
from qeff_zoo.validation.reference.formats.orders import Orders
from qeff_zoo.validation.reference.numerics import LeftSide, Preparation, place_of, round_weights
from qeff_zoo.validation.reference.runs import Answers
from qeff_zoo.validation.reference.unloaded import REST, Unloaded, put

_MOST = (1 << 31) - 1
_PLENTY = 4  # times the weights


def return_freed_memory() -> None:
    """Let this process keep little memory that is freed: each thread would keep its own."""
    set_malloc({ARENA_MAX: 1, MMAP_THRESHOLD: 1 << 19})


def keep_freed_memory(weights: int) -> None:
    """Let this process use its freed memory again, if there is plenty: the system clears pages that it gives.

    Args:
        weights: Bytes of the model.
    """
    available = available_memory()
    if available is not None and available >= _PLENTY * weights:
        set_malloc({MMAP_THRESHOLD: _MOST, TRIM_THRESHOLD: _MOST})


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Forward pass of one variant.

    Args:
        run: Called once, in a thread, with a copy of the answers.
        rounded: Whether the model has rounded weights.
        around: Changes the model while the pass runs, and changes it back while others do.
    """

    run: Callable[[Answers], Any]
    rounded: bool = True
    around: Callable[[Answers], AbstractContextManager[Any]] = lambda _: nullcontext()


class Turns:
    """A model whose parts are read in turn, and the passes that run through them.

    Args:
        unloaded: The model, and its checkpoint.
        answers: Answers of the model.
        matrices: Matrices that a package rounds.
        orders: Column orders of a quantized checkpoint.
        preparation: Preparation of weights before the package rounded them.
    """

    def __init__(
        self,
        unloaded: Unloaded,
        answers: Answers,
        matrices: Sequence[RoundedMatrix],
        orders: Orders,
        preparation: Preparation,
    ) -> None:
        self._unloaded, self._answers, self._orders = unloaded, answers, orders
        self._preparation = preparation
        #: By storage of weights that are in memory, as `Arithmetic` takes them.
        self.left_sides: dict[int, list[LeftSide]] = {}
        named = dict(unloaded.model.named_parameters(remove_duplicate=False))
        self._matrices: dict[str, list[RoundedMatrix]] = {path: [] for path in unloaded.parts}
        for matrix in matrices:
            for path in unloaded.parts_with(place_of(named, matrix.name)[0]):
                self._matrices[path].append(matrix)
        unloaded.read(REST)
        self._stored_rest = unloaded.state(REST)
        self._rest, self._left_of_rest = self._rounded_rest()
        for path in unloaded.parts:
            if path != REST:
                part = unloaded.model.get_submodule(path)
                part.register_forward_pre_hook(partial(_wait, path))

    def _rounded_rest(self) -> tuple[dict[str, Tensor], dict[int, list[LeftSide]]]:
        """Return what stays in memory, rounded, and its left sides."""
        model, memo = self._unloaded.model, dict[int, Any]()
        put(model, {name: deepcopy(value, memo) for name, value in self._stored_rest.items()})
        left = round_weights(model, self._matrices[REST], self._orders, self._preparation)
        rounded = self._unloaded.state(REST)
        put(model, self._stored_rest)
        return rounded, left

    def run(self, passes: Sequence[Pass]) -> list[Any]:
        """Run passes together; return what each returns.

        Args:
            passes: Passes in the order in which they run through a part; those with rounded weights come last.
        """
        running = [_Running(one, copy(self._answers)) for one in passes]
        self._resume(running, REST)
        order = {path: number for number, path in enumerate(self._unloaded.parts)}
        while waiting := [state for state in running if state.waits_for is not None]:
            path = min((str(one.waits_for) for one in waiting), key=order.__getitem__)
            with self._unloaded.reading(path):
                self._resume([one for one in waiting if one.waits_for == path], path)
        return [state.result for state in running]

    def _resume(self, running: Sequence["_Running"], path: str) -> None:
        """Let passes run through a part, which is in memory."""
        for one in running:
            if not one.rounded:
                one.resume()
        left = {}
        if path != REST:
            matrices = self._matrices[path]
            left = round_weights(self._unloaded.model, matrices, self._orders, self._preparation)
        self.left_sides.update({**self._left_of_rest, **left})
        put(self._unloaded.model, self._rest)
        for one in running:
            if one.rounded:
                one.resume()
        put(self._unloaded.model, self._stored_rest)
        self.left_sides.clear()


def _wait(path: str, _: nn.Module, args: Any) -> None:
    """Let a pass wait before a part."""
    running = threading.current_thread()
    assert isinstance(running, _Running)
    running.wait(path)


class _Running(threading.Thread):
    """Thread of a pass, which runs only between `resume` and the next part.

    Args:
        planned: The pass.
        answers: Answers of the pass.
    """

    def __init__(self, planned: Pass, answers: Answers) -> None:
        super().__init__(daemon=True)
        self.rounded = planned.rounded
        #: Path of the part before which it waits; None once it is done.
        self.waits_for: str | None = None
        self.result: Any = None
        self._planned, self._answers = planned, answers
        self._error: BaseException | None = None
        self._may_run, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self.start()

    def wait(self, path: str) -> None:
        """Wait until a part is in memory, within the pass."""
        self.waits_for = path
        self._stopped.release()
        self._may_run.acquire()

    def resume(self) -> None:
        """Let the pass run to the next part, or to its end."""
        self.waits_for = None
        with self._planned.around(self._answers):
            self._may_run.release()
            self._stopped.acquire()
        if self._error:
            raise self._error

    def run(self) -> None:
        """Run the pass, for `start`."""
        self._may_run.acquire()
        torch.set_grad_enabled(False)  # of this thread
        try:
            self.result = self._planned.run(self._answers)
        except BaseException as error:
            self._error = error
        self._stopped.release()
