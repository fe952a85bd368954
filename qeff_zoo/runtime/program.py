# SPDX-License-Identifier: Apache-2.0
"""A compiled program, opened: it runs calls on its states. Each target has one of its own."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.graph.states import State

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
#: What a program that draws tokens itself returns in place of logits.
TOKENS = "next_tokens"
Specializations: TypeAlias = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """An input or an output that is not a state.

    Args:
        dtype: Type of its values.
        shape: A size or a symbol for each axis; None for what each call says anew.
    """

    dtype: np.dtype[Any]
    shape: tuple[Any, ...]

    @classmethod
    def by_name(cls, entries: Sequence[Mapping[str, Any]]) -> "dict[str, Tensor]":
        """Read the inputs or the outputs of a program of a manifest."""
        return {
            one["name"]: cls(dtype=np.dtype(one["dtype"]), shape=tuple(one["shape"]))
            for one in entries
        }


class Memory(dict[str, Array]):
    """The states of a program by name, rows first, on the host.

    Args:
        arrays: The states.
        is_current: Whether they are what the program has, so that the host may read them; else they are rows on
            their way to a device that keeps them, and the host may only write.
    """

    def __init__(self, arrays: Mapping[str, Array], *, is_current: bool = True) -> None:
        super().__init__(arrays)
        self.is_current = is_current
        #: Rows that the host wrote: a device that has the states as well is to take these over.
        self.written: set[int] = set()


class Program(Protocol):
    """Runs calls, one at a time: the states belong to the calls.

    A call is for some rows of the states: batch rows, or the slots of continuous batching. What another call left in a
    row is never seen by one that starts at position 0.
    """

    @property
    def specializations(self) -> Specializations:
        """Sizes that it was compiled for, as in the manifest."""

    @property
    def inputs(self) -> Mapping[str, Tensor]:
        """What a call is given, by name, besides states."""

    @property
    def outputs(self) -> Mapping[str, Tensor]:
        """What a call returns, by name, besides states."""

    @property
    def states(self) -> Sequence[State]:
        """What it retains."""

    @property
    def memory(self) -> Memory | None:
        """The states on the host; None if the device keeps all of them, out of the host's reach."""

    def together(
        self, starts: Mapping[int, int], *, prefill: bool, kept: int = 1
    ) -> list[list[int]]:
        """Cut rows into those that one call can take.

        Args:
            starts: Row -> position of its first new token.
            prefill: Whether rows may have several new tokens.
            kept: Number of a row's tokens for which the call returns logits.
        """

    def run(self, inputs: Mapping[str, Array], rows: Sequence[int] = ()) -> Mapping[str, Array]:
        """Run one call.

        Args:
            inputs: All of `inputs`.
            rows: Rows of the states for the call, as `together` returns them; empty without states.

        Returns:
            All of `outputs`.
        """


@runtime_checkable
class HoldsLoraWeights(Protocol):
    """What a program has and does besides that keeps matrices of adapters from call to call."""

    @property
    def matrices(self) -> Sequence[State]:
        """What it retains of adapters; these are not among its `states`, which rows of requests have."""

    def retain(self, states: Mapping[str, Array]) -> None:
        """Hand over matrices, which the next call takes. Any thread may do so at any time.

        Args:
            states: By name, those of all slots.
        """


@runtime_checkable
class HasMaxPatches(Protocol):
    """Additional property of a program that takes images up to a largest size."""

    @property
    def most_patches(self) -> int:
        """Maximum number of patches of an image; 0 without such a limit."""


#: Inputs, rows and outputs of a call.
Observe: TypeAlias = Callable[[Mapping[str, Array], Sequence[int], Mapping[str, Array]], None]


class Observed:
    """A program that reports its calls.

    Args:
        program: Any.
        observe: Told of every call when it is done.
    """

    def __init__(self, program: Program, observe: Observe) -> None:
        self._program, self._observe = program, observe

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def run(self, inputs: Mapping[str, Array], rows: Sequence[int] = ()) -> Mapping[str, Array]:
        """Run one call."""
        outputs = self._program.run(inputs, rows)
        self._observe(inputs, rows, outputs)
        return outputs


def require(program: Program, folder: Path, task: str, inputs: Set[str], outputs: Set[str]) -> None:
    """Make sure that a program is one of a task.

    Args:
        program: Opened.
        folder: Folder of its package, for the message.
        task: Hub pipeline tag, for the message.
        inputs: Names that the task's programs have.
        outputs: Names that the task's programs have; `TOKENS` may stand for them.

    Raises:
        GenerationError: The program is of another task.
    """
    answers = outputs <= program.outputs.keys() or TOKENS in program.outputs
    if inputs <= program.inputs.keys() and answers:
        return
    raise GenerationError(
        f"Package {str(folder)!r} is not one for {task}: its program takes {_some(program.inputs)} and "
        f"returns {_some(program.outputs)}. Expected {_some(inputs)} and {_some(outputs)}. Run a "
        "package of that task."
    )


def _some(names: Mapping[str, Tensor] | Set[str]) -> str:
    shown = sorted(names)[:4]
    return ", ".join(map(repr, shown)) + (", …" if len(names) > len(shown) else "")
