# SPDX-License-Identifier: Apache-2.0
"""Repeating what failed because of the network, and of nothing else."""

import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from qeff_zoo.errors import RemoteError

_Result = TypeVar("_Result")
ATTEMPTS = 5
_FIRST_PAUSE = 0.25
_LONGEST_PAUSE = 8.0


def pauses(attempts: int = ATTEMPTS) -> Iterator[float]:
    """Return the seconds to wait between attempts: they double, and differ from client to client.

    Args:
        attempts: How many there are, the first included.
    """
    for number in range(attempts - 1):
        yield min(_FIRST_PAUSE * 2**number, _LONGEST_PAUSE) * random.uniform(0.5, 1.0)


def retried(action: Callable[[], _Result]) -> _Result:
    """Do something until it succeeds, a limited number of times.

    Args:
        action: Safe to be done twice; raises a `RemoteError` that is `retryable` when it should be.

    Raises:
        RemoteError: What the last attempt raised.
    """
    for pause in pauses():
        try:
            return action()
        except RemoteError as error:
            if not error.retryable:
                raise
        time.sleep(pause)
    return action()
