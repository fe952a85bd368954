# SPDX-License-Identifier: Apache-2.0
"""Forward passes that take turns at each part of a model, whose weights are in memory one part at a time.

Only the reference process imports this. A pass is transformers' own forward, in a thread that waits before each part
until the weights of that are read. All passes that wait for a part run through it, one after the other, before the
next part is read.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qeff_zoo.numerics import RoundedMatrix
from qeff_zoo.validation.reference_formats.orders import Orders
from qeff_zoo.validation.reference_numerics import LeftSide, place_of, round_weights
from qeff_zoo.validation.reference_subjects import Answers
from qeff_zoo.validation.reference_unloaded import REST, Unloaded, put


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Forward pass of one variant.

    Args:
        run: Called once, in a thread, with a copy of the answers.
        rounded: Whether the model has rounded weights.
        around: Changes the weights of that copy while the pass runs through a part.
    """

    run: Callable[[Answers], Any]
    rounded: bool = True
    around: Callable[[Answers], AbstractContextManager[Any]] = lambda _: nullcontext()


class Turns:
    """A model whose parts are read in turn, and the passes that run through them.

    Args:
        unloaded: The model, and its checkpoint.
        answers: Of the model.
        matrices: That a package rounds.
        orders: Of the columns of a quantized checkpoint.
    """

    def __init__(
        self,
        unloaded: Unloaded,
        answers: Answers,
        matrices: Sequence[RoundedMatrix],
        orders: Orders,
    ) -> None:
        self._unloaded, self._answers, self._orders = unloaded, answers, orders
        #: By storage of weights that are in memory, as `Arithmetic` takes them.
        self.left_sides: dict[int, list[LeftSide]] = {}
        named = dict(unloaded.model.named_parameters(remove_duplicate=False))
        self._matrices: dict[str, list[RoundedMatrix]] = {path: [] for path in unloaded.parts}
        for matrix in matrices:
            for path in unloaded.parts_with(place_of(named, matrix.name)[0]):
                self._matrices[path].append(matrix)
        unloaded.read(REST)
        self._rest, self._left_of_rest = self._rounded_rest()

    def _rounded_rest(self) -> tuple[dict[str, Tensor], dict[int, list[LeftSide]]]:
        """Return what stays in memory, rounded, and its left sides."""
        unloaded = self._unloaded
        stored = unloaded.state(REST)
        memo: dict[int, Any] = {}
        put(unloaded.model, {name: deepcopy(tensor, memo) for name, tensor in stored.items()})
        left = round_weights(unloaded.model, self._matrices[REST], self._orders)
        rounded = unloaded.state(REST)
        put(unloaded.model, stored)
        return rounded, left

    def run(self, passes: Sequence[Pass]) -> list[Any]:
        """Run passes together; return what each returns.

        Args:
            passes: In the order in which they run through a part; those with rounded weights come after all others.
        """
        running = [_Running(one, self._copied(one), [*self._unloaded.parts]) for one in passes]
        for one in running:
            one.resume()
        order = {path: number for number, path in enumerate(self._unloaded.parts)}
        while waiting := [one for one in running if one.waits_for is not None]:
            path = min((str(one.waits_for) for one in waiting), key=order.__getitem__)
            here = [one for one in waiting if one.waits_for == path]
            with self._unloaded.reading(path):
                for one in here:
                    if not one.rounded:
                        self._turn(one, path)
                left = round_weights(self._unloaded.model, self._matrices[path], self._orders)
                self.left_sides.update({**self._left_of_rest, **left})
                for one in here:
                    if one.rounded:
                        self._turn(one, path)
                self.left_sides.clear()
        return [one.result for one in running]

    def _turn(self, running: "_Running", path: str) -> None:
        self._unloaded.lend(running.model, path)
        running.resume()
        self._unloaded.lend(running.model, path, blank=True)

    def _copied(self, one: Pass) -> Answers:
        """Copy the answers and the model, but for its tensors: what a pass changes is its own."""
        model = self._unloaded.model
        memo = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        copied = deepcopy(self._answers, memo)
        if one.rounded:
            put(copied.halves[0], self._rest)
        return copied


class _Running(threading.Thread):
    """Thread of a pass, which runs only between `resume` and the next part.

    Args:
        told: The pass.
        answers: Its own.
        paths: Of the model's parts.
    """

    def __init__(self, told: Pass, answers: Answers, paths: Sequence[str]) -> None:
        super().__init__(daemon=True)
        self.rounded, self.model = told.rounded, answers.halves[0]
        #: Path of the part before which it waits; None once it is done.
        self.waits_for: str | None = None
        self.result: Any = None
        self._told, self._answers = told, answers
        self._error: BaseException | None = None
        self._may_run, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        for path in paths:
            if path != REST:
                self.model.get_submodule(path).register_forward_pre_hook(self._waiting(path))
        self.start()

    def _waiting(self, path: str) -> Callable[[nn.Module, Any], None]:
        def wait(_: nn.Module, args: Any) -> None:
            self.waits_for = path
            self._stopped.release()
            self._may_run.acquire()

        return wait

    def resume(self) -> None:
        """Let the pass run to the next part, or to its end."""
        self.waits_for = None
        with self._told.around(self._answers):
            self._may_run.release()
            self._stopped.acquire()
        if self._error:
            raise self._error

    def run(self) -> None:
        """Run the pass, for `start`."""
        self._may_run.acquire()
        torch.set_grad_enabled(False)  # of this thread
        try:
            self.result = self._told.run(self._answers)
        except BaseException as error:
            self._error = error
        self._stopped.release()
