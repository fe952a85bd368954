# SPDX-License-Identifier: Apache-2.0
"""A decoder whose last layer alone is damaged: the other layers compute what they did before, and are left out.

Only the reference process imports this. The last layer's input is recorded while the right model runs; a damaged one
begins there. Whether that is the same is not assumed but tried: an undamaged model that begins there must return the
recorded answers bit by bit, or every pass is run whole. Models whose last layer reads more of earlier layers, such as
their keys and values, fail that trial.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor, nn

from qeff_zoo.validation.reference.damage import HeadDamage, damaged
from qeff_zoo.validation.reference.runs import Answers

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class Resuming:
    """Passes of a decoder from its last layer on.

    Args:
        model: Hugging Face's.
        answers: Answers of the reference.
    """

    def __init__(self, model: Any, answers: Answers) -> None:
        self._answers = answers
        decoder = model.get_decoder() if answers.plain and hasattr(model, "get_decoder") else None
        layers = getattr(decoder, "layers", None)
        self._layers: list[nn.Module] = [*layers] if isinstance(layers, nn.ModuleList) else []
        self._states: list[Tensor] = []
        self._tried: bool | None = None

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the input of the last layer, in a block that runs each sequence by itself."""
        self._states, self._tried = [], None

        def note(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if args and isinstance(args[0], Tensor) and isinstance(output, Tensor):
                self._states.append(args[0])

        with ExitStack() as stack:
            for layer in self._layers[-1:]:
                stack.callback(layer.register_forward_hook(note).remove)
            yield

    def beginnings(
        self, damage: HeadDamage, numbers: Sequence[int], length: int, right: Sequence[Array]
    ) -> tuple[str, Mapping[int, Array]]:
        """Run the beginnings of sequences with a damage; return it in words, and (positions, values) each.

        Args:
            damage: The damage.
            numbers: Numbers of the sequences.
            length: Tokens of a beginning.
            right: Answers of the recorded model, by sequence.
        """
        if self._tried is None:
            self._tried = self._is_same(right)
        with damaged(self._answers.halves, damage) as words:
            if not (self._tried and self._is_in_last(words)):
                return words, self._answers.beginnings(numbers, length)
            states = {}
            for number in numbers:
                with self._from_last(number):
                    states[number] = self._answers.run_prefix(number, length)
            return words, states

    def _is_in_last(self, words: str) -> bool:
        """Return whether a damage, by its words, is in the last layer."""
        return f".layers.{len(self._layers) - 1}." in f".{words.rpartition(' ')[2]}"

    def _is_same(self, right: Sequence[Array]) -> bool:
        """Return whether the undamaged model returns the same answers of the shortest sequence."""
        if len(self._states) != len(right) or len(self._layers) < 2:
            return False
        number = min(range(len(right)), key=lambda number: self._states[number].shape[1])
        try:
            with self._from_last(number):
                got = self._answers.run_prefix(number, self._states[number].shape[1])
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
            return False  # the last layer needs more than its input
        return np.array_equal(got, right[number])

    @contextmanager
    def _from_last(self, number: int) -> Iterator[None]:
        """Begin at the last layer, with what it read of a sequence."""
        *others, last = self._layers

        def put(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return (self._states[number][:, : args[0].shape[1]], *args[1:])

        for layer in others:
            layer.forward = _unchanged
        handle = last.register_forward_pre_hook(put)
        try:
            yield
        finally:
            handle.remove()
            for layer in others:
                del layer.forward


def _unchanged(hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
    return hidden_states
