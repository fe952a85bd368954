# SPDX-License-Identifier: Apache-2.0
"""Runs of models without any computation: tensors have sizes and no values."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from unittest import mock

import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import pytorch_utils

_T = TypeVar("_T")


@contextmanager
def uncomputed(**choices: Any) -> Iterator[FakeTensorMode]:
    """Run models without values in a context, and keep transformers' process-wide caches clean.

    Args:
        **choices: Arguments of PyTorch's `FakeTensorMode`.
    """
    with (
        _clean_caches(),
        FakeTensorMode(allow_non_fake_inputs=True, **choices) as mode,
        torch.no_grad(),
    ):
        yield mode


def without_values(model: torch.nn.Module, run: Callable[[], _T]) -> _T:
    """Run a model without any computation, and return what `run` does.

    It runs on the meta device, which takes less than half of the time of fake tensors, and with these if it reads
    numbers from tensors that it makes itself.

    Args:
        model: Model that `run` calls. Tables that it moves to the device of its inputs are put back.
        run: Function that may run twice.
    """
    with suppress(RuntimeError), _on_meta(model):
        return run()
    with uncomputed():
        return run()


@contextmanager
def _on_meta(model: torch.nn.Module) -> Iterator[None]:
    holders = [place for module in model.modules() for place in (vars(module), module._buffers)]
    before = [(place, dict(place)) for place in holders]
    try:
        with _clean_caches(), _OnMeta(), torch.no_grad():  # type: ignore[no-untyped-call]
            yield
    finally:
        for place, values in before:
            for name, value in place.items():
                if isinstance(value, torch.Tensor) and value.is_meta:
                    place[name] = values.get(name, value)


def _clean_caches() -> Any:
    return mock.patch.object(pytorch_utils, "is_torchdynamo_compiling", return_value=True)


class _OnMeta(TorchDispatchMode):
    """Gives operations tensors on the meta device in place of others, and lets them make no others."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = {name: _hollow(value) for name, value in (kwargs or {}).items()}
        if any(argument.name == "device" for argument in func._schema.arguments):
            given["device"] = torch.device("meta")
        return func(*map(_hollow, args), **given)


def _hollow(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_hollow(item) for item in value]
    if not isinstance(value, torch.Tensor) or value.is_meta:
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
