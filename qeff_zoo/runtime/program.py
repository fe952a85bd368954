# SPDX-License-Identifier: Apache-2.0
"""Program, opened: it runs calls on its states. Each target implements the protocol."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.graph.states import State

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
#: Output of a program that samples on the device, in place of logits.
TOKENS = "next_tokens"
Specializations: TypeAlias = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """Input or output that is not a state.

    Args:
        dtype: Data type.
        shape: Size or symbol of each axis; None for an axis that each call sets.
    """

    dtype: np.dtype[Any]
    shape: tuple[Any, ...]

    @classmethod
    def by_name(cls, entries: Sequence[Mapping[str, Any]]) -> "dict[str, Tensor]":
        """Return the inputs or outputs of a program in a manifest."""
        return {
            entry["name"]: cls(dtype=np.dtype(entry["dtype"]), shape=tuple(entry["shape"]))
            for entry in entries
        }


class Memory(dict[str, Array]):
    """States of a program by name, batch slots first, on the host.

    Args:
        arrays: The states.
        is_current: Whether the arrays are the program's states, so that the host may read them; else they are staged
            for a device that keeps the states, and the host may only write.
    """

    def __init__(self, arrays: Mapping[str, Array], *, is_current: bool = True) -> None:
        super().__init__(arrays)
        self.is_current = is_current
        #: Batch slots that the host has written, and that a device with its own states must take over.
        self.written: set[int] = set()


class Program(Protocol):
    """Program that runs calls, one at a time: calls share the states.

    A call is for some batch slots: those of static batching, or of continuous batching. A call that starts at
    position 0 never attends to KV states of an earlier request in its slot.
    """

    @property
    def specializations(self) -> Specializations:
        """Specializations of the program, as in the manifest."""

    @property
    def inputs(self) -> Mapping[str, Tensor]:
        """Inputs of a call, by name, besides states."""

    @property
    def outputs(self) -> Mapping[str, Tensor]:
        """Outputs of a call, by name, besides states."""

    @property
    def states(self) -> Sequence[State]:
        """States that the program retains."""

    @property
    def memory(self) -> Memory | None:
        """States on the host; None if the device keeps all of them, without access from the host."""

    def together(
        self, starts: Mapping[int, int], *, prefill: bool, kept: int = 1
    ) -> list[list[int]]:
        """Split batch slots into groups that one call takes.

        Args:
            starts: Position of the first new token by batch slot.
            prefill: Whether slots may have several new tokens.
            kept: Number of tokens per slot with returned logits.
        """

    def run(self, inputs: Mapping[str, Array], rows: Sequence[int] = ()) -> Mapping[str, Array]:
        """Run one call.

        Args:
            inputs: Arrays for all of `inputs`.
            rows: Batch slots of the call, as `together` returns them; empty without states.

        Returns:
            Arrays for all of `outputs`.
        """


@runtime_checkable
class HoldsLoraWeights(Protocol):
    """Additional interface of a program that retains LoRA matrices from call to call."""

    @property
    def matrices(self) -> Sequence[State]:
        """LoRA matrices that the program retains; they are not among its `states`, which belong to batch slots."""

    def retain(self, states: Mapping[str, Array]) -> None:
        """Set the matrices for the next call. Thread-safe.

        Args:
            states: Matrices of all adapter slots, by name.
        """


@runtime_checkable
class SplitsPrompts(Protocol):
    """Additional property of a program whose results do not depend on how a prompt is split into calls."""

    @property
    def split(self) -> int:
        """Number of tokens: calls of two tokens or more that begin at its multiples return the same bits; 0 if none."""


@runtime_checkable
class HasMaxPatches(Protocol):
    """Additional property of a program that takes images up to a largest size."""

    @property
    def most_patches(self) -> int:
        """Maximum number of patches of an image; 0 without such a limit."""


#: Inputs, rows and outputs of a call.
Observe: TypeAlias = Callable[[Mapping[str, Array], Sequence[int], Mapping[str, Array]], None]


class Observed:
    """Program wrapper that reports calls.

    Args:
        program: Program to wrap.
        observe: A callback for every call, after it has ended.
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
    """Require that a program belongs to a task.

    Args:
        program: Opened program.
        folder: Folder of its package, for the message.
        task: Hub pipeline tag, for the message.
        inputs: Names that the task's programs have.
        outputs: Names that the task's programs have; `TOKENS` may replace them.

    Raises:
        GenerationError: If the program is of another task.
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


def to_numpy(array: Any) -> Array:
    """Return an array of torch or numpy, or a list, as numpy's array; numpy has no bfloat16."""
    if hasattr(array, "detach"):
        array = array.detach().cpu()
        array = array.float() if str(array.dtype) == "torch.bfloat16" else array
    return np.asarray(array)
