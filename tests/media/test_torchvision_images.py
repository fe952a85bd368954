# SPDX-License-Identifier: Apache-2.0
"""Image processors that transformers computes by torchvision alone: ours make the same arrays, and sessions read them.

torchvision is not installed, and its calls are PyTorch's; beside timm the same runs with torchvision itself.
"""

import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import parity
import pytest
import torch
from fixtures_media_recipes import Eager
from fixtures_published import Opened, opened
from PIL import Image
from spelled_torchvision import spelled_out
from transformers import AutoProcessor
from transformers.image_utils import load_image

from qeff_zoo.checkpoint.config import model_config
from qeff_zoo.contract import find
from qeff_zoo.errors import CheckpointError, MediaError, UnsupportedModelError
from qeff_zoo.media.image_processor import image_processor, load_image_processor
from qeff_zoo.media.images import blank, read_image
from qeff_zoo.multimodal.encoding.vision_encoder import Vision
from qeff_zoo.multimodal.manifest import entry_of
from qeff_zoo.registry import find_recipe
from qeff_zoo.validation.content.image_arrays import difference

pytestmark = pytest.mark.turns(2)

CLASSES = {
    "llama4": "Llama4ImageProcessor", "lfm2_vl": "Lfm2VlImageProcessor",
    "cohere2_vision": "Cohere2VisionImageProcessor", "kimi_k25": "Kimi_K25ImageProcessor",
    "minimax_m3_vl": "MiniMaxM3VLImageProcessor", "gemma4_unified": "Gemma4UnifiedImageProcessor",
    "minicpm_ocr": "MiniCPMOcrImageProcessor", "nemotron_h_omni": "NemotronH_Omni_Reasoning_V3ImageProcessor",
}  # fmt: skip
#: Classes with tests of their own, whose filter is a setting, too.
OTHERS = {"perception_lm": "PerceptionLMImageProcessor", "step3p7": "Step3p7ImageProcessor"}
#: Settings of each class beside its defaults, which decide what becomes of an image.
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "llama4": [
        {}, {"max_patches": 5, "resample": 3, "image_mean": [0.48, 0.45, 0.4], "image_std": [0.26, 0.26, 0.27]},
        {"size": {"height": 64, "width": 64}, "resize_to_max_canvas": True}, {"do_normalize": False},
    ],
    "lfm2_vl": [
        {"use_thumbnail": False}, {"tile_size": 64, "max_image_tokens": 16, "min_image_tokens": 4},
        {"min_tiles": 1, "max_tiles": 4, "tile_size": 128, "max_image_tokens": 20, "min_image_tokens": 4},
        {"do_image_splitting": False, "do_normalize": False, "do_pad": False},
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
    "perception_lm": [{"resample": 2, "max_num_tiles": 4}, {"do_normalize": False, "max_num_tiles": 2}],
    "step3p7": [{"resample": 3}, {"do_normalize": False}],
}  # fmt: skip
SIZES = (1, 1), (37, 61), (5, 90), (300, 120), (401, 623), (1, 300)


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.requiring("timm"))])
def installed(request: Any) -> Iterator[bool]:
    """Return whether torchvision itself is the witness; else PyTorch's functions are in its place."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # with more, PyTorch rounds a number in 100,000 otherwise
    if request.param:
        importlib.import_module("torchvision")
        yield True
    else:
        with spelled_out():
            yield False
    torch.set_num_threads(threads)


@pytest.fixture
def reference(installed: bool) -> Any:
    """Return a function that makes transformers' processor of a type."""

    def make(model_type: str, settings: dict[str, Any]) -> Any:
        path = f"transformers.models.{model_type}.image_processing_{model_type}"
        kind = getattr(importlib.import_module(path), {**CLASSES, **OTHERS}[model_type])
        return kind(**settings)

    return make


