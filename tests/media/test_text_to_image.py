# SPDX-License-Identifier: Apache-2.0
"""Text to image, and image to image: latents and pixels are those of diffusers' pipelines for the same inputs."""

import inspect
import io
import json
import math
import re
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from checkout import ROOT
from local_hub import LocalHub
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import CLIPTokenizer

from qeff_zoo import cli, registry
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.errors import CheckpointError, GenerationError, MediaError, PlanError, ZooError
from qeff_zoo.export import loader
from qeff_zoo.package import Package
from qeff_zoo.pipeline import build
from qeff_zoo.plan.request import Request
from qeff_zoo.plan.resolve import check
from qeff_zoo.sessions import InitialImage, TextToImageSession, open_session
from qeff_zoo.store import Store
from qeff_zoo.validation.reference.pipelines import with_image
from qeff_zoo.validation.reference.tiny_pipelines import write
from qeff_zoo.validation.tiny_models import request_of
from qeff_zoo.weights.pipeline_bindings import bind_components

pytestmark = [
    pytest.mark.turns(3),
    # diffusers makes arrays of tensors in a way that numpy 2 deprecates.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

EVERY = [one for one in registry.list_recipes() if one.pipeline]
OF_IMAGES = [one.model_type for one in EVERY if one.task == "text-to-image"]
#: Pipelines that draw masked parts alone, and the others.
INPAINTING = [name for name in OF_IMAGES if name.endswith("InpaintPipeline")]
PIPELINES = [name for name in OF_IMAGES if name not in INPAINTING]
PROMPT = "A red cat on the house, 3 dogs & thé rain"
LONG = "the cat and the dog in the house " * 12


class Built:
    """A tiny pipeline: diffusers' own, and a session of its package; made when first used.

    Args:
        name: Class of the pipeline.
        folder: A folder for the checkpoint and the store.
    """

    def __init__(self, name: str, folder: Path) -> None:
        recipe = registry.find_recipe(name)
        self.checkpoint = folder / "checkpoint"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            write(str(self.checkpoint), request_of(recipe, recipe.tiny[0]))
            self.store = Store(folder / "store")
            self.package: Package = build(
                str(self.checkpoint), validate=False, store=self.store
            ).package
            self.pipeline: Any = diffusers.DiffusionPipeline.from_pretrained(self.checkpoint)
        self.pipeline.set_progress_bar_config(disable=True)
        opened = open_session(self.package, threads=1)
        assert isinstance(opened, TextToImageSession)
        self.session = opened

    def beginning_with_an_image(self, *, masked: bool) -> Any:
        """Return diffusers' pipeline of image to image, or of inpainting, with the same components."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return with_image(self.pipeline, masked=masked)

    def expected(
        self, prompt: str, seed: int, steps: int, pipeline: Any = None, **options: Any
    ) -> tuple[Any, Any]:
        """Return the last latents of diffusers' pipeline, and its pixels from 0 to 1."""
        last: list[Any] = []

        def note(_: Any, step: int, time: Any, values: Any) -> Any:
            last[:] = [values["latents"].numpy()]
            return values

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            images = (pipeline or self.pipeline)(
                prompt,
                generator=torch.Generator().manual_seed(seed),
                num_inference_steps=steps,
                output_type="np",
                callback_on_step_end=note,
                **options,
            ).images
        return last[0], images[0]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Built]:
    made: dict[str, Built] = {}

    def find(name: str) -> Built:
        if name not in made:
            made[name] = Built(name, tmp_path_factory.mktemp(name))
        return made[name]

    return find


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", PIPELINES)
def test_options_that_are_left_out_are_those_of_diffusers(
    name: str, built: Callable[[str], Built]
) -> None:
    made = built(name)
    pipeline, usual = made.pipeline, made.session.options()
    known = inspect.signature(type(pipeline).__call__).parameters
    assert usual.steps == known["num_inference_steps"].default
    assert usual.guidance_scale == known["guidance_scale"].default
    side = getattr(pipeline, "default_sample_size", None) or pipeline.unet.config.sample_size
    assert {usual.height, usual.width} == {side * pipeline.vae_scale_factor}
    assert made.session.options().seed != usual.seed  # random


@pytest.fixture
def sd(built: Callable[[str], Built]) -> Built:
    return built("StableDiffusionPipeline")


