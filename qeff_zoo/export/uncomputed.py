# SPDX-License-Identifier: Apache-2.0
"""Models that run without computing anything: tensors have sizes and no values."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch._subclasses import FakeTensorMode
from transformers import pytorch_utils


@contextmanager
def uncomputed(**choices: Any) -> Iterator[FakeTensorMode]:
    """Let models run without values; transformers' caches of a whole process keep nothing of that.

    Args:
        **choices: Arguments of PyTorch's `FakeTensorMode`.
    """
    caches = mock.patch.object(pytorch_utils, "is_torchdynamo_compiling", return_value=True)
    with caches, FakeTensorMode(allow_non_fake_inputs=True, **choices) as mode, torch.no_grad():
        yield mode
