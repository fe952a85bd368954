# SPDX-License-Identifier: Apache-2.0
"""Runs of models without any computation: tensors have sizes and no values."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch._subclasses import FakeTensorMode
from transformers import pytorch_utils


@contextmanager
def uncomputed(**choices: Any) -> Iterator[FakeTensorMode]:
    """Run models without values in a context, and keep transformers' process-wide caches clean.

    Args:
        **choices: Arguments of PyTorch's `FakeTensorMode`.
    """
    caches = mock.patch.object(pytorch_utils, "is_torchdynamo_compiling", return_value=True)
    with caches, FakeTensorMode(allow_non_fake_inputs=True, **choices) as mode, torch.no_grad():
        yield mode