@pytest.fixture
def copied(sd: Built, tmp_path: Path) -> Path:
    """A copy of a checkpoint, to damage."""
    return Path(shutil.copytree(sd.checkpoint, tmp_path / "checkpoint"))


def changed(folder: Path, name: str, **values: Any) -> None:
    """Change fields of a JSON file."""
    path = folder / name
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, **values}))


# --- images --------------------------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"negative_prompt": "the dog", "guidance_scale": 3.0},
        {"guidance_scale": 1.0, "rows": 2, "columns": 5},
    ],
    ids=["usual", "negative", "unguided"],
)
def test_images_are_those_of_diffusers(
    name: str, options: dict[str, Any], built: Callable[[str], Built]
) -> None:
    made, given = built(name), dict(options)
    session = made.session
    unit = session.family.unit
    given["height"], given["width"] = (unit * given.pop(side, 4) for side in ("rows", "columns"))
    if "negative_prompt" in given:
        given |= session.family.guided
    latents, pixels = made.expected(PROMPT, 7, 3, **given)
    chosen = session.options(seed=7, steps=3, **given)
    *_, last = session.denoise(session.conditions(PROMPT, chosen), chosen)
    np.testing.assert_allclose(last, latents, atol=3e-5 * float(latents.std()))
    image = session.values_of(last, chosen).transpose(1, 2, 0)
    np.testing.assert_allclose(image, pixels, atol=1e-4)
    drawn = session.draw(PROMPT, seed=7, steps=3, **given).pixels
    assert np.abs(drawn.astype(int) - (pixels * 255).round().astype(int)).max() <= 1
    other = session.draw(PROMPT, seed=8, steps=3, **given).pixels
    assert np.abs(drawn.astype(int) - other).max() > 20  # the seed counts


def test_a_prompt_that_is_too_long_loses_its_end_with_a_warning(
    sd: Built, caplog: pytest.LogCaptureFixture
) -> None:
    _, expected = sd.expected(LONG, 1, 1)
    lost = re.search(r"up to 77 tokens: \['(.*)'\]", caplog.text)[1]  # type: ignore[index]
    with pytest.warns(UserWarning, match=rf"98 tokens.* reads 77; .*: '{lost}'\."):
        image = sd.session.draw(LONG, seed=1, steps=1)
    assert np.abs(image.pixels / 255 - expected).max() < 0.005


def test_tokens_are_those_of_transformers(sd: Built) -> None:
    tokenizer = CLIPTokenizer.from_pretrained(sd.checkpoint / "tokenizer")
    for text in (
        "",
        " ",
        PROMPT,
        LONG,
        "don't  STOP\n\tit's",
        "\uff26\uff35\u3000\ufb01 \u00e9 e\u0301",
        "😀 <|endoftext|> a",
    ):
        expected = tokenizer(text, padding="max_length", max_length=77, truncation=True).input_ids
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got = sd.session.prompts["text_encoder"].encode(text, warnings.warn)
        assert got[0].tolist() == expected


# --- initial images ------------------------------------------------------------------------------


def waves(height: int, width: int) -> Image.Image:
    """Return an image without symmetry."""
    rows, columns = np.mgrid[:height, :width]
    channels = np.sin(rows / 5), np.cos(columns / 4), np.sin((rows + 2 * columns) / 9)
    return Image.fromarray((np.stack(channels, -1) * 120 + 128).astype(np.uint8))


IMAGE = waves(40, 48)


