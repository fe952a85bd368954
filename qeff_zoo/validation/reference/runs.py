# SPDX-License-Identifier: Apache-2.0
"""Base of what the reference runs: sequences through Hugging Face's model, alone or in padded batches.

Only the reference process imports this.
"""

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, nn

from qeff_zoo.validation.reference.losses import Losses
from qeff_zoo.validation.reference.routing import ChoiceRecorder
from qeff_zoo.validation.trial.faults import Fault

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

_TOGETHER = 4  # sequences of a padded batch


class Answers:
    """Runs sequences, watched or not.

    Args:
        sequences: Token ids, or what else is read.
        *halves: The model that answers; of one of images and texts, the half that does, or both.
    """

    def __init__(self, sequences: Sequence[Any], *halves: Any) -> None:
        self._sequences, self.halves = sequences, halves

    def alone(self, watching: ChoiceRecorder | None = None) -> list[Array]:
        """Run each sequence by itself, without padding; return (positions, values) each."""
        return [self.batch([number], watching)[number] for number in range(len(self._sequences))]

    def together(self, watching: ChoiceRecorder, length: int | None = None) -> list[Array]:
        """Run sequences, or their beginnings, in padded batches of those that are about as long.

        Args:
            watching: Notes or repeats choices.
            length: Tokens of a beginning; None for whole sequences.
        """
        outputs = self.some(range(len(self._sequences)), watching, length)
        return [outputs[number] for number in range(len(self._sequences))]

    def some(
        self,
        numbers: Sequence[int],
        watching: ChoiceRecorder | None = None,
        length: int | None = None,
    ) -> dict[int, Array]:
        """Run some sequences in padded batches of those that are about as long; return (positions, values) each."""
        outputs: dict[int, Array] = {}
        for group in self.groups(numbers, length):
            outputs |= self.batch(group, watching, length)
        return outputs

    def groups(self, numbers: Sequence[int], length: int | None = None) -> list[list[int]]:
        """Group the numbers of sequences, or of their beginnings, that are about as long."""
        return alike({number: len(self._beginning(number, length)) for number in numbers})

    def batch(
        self,
        numbers: list[int],
        watching: ChoiceRecorder | None = None,
        length: int | None = None,
    ) -> dict[int, Array]:
        """Run some sequences, or their beginnings, in one padded batch; return (positions, values) each."""
        return dict(zip(numbers, self._watched(numbers, watching, length), strict=True))

    def faulty(self, fault: Fault) -> dict[int, Array]:
        """Run the sequences of a stage with its fault; return (positions, values) each, nothing if there is none."""
        return {}

    @property
    def reads_texts(self) -> bool:
        """Whether sentence-transformers, if it saved the checkpoint, reads the texts of the task."""
        return self.witness is not None

    @property
    def witness(self) -> str | None:
        """Library that computes what follows the model's states; None for nothing."""
        return None

    @property
    def plain(self) -> bool:
        """Whether answers are logits of the tokens that the model reads, and of nothing else."""
        return False

    def tokens(self, length: int | None = None) -> int | None:
        """Return the tokens of all sequences, or of their beginnings; None if calls are counted instead."""
        return None

    def losses(self) -> "Losses | None":
        """Begin to compare what variants predict of one text; None where answers are not logits of its tokens."""
        return None

    @contextmanager
    def scoring(self, losses: "Losses | None", variant: str) -> Iterator[dict[str, Array]]:
        """Measure the losses of a variant in a block that runs it; yields what `Losses.measure` returns, in the end."""
        yield {}

    def predict(self, input_ids: Tensor) -> Tensor:
        """Return the logits of all tokens of texts, (rows, tokens, vocabulary), where `plain`."""
        raise NotImplementedError

    def beginnings(self, numbers: Sequence[int], length: int) -> dict[int, Array]:
        """Run the beginnings of some sequences; return (positions, values) each, of the positions within them.

        Whole sequences, unless an answer depends on the tokens before it alone.
        """
        if not self.plain:
            return self.some(numbers)
        return {number: self.run_prefix(number, length) for number in numbers}

    def likeliest(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[int]:
        """Return the likeliest token behind a prompt, and behind each of the tokens that follow it, where `plain`."""
        logits = self.predict(torch.tensor([[*prompt, *tokens[:-1]]]))
        most_likely: list[int] = logits[0, len(prompt) - 1 :].argmax(-1).tolist()
        return most_likely

    def run_prefix(self, number: int, length: int, watching: ChoiceRecorder | None = None) -> Array:
        """Run the beginning of a sequence, or more; return (positions, values) of those within it."""
        return self._watched([number], watching, length)[0]

    def _watched(
        self, numbers: list[int], watching: ChoiceRecorder | None, length: int | None = None
    ) -> list[Array]:
        lengths = [len(self._beginning(number, length)) for number in numbers]
        with watching(numbers, lengths) if watching else nullcontext():
            return self._run(numbers, length)

    def _beginning(self, number: int, length: int | None) -> Any:
        """Return what is run of a sequence."""
        return self._sequences[number][:length]

    def _run(self, numbers: list[int], length: int | None) -> list[Array]:
        raise NotImplementedError

    def greedy(self, prompt: Sequence[int], length: int) -> list[int]:
        """Continue the beginning of the first sequence, where answers are logits of tokens."""
        raise NotImplementedError


def alike(lengths: Mapping[int, int]) -> list[list[int]]:
    """Group the numbers of sequences: at most four, none half as long as another."""
    groups: list[list[int]] = []
    for number in sorted(lengths, key=lambda number: -lengths[number]):
        last = groups[-1] if groups else []
        if last and len(last) < _TOGETHER and 2 * lengths[number] >= lengths[last[0]]:
            last.append(number)
        else:
            groups.append([number])
    return groups


def padded(sequences: Sequence[Sequence[int]], padding: int = 0) -> dict[str, Tensor]:
    """Return `input_ids` and `attention_mask`, (sequences, width), padded at the end.

    Args:
        sequences: Token ids.
        padding: Token at the end of shorter ones.
    """
    width = max(map(len, sequences))
    input_ids = torch.full((len(sequences), width), padding)
    attention_mask = torch.zeros_like(input_ids)
    for row, sequence in enumerate(sequences):
        input_ids[row, : len(sequence)] = torch.tensor(sequence)
        attention_mask[row, : len(sequence)] = 1
    return {"input_ids": input_ids, "attention_mask": attention_mask}


@contextmanager
def hooked(module: nn.Module, hook: Callable[..., Any]) -> Iterator[None]:
    """Let a hook change the arguments of a module for a while, in this thread."""
    thread = threading.current_thread()

    def run(*args: Any) -> Any:
        return hook(*args) if threading.current_thread() is thread else None

    handle = module.register_forward_pre_hook(run)
    try:
        yield
    finally:
        handle.remove()


def read_request() -> dict[str, Any]:
    """Wait for the request of the process that started us; end where that ends without one."""
    line = sys.stdin.readline()
    if not line:
        sys.exit()
    return cast("dict[str, Any]", json.loads(line))


def tick(tokens: int = 1) -> None:
    """Notify the waiting process that another call is done.

    Args:
        tokens: Number of tokens of the call, if it was announced.
    """
    sys.stdout.write(f"{tokens}\n")
    sys.stdout.flush()


def announce(tokens: int) -> None:
    """Notify the waiting process of the number of tokens that calls will have."""
    sys.stdout.write(f"of {tokens}\n")
    sys.stdout.flush()
