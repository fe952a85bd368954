# SPDX-License-Identifier: Apache-2.0
"""The reference of a task, chosen by a request: sequences in, the answers that matter out. See `Task.reference`.

Only the reference process imports this.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from qeff_zoo import contract
from qeff_zoo.validation.reference.runs import Answers

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


def answers_of(
    model: Any, request: Mapping[str, Any], arrays: Mapping[str, Array] = MappingProxyType({})
) -> Answers:
    """Return what answers a request's sequences.

    Args:
        model: Hugging Face's, for the request's task.
        request: With `task`, and what that takes.
        arrays: Arrays of the request: `audio.sequence`, and images or audio among text, see `Media`.
    """
    answers: Answers = contract.find(request["task"]).reference()(model, request, arrays)
    return answers
