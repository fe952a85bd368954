# SPDX-License-Identifier: Apache-2.0
"""Image processors that transformers computes by torchvision alone: ours make the same arrays, and sessions read them.

torchvision is not installed, and its calls are PyTorch's; beside timm the same runs with torchvision itself.
"""

import importlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import parity
import pytest
import torch
from absent import standing_in
from fixtures_media_recipes import Eager
from PIL import Image
from transformers import image_processing_backends as backends
from transformers.image_utils import PILImageResampling

from qeff_zoo.checkpoint.config import model_config
from qeff_zoo.contract import find
from qeff_zoo.errors import CheckpointError, MediaError, UnsupportedModelError
from qeff_zoo.media.image_processor import image_processor
from qeff_zoo.media.images import blank
from qeff_zoo.multimodal.encoding.vision_encoder import Vision
from qeff_zoo.multimodal.manifest import entry_of
from qeff_zoo.registry import find_recipe

pytestmark = pytest.mark.turns(2)

CLASSES = {
    "llama4": "Llama4ImageProcessor", "lfm2_vl": "Lfm2VlImageProcessor",
    "cohere2_vision": "Cohere2VisionImageProcessor", "kimi_k25": "Kimi_K25ImageProcessor",
    "minimax_m3_vl": "MiniMaxM3VLImageProcessor", "gemma4_unified": "Gemma4UnifiedImageProcessor",
    "minicpm_ocr": "MiniCPMOcrImageProcessor", "nemotron_h_omni": "NemotronH_Omni_Reasoning_V3ImageProcessor",
}  # fmt: skip
#: Settings of each class beside its defaults, which decide what becomes of an image.
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "llama4": [
        {}, {"max_patches": 5, "resample": 3, "image_mean": [0.48, 0.45, 0.4], "image_std": [0.26, 0.26, 0.27]},
        {"size": {"height": 64, "width": 64}, "resize_to_max_canvas": True}, {"do_normalize": False},
    ],
    "lfm2_vl": [
        {"use_thumbnail": False}, {"tile_size": 64, "max_image_tokens": 16, "min_image_tokens": 4},
        {"min_tiles": 1, "max_tiles": 4, "tile_size": 128, "max_image_tokens": 20, "min_image_tokens": 4},
        {"do_image_splitting": False, "do_normalize": False},
    ],
    "cohere2_vision": [{"size": {"height": 96, "width": 96}}, {"crop_to_patches": False}, {"max_patches": 3}],
    "kimi_k25": [{}, {"max_patches": 64, "resample": 2}, {"size": {"max_height": 8, "max_width": 8}}],
    "minimax_m3_vl": [
        {}, {"size": {"shortest_edge": 3000, "longest_edge": 40_000}, "patch_size": 8}, {"size": [672, 672]},
    ],
    "gemma4_unified": [
        {"max_soft_tokens": 70}, {"patch_size": 8, "pooling_kernel_size": 2},
        {"do_normalize": True, "image_mean": [0.5] * 3, "image_std": [0.4] * 3},
    ],
    "minicpm_ocr": [
        {}, {"small_image_upsize": "never"}, {"max_slice_nums": 4, "scale_resolution": 112, "downsample_mode": "16x"},
        {"slice_mode": False},
    ],
    "nemotron_h_omni": [
        {"min_num_patches": 16, "max_num_patches": 256}, {"norm_mean": [0.4] * 3, "norm_std": [0.2] * 3},
        {"max_model_len": 64, "min_num_patches": 8, "do_normalize": False}, {"downsample_ratio": 0.25},
    ],
}  # fmt: skip
MODES = {PILImageResampling.BILINEAR: "bilinear", PILImageResampling.BICUBIC: "bicubic"}
SIZES = (1, 1), (37, 61), (5, 90), (300, 120), (401, 623), (1, 300)


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
    mean, std = (torch.as_tensor(one, dtype=image.dtype)[:, None, None] for one in (mean, std))
    return image.sub(mean).div(std)


