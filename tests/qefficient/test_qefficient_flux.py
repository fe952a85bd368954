# SPDX-License-Identifier: Apache-2.0
"""QEfficient's pipeline of Flux: its arguments, images of diffusers' own pipeline, and its report."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from guide_snippets import scaled_snippet
from unvalidated_builds import build_unvalidated

from qeff_zoo import qefficient, registry
from qeff_zoo.errors import GenerationError, PlanError, UnsupportedModelError
from qeff_zoo.validation import tiny_models

pytestmark = pytest.mark.turns(2)

MODULES = ["text_encoder", "text_encoder_2", "transformer", "vae_decoder"]
PROMPT = "a red cat"


def tiny(name: str, folder: Path) -> Path:
    recipe = registry.find_recipe(name)
    return tiny_models.make(recipe, recipe.tiny[0], folder / name)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("FluxPipeline", tmp_path_factory.mktemp("flux"))


@pytest.fixture(scope="module")
def flux(checkpoint: Path) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QEFF_HOME", str(checkpoint.parent / "store"))
        build_unvalidated(patch)
        yield qefficient.QEffFluxPipeline.from_pretrained(str(checkpoint))


@pytest.fixture
def expected(checkpoint: Path) -> Any:
    """Return a function that draws by diffusers."""
    painter: Any = diffusers.FluxPipeline.from_pretrained(checkpoint)
    painter.set_progress_bar_config(disable=True)

    def draw(seed: int, **options: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            generator = torch.Generator().manual_seed(seed)
            images = painter(PROMPT, generator=generator, height=32, width=48, **options).images
        return np.asarray(images[0]).astype(int)

    return draw


@pytest.mark.filterwarnings("ignore:Flux is built for target 'ort'")
def test_the_snippet_of_the_guide_runs(
    flux: Any, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {
        "black-forest-labs/FLUX.1-schnell": str(checkpoint),
        "512": "32",
        "256": "64",
    }
    monkeypatch.setenv("QEFF_HOME", str(checkpoint.parent / "store"))
    build_unvalidated(monkeypatch)
    monkeypatch.chdir(tmp_path)
    exec(scaled_snippet("Flux", changes), {})
    assert (tmp_path / "cat.png").stat().st_size


@pytest.mark.filterwarnings("ignore:Flux is built for target 'ort'")
@pytest.mark.filterwarnings("ignore:The prompt has")
def test_images_are_those_of_diffusers(flux: Any, expected: Any) -> None:
    output = flux(
        prompt=PROMPT,
        height=32,
        width=48,
        num_inference_steps=3,
        guidance_scale=0.0,
        max_sequence_length=64,
        generator=torch.manual_seed(42),
        num_images_per_prompt=1,
    )
    right = expected(42, num_inference_steps=3, guidance_scale=0.0, max_sequence_length=64)
    assert np.abs(np.asarray(output.images[0]).astype(int) - right).max() <= 1
    assert [one.module_name for one in output.pipeline_module] == MODULES
    steps = output.pipeline_module[2].perf
    assert len(steps) == 3
    text = str(output)
    for words in ("Inference Report", "  Text Encoder 2 ", "- Total steps: 3", "End-to-End"):
        assert words in text
    assert flux.modules["transformer"].qpc_path == str(flux.package.path)
    pair = flux(
        [PROMPT, "a dog"],
        height=32,
        width=48,
        num_inference_steps=2,
        negative_prompt="a dog",
        true_cfg_scale=2.0,
        generator=[torch.Generator().manual_seed(seed) for seed in (7, 8)],
        output_type="np",
    )
    right = expected(7, num_inference_steps=2, negative_prompt="a dog", true_cfg_scale=2.0)
    assert pair.images.shape == (2, 32, 48, 3)
    assert np.abs(pair.images[0] * 255 - right).max() <= 1


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"latents": torch.zeros(1)}, "takes no 'latents'"),
        ({"prompt_2": "a dog"}, "prompt_2 differs from prompt"),
        ({"output_type": "latent"}, "expected 'pil' or 'np'"),
        ({"prompt": 5}, "expected a text, or several"),
        ({"generator": [torch.Generator()] * 2}, "2 generators for 1 images"),
        ({"negative_prompt": ["a", "b"]}, "2 negative prompts for 1 prompts"),
    ],
)
def test_an_argument_is_refused_before_a_build(
    flux: Any, choices: dict[str, Any], words: str
) -> None:
    with pytest.raises(GenerationError, match=words):
        flux(**{"prompt": PROMPT, **choices})


def test_a_generator_that_was_used_is_refused(flux: Any) -> None:
    used = torch.Generator().manual_seed(3)
    torch.randn(4, generator=used)
    with pytest.raises(GenerationError, match="numbers were drawn from it"):
        flux(PROMPT, generator=used)


def test_settings_of_compile_are_checked(flux: Any, tmp_path: Path) -> None:
    file = tmp_path / "flux.json"
    with pytest.raises(FileNotFoundError, match="There is no file"):
        flux.compile(str(file))
    with pytest.raises(ValueError, match="expected a text"):
        flux.compile({"modules": {}})
    file.write_text(json.dumps({"modules": {"unet": {}}}))
    with pytest.raises(ValueError, match="has settings of 'unet'"):
        flux.compile(str(file))
    file.write_text(json.dumps({"modules": {"transformer": {"execute": {"qpc_path": "/qpc"}}}}))
    with pytest.raises(PlanError, match="has a qpc_path of transformer"):
        flux.compile(str(file))


def test_what_is_not_supported_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    load = qefficient.QEffFluxPipeline.from_pretrained
    with pytest.raises(PlanError, match="enable_first_block_cache is True"):
        load(str(checkpoint), enable_first_block_cache=True)
    with pytest.raises(PlanError, match="takes no 'vae'"):
        load(str(checkpoint), vae=object())
    with pytest.raises(UnsupportedModelError, match="is for 'FluxPipeline'"):
        load(str(tiny("StableDiffusionPipeline", tmp_path)))
    assert load(str(checkpoint)).get_default_config_path() is None
