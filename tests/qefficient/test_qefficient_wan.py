# SPDX-License-Identifier: Apache-2.0
"""QEfficient's pipelines of Wan: their arguments, videos of diffusers' own pipelines, and their report."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import diffusers.utils
import numpy as np
import pytest
import torch
from guide_snippets import scaled_snippet
from PIL import Image
from unvalidated_builds import build_unvalidated

import qeff_zoo
from qeff_zoo import qefficient, registry
from qeff_zoo.errors import GenerationError, PlanError, UnsupportedModelError
from qeff_zoo.validation import tiny_models
from qeff_zoo.validation.reference.pipelines import embeds_of

pytestmark = [
    pytest.mark.turns(2),
    pytest.mark.filterwarnings("ignore:Wan.* is built for target 'ort'"),
    # diffusers makes arrays of tensors in a way that numpy 2 deprecates.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

PROMPT = "a red cat"
SMALL: dict[str, Any] = {"height": 16, "width": 32, "num_frames": 5, "num_inference_steps": 4}
IMAGE = Image.fromarray(np.arange(20 * 36 * 3, dtype=np.uint32).reshape(20, 36, 3).astype(np.uint8))


@pytest.fixture(scope="module")
def wan(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, Path]]:
    """Return a function that returns a pipeline by its class, and its checkpoint."""
    made: dict[str, tuple[Any, Path]] = {}

    def find(name: str) -> tuple[Any, Path]:
        if name not in made:
            recipe, folder = registry.find_recipe(name), tmp_path_factory.mktemp(name)
            checkpoint = tiny_models.make(recipe, recipe.tiny[0], folder / "checkpoint")
            found = getattr(qeff_zoo, f"QEff{name}").from_pretrained(str(checkpoint))
            with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                patch.setenv("QEFF_HOME", str(folder / "store"))
                build_unvalidated(patch)
                found.compile()
            made[name] = found, checkpoint
        return made[name]

    return find


def test_the_snippet_of_the_guide_runs(
    wan: Callable[[str], tuple[Any, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, checkpoint = wan("WanPipeline")
    changes = {
        "Wan-AI/Wan2.2-T2V-A14B-Diffusers": str(checkpoint),
        "num_frames=81": "num_frames=5, num_inference_steps=4",
        "height=480, width=832": "height=16, width=32",
    }
    written: list[Any] = []  # imageio is not installed for tests
    monkeypatch.setattr(
        diffusers.utils,
        "export_to_video",
        lambda *arguments, **named: written.append((*arguments, named)),
    )
    monkeypatch.setenv("QEFF_HOME", str(found.package.path.parents[1]))
    build_unvalidated(monkeypatch)
    exec(scaled_snippet("Wan", changes), {})
    ((frames, name, options),) = written
    assert (frames.shape, name, options) == ((5, 16, 32, 3), "cat.mp4", {"fps": 16})


@pytest.mark.parametrize("name", ["WanPipeline", "WanImageToVideoPipeline"])
def test_videos_are_those_of_diffusers(name: str, wan: Callable[[str], tuple[Any, Path]]) -> None:
    found, checkpoint = wan(name)
    image = {"image": IMAGE} if "Image" in name else {}
    options = {**SMALL, "guidance_scale": 4.0, "guidance_scale_2": 2.0, **image}
    output = found(prompt=PROMPT, generator=torch.manual_seed(42), **options)
    painter: Any = diffusers.DiffusionPipeline.from_pretrained(checkpoint)
    painter.set_progress_bar_config(disable=True)
    texts = embeds_of(painter, PROMPT, None) if image else {"prompt": PROMPT}
    (expected,) = painter(**texts, generator=torch.Generator().manual_seed(42), **options).frames
    assert output.images.shape == (1, 5, 16, 32, 3)
    assert np.abs(output.images[0] - expected).max() <= 1.01 / 255
    modules = [*(["vae_encoder"] if image else []), "transformer", "vae_decoder"]
    assert [one.module_name for one in output.pipeline_module] == modules == [*found.modules]
    assert len(output.pipeline_module[-2].perf) == 8  # with and without the prompt
    for words in ("Inference Report", "  Transformer ", "- Total steps: 8", "End-to-End"):
        assert words in str(output)
    assert found.modules["transformer"].qpc_path == str(found.package.path)
    usual = {name: value for name, value in options.items() if name != "guidance_scale_2"}
    (frames,) = found(prompt=PROMPT, output_type="pil", **usual).images
    assert [frame.size for frame in frames] == [(32, 16)] * 5


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"latents": torch.zeros(1)}, "`QEffWanPipeline` takes no 'latents'"),
        ({"cache_threshold_high": 0.1}, "takes no 'cache_threshold_high'"),
        ({"output_type": "latent"}, "expected 'pil' or 'np'"),
        ({"return_dict": False}, "return_dict is False"),
        ({"prompt": 5}, "expected a text, or several"),
        ({"num_frames": 6}, "frames is 6; expected 1 more than a multiple of 4"),
        ({"max_sequence_length": 513}, "max_sequence_length is 513; expected 1 to 512"),
        ({"negative_prompt": ["a", "b"]}, "2 negative prompts for 1 prompts"),
    ],
)
def test_arguments_are_refused(
    choices: dict[str, Any], words: str, wan: Callable[[str], tuple[Any, Path]]
) -> None:
    with pytest.raises(GenerationError, match=words):
        wan("WanPipeline")[0](**{"prompt": PROMPT, **SMALL, **choices})


def test_modules_are_named_as_in_qefficient(wan: Callable[[str], tuple[Any, Path]]) -> None:
    checkpoint = str(wan("WanPipeline")[1])
    load = qefficient.QEffWanPipeline.from_pretrained
    apart = load(checkpoint, use_unified=False)
    assert [*apart.modules] == ["transformer_high", "transformer_low", "vae_decoder"]
    with pytest.raises(PlanError, match="enable_first_block_cache is True"):
        load(checkpoint, enable_first_block_cache=True)
    with pytest.raises(UnsupportedModelError, match="is for 'WanImageToVideoPipeline'"):
        qefficient.QEffWanImageToVideoPipeline.from_pretrained(checkpoint)