@contextmanager
def _spelled_out() -> Iterator[None]:
    """Give transformers' classes what they call of torchvision."""
    functions: Any = ModuleType("torchvision.transforms.v2.functional")
    functions.resize, functions.pad, functions.normalize = _resize, _pad, _normalize
    functions.InterpolationMode = SimpleNamespace(LANCZOS="lanczos", BILINEAR="bilinear")
    parents = "torchvision", "torchvision.transforms", "torchvision.transforms.v2"
    modules = {one: ModuleType(one) for one in parents}
    modules[parents[-1]].functional = functions  # type: ignore[attr-defined]
    modules[functions.__name__] = functions
    with (
        standing_in(modules),
        mock.patch.object(backends, "tvF", functions, create=True),
        mock.patch.object(backends, "pil_torch_interpolation_mapping", MODES, create=True),
    ):
        yield


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.requiring("timm"))])
def reference(request: Any) -> Iterator[Any]:
    """Return a function that makes transformers' processor of a type."""

    def make(model_type: str, settings: dict[str, Any]) -> Any:
        path = f"transformers.models.{model_type}.image_processing_{model_type}"
        return getattr(importlib.import_module(path), CLASSES[model_type])(**settings)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # with more, PyTorch rounds a number in 100,000 otherwise
    if request.param:
        importlib.import_module("torchvision")
        yield make
    else:
        with _spelled_out():
            yield make
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("model_type", "settings"),
    [(name, settings) for name, every in SETTINGS.items() for settings in every],
)
def test_arrays_are_those_of_transformers(
    reference: Any, model_type: str, settings: dict[str, Any]
) -> None:
    expected = reference(model_type, settings)
    ours = image_processor({"image_processor_type": f"{CLASSES[model_type]}Fast", **settings})
    options = {"return_row_col_info": True} if model_type == "lfm2_vl" else {}
    for size in SIZES:
        pixels = np.random.default_rng(sum(size)).integers(0, 256, (*size, 3), np.uint8)
        try:
            right = expected([Image.fromarray(pixels)], return_tensors="pt", **options)
        except ValueError:
            with pytest.raises(MediaError):
                ours([pixels])
            continue
        for name, array in ours([pixels]).items():
            wanted = np.asarray(torch.as_tensor(right[name]).float())
            assert array.shape == wanted.shape, (size, name)
            if model_type == "nemotron_h_omni":  # resized in float32
                np.testing.assert_allclose(array, wanted, atol=1e-5, rtol=0)
            else:
                np.testing.assert_array_equal(array, wanted, err_msg=f"{size} {name}")


#: Processors of the tiny models: sizes of patches and tiles that those have.
TINY: dict[str, dict[str, Any]] = {
    "llama4": {"size": {"height": 28, "width": 28}, "max_patches": 4},
    "lfm2_vl": {
        "encoder_patch_size": 4, "tile_size": 16, "max_image_tokens": 8, "min_image_tokens": 2, "max_tiles": 4,
    },
    "cohere2_vision": {"size": {"height": 28, "width": 28}, "max_patches": 4},
    "kimi_k25": {"patch_size": 4, "max_patches": 64},
    "minimax_m3_vl": {"patch_size": 4, "size": {"shortest_edge": 64, "longest_edge": 1024}},
    "gemma4_unified": {"patch_size": 2, "max_soft_tokens": 70},
    "minicpm_ocr": {"patch_size": 4, "scale_resolution": 32, "max_slice_nums": 4},
    "nemotron_h_omni": {"patch_size": 4, "min_num_patches": 4, "max_num_patches": 48},
}  # fmt: skip


@pytest.mark.parametrize("model_type", CLASSES)
def test_a_vision_encoder_reads_an_image(model_type: str) -> None:
    """As many rows as a blank image of its size is counted to have; another image has other features."""
    recipe = find_recipe(model_type)
    assert recipe.images is not None
    case = parity.Case(recipe=recipe, tiny=recipe.tiny[0])
    subject = parity.Subject(case.config, recipe)
    (part,) = (one for one in find(recipe.task).before if one.role == "vision")
    program = Eager(part.tracing(subject.transformed, images=entry_of(recipe.images)))
    config = model_config(json.loads((subject.folder / "checkpoint/config.json").read_text()))
    reader: Any = Vision(program, config, 1 << 20, recipe.images)
    process = image_processor({"image_processor_type": CLASSES[model_type], **TINY[model_type]})
    shots = [np.random.default_rng(seed).integers(0, 256, (40, 60, 3), np.uint8) for seed in (1, 2)]
    first, second = (reader.look(process([one])) for one in shots)
    assert reader.measure(process.arrays([blank(40, 60)])).rows == first.rows > 1
    assert first.digest != second.digest
    for name, features in first.features.items():
        assert np.isfinite(features).all()
        assert not np.array_equal(features, second.features[name])


def test_unsupported_image_processor_is_refused_by_name() -> None:
    letters = {"image_processor_type": "MiniCPMOcrImageProcessor", "small_image_upsize": "adaptive"}
    shot = np.zeros((40, 60, 3), np.uint8)
    with pytest.raises(UnsupportedModelError, match="'adaptive', which measures the letters"):
        image_processor(letters)([shot])
    lanczos = {"image_processor_type": "Llama4ImageProcessor", "resample": 1}
    with pytest.raises(CheckpointError, match=r"`resample` is 1\. Expected 2 \(bilinear\)"):
        image_processor(lanczos)([shot])
    still = {"image_processor_type": "Llama4ImageProcessor", "do_resize": False}
    with pytest.raises(CheckpointError, match="`do_resize` is false"):
        image_processor(still)([shot])


def test_a_class_of_a_checkpoints_code_is_that_of_its_type() -> None:
    """As in transformers, which runs no such code; a name that means nothing is refused."""
    remote = {
        "image_processor_type": "KimiK25VisionProcessor",
        "auto_map": {"AutoImageProcessor": "a.B"},
    }
    assert image_processor(remote, "Kimi_K25ImageProcessor").name == "Kimi_K25ImageProcessor"
    with pytest.raises(UnsupportedModelError, match="'KimiK25VisionProcessor'"):
        image_processor(
            {"image_processor_type": "KimiK25VisionProcessor"}, "Kimi_K25ImageProcessor"
        )
