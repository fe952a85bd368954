# SPDX-License-Identifier: Apache-2.0
"""Logits in, the next token out."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.decoder import Array

#: Picks a token from the logits (vocab,) of one request.
Sampler: TypeAlias = Callable[[Array], int]


def greedy(logits: Array) -> int:
    """Pick the most likely token, the first of equals.

    Raises:
        GenerationError: A logit is not a number.
    """
    token = int(np.argmax(logits))
    if np.isnan(logits[token]):  # argmax returns the first NaN, if there is one
        raise GenerationError(
            f"The logit of token {token} is {logits[token]!r}; expected a number. The package "
            "computes nonsense: check it with `qeff-zoo validate` and build it again."
        )
    return token
