# SPDX-License-Identifier: Apache-2.0
"""Session of a multiple-choice model: a prompt and its choices in, the probability of each choice out."""

from collections.abc import Sequence

import numpy as np

from qeff_zoo.contract import MULTIPLE_CHOICE
from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.activations import softmax
from qeff_zoo.runtime.program import Array
from qeff_zoo.tasks.encoders.session import EncoderSession


class MultipleChoiceSession(EncoderSession):
    """An opened package of the task `multiple-choice`; see `EncoderSession` for how to open it.

    Example:
        >>> session = qeff_zoo.load("packages/bert-base-swag")  # doctest: +SKIP
        >>> session.choose(
        ...     "She opens the door and", ["walks in.", "boils an egg."]
        ... )  # doctest: +SKIP
        [0.97, 0.03]
    """

    task = MULTIPLE_CHOICE
    output = "logits"
    takes_pairs = True

    def choose(
        self, prompt: str, choices: Sequence[str], *, adapter: str | None = None
    ) -> list[float]:
        """Return the probability of each choice, in their order.

        Args:
            prompt: Text before each choice.
            choices: At least two texts; with the prompt truncated to `max_length` tokens, the longer text first.
            adapter: Name of one of `adapters`; None for the base model.

        Raises:
            GenerationError: The prompt or a choice is empty, or there are fewer than two choices.
        """
        logits = self._answer(self.read(self.pairs_of(prompt, choices)), adapter)
        return self.shares_of(logits)

    def pairs_of(self, prompt: str, choices: Sequence[str]) -> list[tuple[str, str]]:
        """Return the prompt with each choice.

        Raises:
            GenerationError: See `choose`.
        """
        if isinstance(choices, str) or len(choices) < 2:
            raise GenerationError(
                f"The choices are {choices!r}; expected at least two texts. Add others."
            )
        for name, text in (("prompt", prompt), *(("choice", choice) for choice in choices)):
            if not isinstance(text, str) or not text.strip():
                raise GenerationError(f"A {name} is {text!r}; expected a text. Write one.")
        return [(prompt, choice) for choice in choices]

    def shares_of(self, logits: Sequence[Array]) -> list[float]:
        """Return the probability of each choice by the outputs of the program for the pairs."""
        shares = softmax(np.concatenate(logits).astype(np.float64))
        return [float(share) for share in shares]
