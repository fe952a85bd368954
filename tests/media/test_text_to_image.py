# SPDX-License-Identifier: Apache-2.0
"""Text to image: latents and pixels are those of diffusers' pipelines for the same prompts, seeds and schedulers."""

import inspect
import json
import re
import shutil
import warnings
from collections.abc import Callable
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
from qeff_zoo.errors import CheckpointError, GenerationError, PlanError, ZooError
from qeff_zoo.export import loader
from qeff_zoo.package import Package
from qeff_zoo.pipeline import build
from qeff_zoo.plan.request import Request
from qeff_zoo.plan.resolve import check
from qeff_zoo.sessions import TextToImageSession, open_session
from qeff_zoo.store import Store
from qeff_zoo.validation.reference.tiny_pipelines import write
from qeff_zoo.validation.tiny_models import request_of
from qeff_zoo.weights.pipeline_bindings import bind_components

pytestmark = pytest.mark.turns(3)

PIPELINES = [one.model_type for one in registry.list_recipes() if one.pipeline]
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

    def expected(self, prompt: str, seed: int, steps: int, **options: Any) -> tuple[Any, Any]:
        """Return the last latents of diffusers' pipeline, and its pixels from 0 to 1."""
        last: list[Any] = []

        def note(_: Any, step: int, time: Any, values: Any) -> Any:
            last[:] = [values["latents"].numpy()]
            return values

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            images = self.pipeline(
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
    image = session.image_of(last, chosen).transpose(1, 2, 0)
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
    with pytest.raises(GenerationError, match="no option 'strength'"):
        sd.session.draw("a cat", strength=0.5)
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
        (lambda at: _name_class(at, "StableDiffusionInpaintPipeline"), ZooError, "No recipe for"),
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
    families = {one.pipeline.family for one in registry.list_recipes() if one.pipeline} - {
        "stable_diffusion"
    }
    for path in (ROOT / "qeff_zoo").rglob("*.py"):
        if path.parent.name != "families":
            text = path.read_text()
            assert not [one for one in (*PIPELINES, *families) if f'"{one}' in text], path