@pytest.mark.parametrize(
    ("model_type", "settings"),
    [(name, settings) for name, every in SETTINGS.items() for settings in every],
)
def test_arrays_are_those_of_transformers(
    reference: Any, model_type: str, settings: dict[str, Any]
) -> None:
    expected = reference(model_type, settings)
    kind = {**CLASSES, **OTHERS}[model_type]
    ours = image_processor({"image_processor_type": f"{kind}Fast", **settings})
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
            if name not in right:  # for our prompts, and of images without padding
                assert name in {"grids", "pixel_attention_mask", "spatial_shapes"}
                continue
            wanted = np.asarray(torch.as_tensor(right[name]).float())
            assert array.shape == wanted.shape, (size, name)
            if model_type == "nemotron_h_omni":  # resized in float32
                np.testing.assert_allclose(array, wanted, atol=1e-5, rtol=0)
            else:
                np.testing.assert_array_equal(array, wanted, err_msg=f"{size} {name}")


def _noise(height: int, width: int, *channels: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(height).integers(0, 256, (height, width, *channels), np.uint8)


def _tiny(path: Path) -> None:
    Image.fromarray(_noise(1, 1, 3)).save(path)


def _wide(path: Path) -> None:
    Image.fromarray(_noise(20, 3000, 3)).save(path)


def _gray(path: Path) -> None:
    Image.fromarray(_noise(61, 47)).save(path)


def _clear(path: Path) -> None:
    Image.fromarray(_noise(33, 70, 4)).save(path)


def _deep(path: Path) -> None:
    Image.fromarray(_noise(40, 52).astype(np.uint16) << 8 | 0x5A).save(path)


def _rotated(path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(_noise(50, 90, 3)).save(path, exif=exif)


def _palette(path: Path) -> None:
    Image.fromarray(_noise(45, 45, 3)).quantize(16).save(path)


def _ordinary(path: Path) -> None:
    Image.fromarray(_noise(600, 900, 3)).save(path, quality=90)


#: Files that clients send: 1 x 1 and 3,000 x 20 pixels, gray, with alpha, of 16 bits, turned by EXIF, of a palette, and
#: a photograph.
FILES: dict[str, Callable[[Path], None]] = {
    "tiny.png": _tiny, "wide.png": _wide, "gray.jpg": _gray, "clear.png": _clear, "deep.png": _deep,
    "rotated.jpg": _rotated, "palette.png": _palette, "ordinary.jpg": _ordinary,
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("files")
    for name, save in FILES.items():
        save(folder / name)
    return {name: folder / name for name in FILES}


def _loaded(path: Path) -> Image.Image:
    """Load a file as transformers does; of 16 bits a pixel the high ones, as torchvision, since Pillow clips them."""
    if path.name == "deep.png":
        with Image.open(path) as image:
            return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    return load_image(str(path))


def _processor(one: Opened, installed: bool) -> Any:
    """Return transformers' processor of a published folder: its own loader's, if it can load it."""
    if installed and one.facts["config"]["model_type"] != "nemotron_h_omni":
        folder = one.subject.folder / "checkpoint"
        return AutoProcessor.from_pretrained(folder, trust_remote_code=False)
    return one.processor


@pytest.mark.parametrize("name", CLASSES)
def test_files_are_read_as_by_the_published_processor(
    installed: bool, name: str, files: dict[str, Path]
) -> None:
    """Arrays of odd files, and the image's tokens in a prompt."""
    one = opened(name)
    processor = _processor(one, installed)
    ours = load_image_processor(one.session.folder)
    options = {"return_row_col_info": True} if name == "lfm2_vl" else {}
    shown = {path: _loaded(path) for path in files.values()}
    for path, image in shown.items():
        np.testing.assert_array_equal(read_image(path), np.asarray(image), err_msg=path.name)
        within = 1e-5 if name == "nemotron_h_omni" else 0
        found = difference(ours, processor.image_processor, image, options, within)
        assert found is None, path.name
    prompt = one.facts["prompts"][0]
    several = [files[file] for file in ("gray.jpg", "tiny.png", "rotated.jpg")]
    for paths in (*([path] for path in shown), several):
        text = prompt.replace(one.marker, len(paths) * one.marker)
        right = one.process(text, [shown[path] for path in paths], processor)
        made = one.session.request(text, images=paths, generation_len=1)
        assert list(made.prompt) == np.ravel(right["input_ids"]).tolist(), paths


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
    first, second = (reader.look(process([shot])) for shot in shots)
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
    linear = {"image_processor_type": "Phi4MultimodalImageProcessor", "resample": 2}
    with pytest.raises(CheckpointError, match=r"`resample` is 2\. Expected 3, bicubic"):
        image_processor(linear)([shot])
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