def rectangle(height: int, width: int) -> Image.Image:
    """Return a mask that is white at the right of its middle."""
    values = np.zeros((height, width), np.uint8)
    values[height // 4 : 3 * height // 4, width // 3 :] = 255
    return Image.fromarray(values)


def compare(made: Built, steps: int, *, masked: bool, **options: Any) -> tuple[float, float]:
    """Draw with an initial image that is resized; return the errors of the last latents and of the pixels."""
    session, pipeline = made.session, made.beginning_with_an_image(masked=masked)
    height, width = 3 * session.family.unit, 2 * session.family.unit
    image, mask = waves(height + 7, width + 4), rectangle(height + 7, width + 4)
    blur = options.pop("mask_blur", None)
    given: dict[str, Any] = {
        "image": image if masked else pipeline.image_processor.resize(image, height, width)
    }
    if masked:
        given["mask_image"] = pipeline.mask_processor.blur(mask, blur) if blur else mask
    known = inspect.signature(type(pipeline).__call__).parameters
    sizes = {"height": height, "width": width}
    given |= {name: side for name, side in sizes.items() if name in known}
    latents, pixels = made.expected(PROMPT, 7, steps, pipeline, **given, **options)
    initial = session.read(image, mask if masked else None)
    chosen = session.options_for(initial, seed=7, steps=steps, mask_blur=blur, **sizes, **options)
    assert initial
    encoded = session.encode(initial.prepared(height, width, blur or 0))
    *_, last = session.denoise(session.conditions(PROMPT, chosen), chosen, encoded)
    drawn = session.values_of(last, chosen).transpose(1, 2, 0)
    return np.abs(last - latents).max() / latents.std(), np.abs(drawn - pixels).max()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize(
    "options",
    [
        {"steps": 5, "strength": 0.6, "masked": False},
        {"steps": 3, "strength": 0.5, "masked": False},  # a part of a step
        {"steps": 2, "strength": 1.0, "masked": False},
        {"steps": 3, "strength": 1.0, "masked": True},
        {"steps": 4, "strength": 0.7, "masked": True, "mask_blur": 3.0},
    ],
    ids=["image", "part-of-a-step", "all-steps", "mask", "blurred-mask"],
)
def test_changed_images_are_those_of_diffusers(
    name: str, options: dict[str, Any], built: Callable[[str], Built]
) -> None:
    made = built(name)
    if options["masked"] and made.session.family.lost_with_masks:
        with pytest.raises(GenerationError, match="which diffusers' inpainting leaves out"):
            made.session.draw("a cat", image=IMAGE, mask=rectangle(40, 48))
        return
    of_latents, of_pixels = compare(made, **options)
    assert of_latents < 3e-5
    assert of_pixels < 1e-4


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", INPAINTING)
@pytest.mark.parametrize(
    "options",
    [{"strength": 1.0}, {"strength": 0.6, "guidance_scale": 1.0}],
    ids=["all-steps", "unguided"],
)
def test_inpainting_models_draw_as_in_diffusers(
    name: str, options: dict[str, Any], built: Callable[[str], Built]
) -> None:
    of_latents, of_pixels = compare(built(name), 4, masked=True, **options)
    assert of_latents < 3e-5
    assert of_pixels < 1e-4
    for image in (None, IMAGE):
        with pytest.raises(GenerationError, match="expected an image and a mask"):
            built(name).session.draw("a cat", image=image)


#: Schedulers with two calls a step, with noise in each step, and with earlier outputs.
SCHEDULERS: dict[str, dict[str, Any]] = {
    "HeunDiscreteScheduler": {},
    "EulerAncestralDiscreteScheduler": {"timestep_spacing": "trailing"},
    "LCMScheduler": {},
    "DPMSolverMultistepScheduler": {"algorithm_type": "sde-dpmsolver++"},
    "UniPCMultistepScheduler": {},
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("masked", [False, True], ids=["image", "mask"])
@pytest.mark.parametrize("kind", SCHEDULERS)
def test_every_scheduler_begins_with_an_image_as_in_diffusers(
    kind: str, masked: bool, sd: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
    scheduler = getattr(diffusers, kind).from_config({**noise, **SCHEDULERS[kind]})
    monkeypatch.setattr(sd.pipeline, "scheduler", scheduler)
    own = {"scheduler": {**scheduler.config, "_class_name": kind, "_library": "diffusers"}}
    family = sd.session.family
    monkeypatch.setattr(family, "components", {**family.components, **own})
    of_latents, of_pixels = compare(sd, 4, masked=masked, strength=0.7)
    assert of_latents < 1e-4
    assert of_pixels < 1e-4


def test_a_wrong_step_scale_or_mask_is_noticed(sd: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of that size are far above the tolerances."""
    family = type(sd.session.family)
    with monkeypatch.context() as patched:
        skipped = family.skipped_steps
        patched.setattr(family, "skipped_steps", lambda *given: skipped(*given) - 1)
        assert compare(sd, 5, masked=False, strength=0.6)[0] > 0.01
    with monkeypatch.context() as patched:
        patched.setattr(family, "sample_of", lambda _, latents, options: latents)
        assert compare(sd, 5, masked=False, strength=0.6)[0] > 0.01
    with monkeypatch.context() as patched:
        encode = sd.session.encode
        inverted: Any = lambda given: replace(found := encode(given), mask=1 - found.mask)  # noqa: E731
        patched.setattr(sd.session, "encode", inverted)
        assert compare(sd, 5, masked=True, strength=0.6)[0] > 0.01


@pytest.mark.parametrize("size", [(40, 56), (64, 64), (201, 33)])
@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA"])
def test_pixels_are_those_of_diffusers_image_processor(size: tuple[int, int], mode: str) -> None:
    from diffusers.image_processor import VaeImageProcessor

    image, mask = waves(*size).convert(mode), rectangle(*size)
    file = io.BytesIO()
    image.save(file, "PNG")
    initial = InitialImage.read(file.getvalue(), mask)
    of_image = VaeImageProcessor(vae_scale_factor=8)
    of_mask = VaeImageProcessor(
        vae_scale_factor=8, do_normalize=False, do_binarize=True, do_convert_grayscale=True
    )
    expected = of_image.preprocess(image.convert("RGB"), 64, 48).numpy()
    assert np.array_equal(initial.prepared(64, 48).pixel_values, expected)
    for blur in (0, 2.5):
        blurred = of_mask.blur(mask, blur) if blur else mask
        got = initial.prepared(64, 48, blur).mask
        assert np.array_equal(got, of_mask.preprocess(blurred, 64, 48).numpy())
        assert got is not None
        assert set(np.unique(got)) == {0, 1}


def test_a_transparent_mask_is_drawn_anew_where_it_has_no_alpha() -> None:
    values = np.full((40, 56, 4), 255, np.uint8)
    values[10:30, 20:, 3] = 0
    file = io.BytesIO()
    Image.fromarray(values).save(file, "PNG")
    initial = InitialImage.read(waves(40, 56), file.getvalue(), transparent=True)
    mask = initial.prepared(40, 56).mask
    assert mask is not None
    assert np.array_equal(mask[0, 0], values[..., 3] == 0)
    opaque = io.BytesIO()
    waves(40, 56).save(opaque, "PNG")
    with pytest.raises(MediaError, match="has no alpha"):
        InitialImage.read(waves(40, 56), opaque.getvalue(), transparent=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PIPELINES)
def test_an_image_is_drawn_in_its_size_with_the_options_of_diffusers(
    name: str, built: Callable[[str], Built]
) -> None:
    made = built(name)
    unit = made.session.family.unit
    for masked in (False,) if made.session.family.lost_with_masks else (False, True):
        call = type(made.beginning_with_an_image(masked=masked)).__call__
        known = inspect.signature(call).parameters
        options = made.session.options((3 * unit + unit - 1, 2 * unit), has_mask=masked)
        assert (options.height, options.width) == (3 * unit, 2 * unit)
        for name in ("strength", "guidance_scale", "num_inference_steps"):
            ours = getattr(options, "steps" if name.startswith("num") else name)
            assert ours == known[name].default


def test_a_vae_with_means_has_no_masks(
    built: Callable[[str], Built], monkeypatch: pytest.MonkeyPatch
) -> None:
    """diffusers' inpainting leaves the means out of latents, but not out of its results."""
    family = built("StableDiffusionXLPipeline").session.family
    vae = {**family.components["vae"], "latents_mean": [0.1] * 4, "latents_std": [0.9] * 4}
    monkeypatch.setattr(family, "components", {**family.components, "vae": vae})
    session = built("StableDiffusionXLPipeline").session
    options = session.options((64, 64))
    latents = np.ones((1, 4, 4, 4), np.float32)
    there = family.latents_of(family.sample_of(latents, options), options)
    np.testing.assert_allclose(there, latents, rtol=1e-6)
    with pytest.raises(GenerationError, match="which diffusers' inpainting leaves out"):
        session.options((64, 64), has_mask=True)


def test_an_image_without_places_for_its_patches_is_refused(built: Callable[[str], Built]) -> None:
    session = built("StableDiffusion3Pipeline").session
    unit, most = session.family.unit, 24 * session.family.unit
    assert session.options(height=most, width=unit).height == most
    with pytest.raises(GenerationError, match=f"expected at most {most} pixels"):
        session.options(height=most + unit, width=unit)


# --- the command ---------------------------------------------------------------------------------


def test_run_writes_images(sd: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(sd.package.path)
    paths = [tmp_path / "cat.png", tmp_path / "dog.png"]
    words = [*("--prompt", "a cat", "--output", str(paths[0])), "--steps", "2", "--seed", "3"]
    words += ["--prompt", "a dog", "--output", str(paths[1]), "--height", "32", "--width", "64"]
    assert cli.main(["run", folder, *words, "--guidance-scale", "2", "--negative-prompt", "x"]) == 0
    assert "32" in capsys.readouterr().out
    chosen = {"guidance_scale": 2.0, "negative_prompt": "x", "height": 32, "width": 64}
    for path, prompt in zip(paths, ("a cat", "a dog"), strict=True):
        alone = sd.session.draw(prompt, seed=3, steps=2, **chosen)
        assert np.array_equal(np.asarray(Image.open(path)), alone.pixels)


def test_run_changes_an_image(sd: Built, tmp_path: Path) -> None:
    image, mask, output = (tmp_path / name for name in ("cat.png", "mask.png", "out.png"))
    waves(40, 48).save(image)
    rectangle(40, 48).save(mask)
    words = ["--prompt", "a dog", "--steps", "3", "--seed", "3", "--output", str(output)]
    words += ["--image", str(image), "--strength", "0.9"]
    assert cli.main(["run", str(sd.package.path), *words]) == 0
    chosen: dict[str, Any] = {"seed": 3, "steps": 3, "strength": 0.9, "image": str(image)}
    changed = sd.session.draw("a dog", **chosen).pixels
    assert np.array_equal(np.asarray(Image.open(output)), changed)
    more = ["--mask", str(mask), "--mask-blur", "2"]
    assert cli.main(["run", str(sd.package.path), *words, *more]) == 0
    masked = sd.session.draw("a dog", **chosen, mask=mask.read_bytes(), mask_blur=2.0).pixels
    assert np.array_equal(np.asarray(Image.open(output)), masked)
    assert masked.shape == changed.shape == (40, 48, 3)
    assert not np.array_equal(masked, changed)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--image", "IMAGE", "--mask", "SMALL"], "The mask has 32 x 32 pixels, and the image 48"),
        (["--image", "IMAGE", "--image", "IMAGE"], "--image is given 2 times"),
        (["--image", "absent.png"], "Cannot read the image 'absent.png'"),
    ],
)
def test_run_refuses_images(
    words: list[str],
    message: str,
    sd: Built,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, size in {"IMAGE": (40, 48), "SMALL": (32, 32)}.items():
        waves(*size).save(tmp_path / f"{name}.png")
    files = [str(tmp_path / f"{one}.png") if one.isupper() else one for one in words]
    command = ["run", str(sd.package.path), "--prompt", "a cat", "--json", *files]
    assert cli.main(command) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask": IMAGE}, "A mask is given without an image"),
        ({"image": IMAGE, "strength": 1.5}, "strength is 1.5; expected a number from 0 to 1"),
        ({"image": IMAGE, "strength": -0.1}, "strength is -0.1; expected a number from 0 to 1"),
        ({"image": IMAGE, "strength": math.nan}, "strength is nan; expected a number from 0"),
        ({"image": IMAGE, "strength": True}, "strength is True; expected a number from 0"),
        ({"image": IMAGE, "strength": 0}, "strength is 0, which leaves none of 50 steps"),
        (
            {"image": IMAGE, "strength": 0.2, "steps": 4},
            "strength is 0.2, which leaves none of 4 steps",
        ),
        ({"strength": 0.5}, "strength is 0.5, and there is no initial image"),
        ({"mask_blur": 2}, "mask_blur is 2, and there is no initial image"),
        ({"image": IMAGE, "mask_blur": 2}, "mask_blur is 2, and there is no mask"),
        ({"image": IMAGE, "mask": IMAGE, "mask_blur": 300}, "mask_blur is 300; expected a number"),
        ({"image": waves(5000, 8)}, "a height of 5,000 pixels, and is drawn in its own size"),
    ],
)
def test_images_are_refused_before_anything_runs(
    options: dict[str, Any], message: str, sd: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sd.session, "conditions", None)
    with pytest.raises(GenerationError, match=message):
        sd.session.draw("a cat", **options)


def test_a_package_without_an_encoder_refuses_images(
    sd: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = {role: one for role, one in sd.session.programs.items() if role != "vae_encoder"}
    monkeypatch.setattr(sd.session, "programs", programs)
    with pytest.raises(GenerationError, match="has no encoder of images"):
        sd.session.draw("a cat", image=waves(40, 48))
    assert sd.session.draw("a cat", steps=1).pixels.any()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Add --output image.png, or --json"),
        (["--output", "cat.jpg"], "expected a name that ends with .png"),
        (["--json", "--steps", "0"], "steps is 0; expected a whole number from 1 to 1,000"),
        (["--json", "--height", "33"], "height of an image is 33; expected a multiple of 8"),
        (["--json", "--width", "0"], "width is 0; expected a whole number"),
        (["--json", "--guidance-scale", "nan"], "guidance_scale is nan"),
        (["--json", "--seed", "-1"], "seed is -1; expected a whole number from 0"),
        (["--json", "--voice", "1"], "--voice does not apply to text-to-image"),
    ],
)
def test_run_refuses(
    words: list[str], message: str, sd: Built, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", str(sd.package.path), "--prompt", "a cat", *words]) == 1
    assert message in capsys.readouterr().err


def test_a_session_refuses_unknown_options(sd: Built) -> None:
    with pytest.raises(GenerationError, match="no option 'eta'"):
        sd.session.draw("a cat", eta=0.5)
    with pytest.raises(GenerationError, match="A prompt is 3"):
        sd.session.draw(3, steps=1)  # type: ignore[arg-type]


# --- checkpoints ---------------------------------------------------------------------------------


def _name_class(folder: Path, name: Any) -> None:
    changed(folder, "model_index.json", _class_name=name)


def _pickle(folder: Path) -> None:
    path = folder / "unet" / "diffusion_pytorch_model.safetensors"
    path.rename(path.with_suffix(".bin"))


def _variant(folder: Path) -> None:
    path = folder / "vae" / "diffusion_pytorch_model.safetensors"
    path.rename(path.with_name("diffusion_pytorch_model.fp16.safetensors"))


def _lose_tensor(folder: Path) -> None:
    path = folder / "unet" / "diffusion_pytorch_model.safetensors"
    tensors = load_file(path)
    del tensors["conv_in.bias"]
    save_file(tensors, path)


@pytest.mark.parametrize(
    ("damage", "kind", "message"),
    [
        (lambda at: _name_class(at, ["pipe", "Own"]), CheckpointError, "code of a checkpoint is"),
        (lambda at: _name_class(at, "StableDiffusionUpscalePipeline"), ZooError, "No recipe for"),
        (
            lambda at: changed(at, "model_index.json", unet=["diffusers", 3]),
            CheckpointError,
            "unet",
        ),
        (
            lambda at: changed(at, "model_index.json", unet=["mine", "OwnUNet"]),
            PlanError,
            "class 'OwnUNet'; expected 'UNet2DConditionModel'",
        ),
        (
            lambda at: changed(at, "model_index.json", text_encoder=[None, None]),
            PlanError,
            "the component text_encoder of class None",
        ),
        (
            lambda at: changed(at, "model_index.json", scheduler=["diffusers", "RePaintScheduler"]),
            PlanError,
            "Cannot use the scheduler 'RePaintScheduler'",
        ),
        (
            lambda at: (at / "scheduler/scheduler_config.json").unlink(),
            PlanError,
            "no scheduler/scheduler_config.json",
        ),
        (
            lambda at: changed(at, "unet/config.json", time_cond_proj_dim=8),
            PlanError,
            "reads the scale of guidance",
        ),
        (
            lambda at: changed(at, "unet/config.json", in_channels=9),
            PlanError,
            "reads 9 channels and returns 4; expected 4 and 4",
        ),
        (
            lambda at: changed(at, "unet/config.json", quantization_config={"quant_method": "bnb"}),
            PlanError,
            "component unet quantized by 'bnb'",
        ),
        (_pickle, CheckpointError, "Refused the weights of the component 'unet'"),
        (_variant, CheckpointError, "only other safetensors: vae/diffusion_pytorch_model.fp16"),
        (lambda at: changed(at, "vae/config.json", act_fn="sillu"), CheckpointError, "sillu"),
        (_lose_tensor, CheckpointError, "No tensor for 'conv_in.bias'"),
    ],
)
def test_bad_checkpoints_are_refused(
    damage: Callable[[Path], object], kind: type[ZooError], message: str, copied: Path
) -> None:
    damage(copied)
    with pytest.raises(kind, match="(?s)" + message.replace("(", r"\(")):
        build(str(copied), validate=False, store=Store(copied.parent / "store"))


def test_the_safety_checker_is_left_out_with_a_warning(copied: Path) -> None:
    changed(copied, "model_index.json", safety_checker=["stable_diffusion", "SafetyChecker"])
    plan = check(open_checkpoint(str(copied)), Request())
    assert any("safety_checker, which a package leaves out" in one for one in plan.warnings)


def test_shards_and_older_names_of_tensors_are_those_of_diffusers(copied: Path) -> None:
    folder = copied / "vae"
    tensors = load_file(folder / "diffusion_pytorch_model.safetensors")
    (folder / "diffusion_pytorch_model.safetensors").unlink()
    older = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    renamed = {}
    for name, tensor in tensors.items():
        for new, old in older.items() if ".attentions." in name else ():
            name = name.replace(f".{new}.", f".{old}.")
        renamed[name] = tensor
    halves = [dict(list(renamed.items())[start::2]) for start in (0, 1)]
    names = [f"diffusion_pytorch_model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for name, half in zip(names, halves, strict=True):
        save_file(half, folder / name)
    index = {one: name for name, half in zip(names, halves, strict=True) for one in half}
    path = folder / "diffusion_pytorch_model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {}, "weight_map": index}))
    checkpoint = open_checkpoint(str(copied))
    assert {f"vae/{name}" for name in names} < set(checkpoint.weight_files)
    pipeline = loader.build_meta(checkpoint.config, "text-to-image")
    bound = bind_components(pipeline, checkpoint.logical).expressions
    own = {name: one for name, one in bound.items() if name.startswith("vae.")}
    assert {name.removeprefix("vae.") for name in own} == tensors.keys()
    for name, source in own.items():
        assert isinstance(source, str)
        expected = tensors[name.removeprefix("vae.")].numpy()
        assert np.array_equal(checkpoint.read(source), expected)


def test_published_names_of_text_encoders_are_bound(copied: Path) -> None:
    """Those of releases of transformers before 5, with a buffer that is no longer stored."""
    path = copied / "text_encoder" / "model.safetensors"
    tensors = load_file(path)
    older = {f"text_model.{name}": tensor for name, tensor in tensors.items()}
    save_file({**older, "text_model.embeddings.position_ids": torch.arange(77)[None]}, path)
    checkpoint = open_checkpoint(str(copied))
    pipeline = loader.build_meta(checkpoint.config, "text-to-image")
    bound = bind_components(pipeline, checkpoint.logical)
    own = {name: one for name, one in bound.expressions.items() if name.startswith("text_encoder.")}
    assert own == {f"text_encoder.{name}": f"text_encoder/text_model.{name}" for name in tensors}
    assert not bound.unused


def test_a_pipeline_of_the_hub_is_opened_without_its_weights(sd: Built, hub: LocalHub) -> None:
    files = {
        path.relative_to(sd.checkpoint).as_posix(): path.read_bytes()
        for path in sd.checkpoint.rglob("*")
        if path.is_file()
    }
    extra = {"safety_checker/model.safetensors": b"x", "unet/model.bin": b"y"}
    hub.commit("org/tiny", {**files, **extra})
    checkpoint = open_checkpoint("org/tiny")
    assert checkpoint.model_type == "StableDiffusionPipeline"
    assert not checkpoint.is_at_hand
    checkpoint.fetch()
    assert not (checkpoint.folder / "safety_checker/model.safetensors").exists()
    assert checkpoint.stored.keys() == open_checkpoint(str(sd.checkpoint)).stored.keys()


def test_weights_of_a_package_are_those_of_all_components(sd: Built) -> None:
    with safe_open(sd.package.path / "weights.safetensors", "np") as file:
        names = {name.partition(".")[0] for name in file.keys()}  # noqa: SIM118 -- not a mapping
    assert {"text_encoder", "unet", "vae"} <= names


def test_core_names_no_pipeline() -> None:
    """A further pipeline is a recipe and a family: nothing else names one."""
    names = {one.model_type for one in EVERY}
    names |= {one.pipeline.family for one in EVERY if one.pipeline} - {"stable_diffusion"}
    quoted = re.compile(rf'"({"|".join(sorted(names))})(?![a-z])')
    for path in (ROOT / "qeff_zoo").rglob("*.py"):
        if path.parent.name != "families":
            assert not quoted.search(path.read_text()), path
