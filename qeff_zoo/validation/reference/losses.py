# SPDX-License-Identifier: Apache-2.0
"""Losses of one text, by several variants of one model: what rounding costs in nats and in perplexity.

Only the reference process imports this.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

#: Targets: 268 MB of a vocabulary of 262,144.
MOST = 256
_ROWS = 32


class Losses:
    """Losses of a text's tokens, and divergences from the first variant that is measured.

    Args:
        number: Number of the text among the sequences.
        tokens: The text.
    """

    def __init__(self, number: int, tokens: Sequence[int]) -> None:
        self.number, self.tokens = number, torch.tensor(tokens[: MOST + 1])
        self._expected: Tensor | None = None

    def measure(self, variant: str, logits: Tensor) -> dict[str, np.ndarray[Any, Any]]:
        """Return losses and divergences of a variant.

        Args:
            variant: Name of the variant.
            logits: Predictions of the text's tokens from the second on, (targets, vocabulary).

        Returns:
            `loss.VARIANT` and `divergence.VARIANT`: (targets,), in nats.
        """
        logits = logits.float()
        rows = zip(logits.split(_ROWS), self.tokens[1:].split(_ROWS), strict=True)
        loss = torch.cat([nn.functional.cross_entropy(*row, reduction="none") for row in rows])
        if self._expected is None:
            self._expected, divergence = logits, torch.zeros(len(loss), dtype=torch.float64)
        else:
            pairs = zip(self._expected.split(_ROWS), logits.split(_ROWS), strict=True)
            divergence = torch.cat([_divergences(*rows) for rows in pairs])
        return {f"loss.{variant}": loss.numpy(), f"divergence.{variant}": divergence.numpy()}


def _divergences(expected: Tensor, got: Tensor) -> Tensor:
    """Return the Kullback-Leibler divergence of each row of logits.

    It is log E exp(d - E d), with the differences d of the logits and their mean E by the expected probabilities: no
    two large numbers are subtracted, and float32 suffices.
    """
    probabilities, moved = expected.softmax(-1), got - expected
    moved -= (probabilities * moved).sum(-1, keepdim=True)
    return (probabilities * moved.expm1_()).sum(-1).double().log1p().clamp(min=0)
