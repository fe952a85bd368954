# SPDX-License-Identifier: Apache-2.0
"""Functions of torchvision, which is not installed, spelled out with PyTorch's, for transformers' image processors."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from transformers import image_processing_backends as backends
from transformers.image_utils import PILImageResampling

from qeff_zoo.checkpoint.processors import standing_in

MODES = {PILImageResampling.BILINEAR: "bilinear", PILImageResampling.BICUBIC: "bicubic"}


def _resize(image: Any, size: Any, interpolation: Any, antialias: bool) -> Any:
    if [*image.shape[-2:]] == [*size]:
        return image
    whole = image if image.ndim == 4 else image[None]
    interpolation = MODES.get(interpolation, interpolation)
    options = {"mode": interpolation, "align_corners": False, "antialias": antialias}
    made = torch.nn.functional.interpolate(whole, tuple(size), **options)
    return made if image.ndim == 4 else made[0]


def _pad(image: Any, padding: Any, fill: Any = 0, padding_mode: str = "constant") -> Any:
    left, top, right, bottom = padding
    assert (left, top, padding_mode) == (0, 0, "constant")
    assert not np.any(fill)
    return torch.nn.functional.pad(image, (0, right, 0, bottom))


def _normalize(image: Any, mean: Any, std: Any, inplace: bool = False) -> Any:
    mean, std = (
        torch.as_tensor(values, dtype=image.dtype)[:, None, None] for values in (mean, std)
    )
    return image.sub(mean).div(std)


@contextmanager
def spelled_out() -> Iterator[None]:
    """Give transformers' classes what they call of torchvision."""
    functions: Any = ModuleType("torchvision.transforms.v2.functional")
    functions.resize, functions.pad, functions.normalize = _resize, _pad, _normalize
    functions.InterpolationMode = SimpleNamespace(LANCZOS="lanczos", BILINEAR="bilinear")
    parents = "torchvision", "torchvision.transforms", "torchvision.transforms.v2"
    modules = {parent: ModuleType(parent) for parent in parents}
    modules[parents[-1]].functional = functions  # type: ignore[attr-defined]
    modules[functions.__name__] = functions
    with (
        standing_in(modules),
        mock.patch.object(backends, "tvF", functions, create=True),
        mock.patch.object(backends, "pil_torch_interpolation_mapping", MODES, create=True),
    ):
        yield
