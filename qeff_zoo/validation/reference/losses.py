# SPDX-License-Identifier: Apache-2.0
"""Losses of one text, by several variants of one model: what rounding costs in nats and in perplexity.

Only the reference process imports this.
"""

from collections.abc import Callable, Sequence
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
        tokens: The text.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = torch.tensor(tokens[: MOST + 1])
        self._expected: Tensor | None = None

    def measure(
        self, variant: str, predict: Callable[[Tensor], Tensor]
    ) -> dict[str, np.ndarray[Any, Any]]:
        """Return losses and divergences of a variant.

        Args:
            variant: Its name.
            predict: Token ids (1, tokens) -> logits (1, tokens, vocabulary).

        Returns:
            `loss.VARIANT` and `divergence.VARIANT`: (targets,), in nats.
        """
        logits = predict(self._tokens[None])[0, :-1].float()
        loss = nn.functional.cross_entropy(logits, self._tokens[1:], reduction="none")
        if self._expected is None:
            self._expected, divergence = logits, torch.zeros(len(loss), dtype=torch.float64)
        else:
            pairs = zip(self._expected.split(_ROWS), logits.split(_ROWS), strict=True)
            divergence = torch.cat([_divergences(*rows) for rows in pairs])
        return {f"loss.{variant}": loss.numpy(), f"divergence.{variant}": divergence.numpy()}


def _divergences(expected: Tensor, got: Tensor) -> Tensor:
    """Return the Kullback-Leibler divergence of each row of logits."""
    left, right = (one.double().log_softmax(-1) for one in (expected, got))
    return (left.exp() * (left - right)).sum(-1).clamp(min=0)
