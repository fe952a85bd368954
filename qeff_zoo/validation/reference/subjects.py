# SPDX-License-Identifier: Apache-2.0
"""The reference of a task, selected by a request: sequences in, answers out. See `Task.reference`.

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
    """Return the answers of the unpatched model to the sequences of a request.

    Args:
        model: Hugging Face's model for the request's task.
        request: Request with `task`, and the fields that its reference reads.
        arrays: Arrays of the request: `audio.sequence`, and images or audio among text, see `Media`.
    """
    answers: Answers = contract.find(request["task"]).reference()(model, request, arrays)
    return answers
