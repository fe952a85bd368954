# SPDX-License-Identifier: Apache-2.0
"""Text to video, and image to video: latents and frames are those of diffusers' pipelines for the same inputs."""

import inspect
import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import diffusers
import numpy as np
import pytest
import torch
from PIL import Image

from qeff_zoo import cli, registry
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.errors import GenerationError, PlanError
from qeff_zoo.package import Package
from qeff_zoo.pipeline import build
from qeff_zoo.plan.request import Request
from qeff_zoo.plan.resolve import check
from qeff_zoo.runtime.program import Observed
from qeff_zoo.sessions import (
    GeneratedVideo,
    ImageToVideoSession,
    TextToVideoSession,
    open_session,
)
from qeff_zoo.store import Store
from qeff_zoo.tasks.video_diffusion import video
from qeff_zoo.validation.reference.pipelines import embeds_of
from qeff_zoo.validation.reference.tiny_pipelines import write
from qeff_zoo.validation.tiny_models import request_of

pytestmark = [
    pytest.mark.turns(3),
    # diffusers makes arrays of tensors in a way that numpy 2 deprecates.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

TINY = {
    tiny.name + " from an image" * (recipe.task == "image-to-video"): (recipe, tiny)
    for recipe in map(registry.find_recipe, ("WanPipeline", "WanImageToVideoPipeline"))
    for tiny in recipe.tiny
}
ROWS, COLUMNS = np.mgrid[:53, :61]
IMAGE = Image.fromarray(
    (np.stack([np.sin(ROWS / 5), np.cos(COLUMNS / 4), np.sin(ROWS / 9)], -1) * 120 + 128).astype(
        np.uint8
    )
)
PROMPT = "A red cat on the house, 3 dogs &amp; thé \n rain"


class Built:
    """A tiny pipeline: diffusers' own, and a session of its package.

    Args:
        name: Name of the tiny configuration.
        folder: A folder for the checkpoint and the store.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.checkpoint = folder / "checkpoint"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            write(str(self.checkpoint), request_of(*TINY[name]))
            self.package: Package = build(
                str(self.checkpoint), validate=False, store=Store(folder / "store")
            ).package
            self.pipeline: Any = diffusers.DiffusionPipeline.from_pretrained(self.checkpoint)
        self.pipeline.set_progress_bar_config(disable=True)
        opened = open_session(self.package, threads=1)
        assert isinstance(opened, TextToVideoSession)
        self.session = opened

    def errors(self, prompt: str = PROMPT, steps: int = 4, **options: Any) -> tuple[float, float]:
        """Return the errors of the last latents, in their deviation, and of the frames, from 0 to 1."""
        session, last, given = self.session, list[Any](), dict[str, Any]()
        if isinstance(session, ImageToVideoSession):
            given = {"initial": session.read(IMAGE)}
        chosen = session.options(seed=7, steps=steps, **options)
        options["num_frames"] = options.pop("frames")

        def note(_: Any, step: int, time: Any, values: Any) -> Any:
            last[:] = [values["latents"].numpy()]
            return values

        texts: dict[str, Any] = {"prompt": prompt}
        if given:
            negative = options.pop("negative_prompt", None)
            texts = {"image": IMAGE, **embeds_of(self.pipeline, prompt, negative)}
        expected = self.pipeline(
            **texts,
            generator=torch.Generator().manual_seed(7),
            num_inference_steps=steps,
            output_type="np",
            callback_on_step_end=note,
            **options,
        ).frames[0]
        *_, sample = session.denoise(session.conditions(prompt, chosen), chosen, **given)
        values = session.values_of(sample, chosen).transpose(0, 2, 3, 1)
        assert values.shape == expected.shape
        of_latents = np.abs(sample - last[0]).max() / last[0].std()
        return float(of_latents), float(np.abs(values - expected).max())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Built]:
    made: dict[str, Built] = {}

    def find(name: str) -> Built:
        if name not in made:
            made[name] = Built(name, tmp_path_factory.mktemp("wan"))
        return made[name]

    return find


@pytest.fixture
def wan(built: Callable[[str], Built]) -> Built:
    """A pipeline with two transformers."""
    return built("2.2")


@pytest.fixture
def copied(wan: Built, tmp_path: Path) -> Path:
    """A copy of a checkpoint, to damage."""
    return Path(shutil.copytree(wan.checkpoint, tmp_path / "checkpoint"))


def changed(folder: Path, name: str, **values: Any) -> None:
    """Change fields of a JSON file."""
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


# --- videos --------------------------------------------------------------------------------------


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize(
    "options",
    [
        {"rows": 2, "columns": 3, "latents": 3},
        {"rows": 3, "columns": 1, "latents": 4, "negative_prompt": "the dog"},
        {"rows": 1, "columns": 5, "latents": 2, "guidance_scale": 1.0},
        {"rows": 1, "columns": 1, "latents": 1, "guidance_scale": 3.0},
    ],
    ids=["usual", "negative", "unguided", "one-frame"],
)
def test_videos_are_those_of_diffusers(
    name: str, options: dict[str, Any], built: Callable[[str], Built]
) -> None:
    made, given = built(name), dict(options)
    family = made.session.family
    given["height"], given["width"] = (
        family.unit * given.pop(side) for side in ("rows", "columns")
    )
    given["frames"] = 1 + (given.pop("latents") - 1) * family.frame_factor
    of_latents, of_pixels = made.errors(**given)
    assert of_latents < 5e-5
    assert of_pixels < 1e-4


SMALL = {"height": 16, "width": 32, "frames": 5}


def test_each_transformer_has_its_guidance(wan: Built) -> None:
    scales = {"guidance_scale": 4.0, "guidance_scale_2": 2.0}
    of_latents, of_pixels = wan.errors(**SMALL, **scales)
    assert max(of_latents, of_pixels) < 1e-4
    called: list[str] = []
    programs = wan.session.programs
    for role in ("transformer", "transformer_2"):
        note = lambda *_, role=role: called.append(role)  # noqa: E731
        wan.session.programs = {
            **wan.session.programs, role: Observed(programs[role], note)
        }  # fmt: skip
    try:
        one, other = (
            wan.session.draw("a cat", seed=1, steps=4, **SMALL, **given).pixels
            for given in (scales, {"guidance_scale": 4.0})
        )
    finally:
        wan.session.programs = programs
    assert called == [*["transformer"] * 4, *["transformer_2"] * 4] * 2
    assert not np.array_equal(one, other)


def test_a_forgotten_frame_or_boundary_is_noticed(
    wan: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of that size are far above the tolerances."""
    with monkeypatch.context() as patched:
        patched.setattr(wan.session.family, "denoiser_at", lambda timestep: "transformer")
        assert wan.errors(**SMALL)[0] > 0.01
    program = wan.session.programs["vae_decoder_next"]

    class Forgetful(Observed):
        def run(self, inputs: Any, rows: Any = ()) -> Any:
            kept = {
                name: value if name == "latent_sample" else np.zeros_like(value)
                for name, value in inputs.items()
            }
            return super().run(kept, rows)

    patched_programs = {
        **wan.session.programs, "vae_decoder_next": Forgetful(program, lambda *_: None)
    }  # fmt: skip
    monkeypatch.setattr(wan.session, "programs", patched_programs)
    assert wan.errors(**SMALL)[1] > 0.01


def test_options_that_are_left_out_are_those_of_diffusers(wan: Built) -> None:
    known = inspect.signature(type(wan.pipeline).__call__).parameters
    usual = wan.session.options()
    names = {"num_inference_steps": "steps", "num_frames": "frames"}
    for name in ("num_inference_steps", "num_frames", "guidance_scale", "height", "width"):
        assert getattr(usual, names.get(name, name)) == known[name].default
    assert wan.session.options().seed != usual.seed  # random


def test_tokens_are_those_of_diffusers(wan: Built) -> None:
    text = " A &amp;amp; red\n\tcat " * 40
    tokens = wan.session.prompts["text_encoder"].encode(text, pytest.fail)
    read = diffusers.pipelines.wan.pipeline_wan.prompt_clean(text)
    assert tokens[0].tolist() == wan.pipeline.tokenizer(read).input_ids
    with pytest.warns(UserWarning, match=r"text encoder reads 512; lost at its end: "):
        wan.session.conditions("cat " * 600, wan.session.options(guidance_scale=1.0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frames": 6}, "frames is 6; expected 1 more than a multiple of 4.* Choose 5"),
        ({"frames": 0}, "frames is 0; expected a whole number from 1 to 4,093"),
        ({"frames": 4097}, "frames is 4097; expected a whole number from 1 to 4,093"),
        ({"frames": 2.5}, "frames is 2.5; expected a whole number"),
        ({"height": 40}, "height of an image is 40; expected a multiple of 16"),
        ({"steps": 0}, "steps is 0; expected a whole number from 1"),
        ({"guidance_scale_2": -1.0}, "guidance_scale_2 is -1.0; expected a number of 0 or more"),
        ({"true_cfg_scale": 2.0}, "true_cfg_scale is 2.0, and the model's guidance"),
        ({"strength": 0.5}, "strength is 0.5, and there is no initial image"),
        ({"eta": 0.5}, "Videos have no option 'eta'"),
    ],
)
def test_videos_are_refused_before_anything_runs(
    options: dict[str, Any], message: str, wan: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wan.session, "programs", {})
    with pytest.raises(GenerationError, match=message):
        wan.session.draw("a cat", **options)


# --- the command ---------------------------------------------------------------------------------

WORDS = ["--steps", "2", "--seed", "3", "--height", "16", "--width", "32", "--frames", "5"]


def test_run_writes_videos(wan: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = {name: tmp_path / f"cat.{name}" for name in ("mp4", "gif")}
    paths["png"] = tmp_path / "cat-%03d.png"
    words = [
        word for path in paths.values() for word in ("--prompt", "a cat", "--output", str(path))
    ]
    assert cli.main(["run", str(wan.package.path), *words, *WORDS, "--fps", "10"]) == 0
    assert "32x16x5" in capsys.readouterr().out
    expected = wan.session.draw("a cat", seed=3, steps=2, **SMALL).pixels
    for number, pixels in enumerate(expected):
        assert np.array_equal(np.asarray(Image.open(tmp_path / f"cat-{number:03}.png")), pixels)
    with Image.open(paths["gif"]) as gif:
        assert (gif.n_frames, gif.info["duration"], gif.size) == (5, 100, (32, 16))
    with av.open(str(paths["mp4"])) as container:
        stream = container.streams.video[0]
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
        assert stream.average_rate == 10
    assert np.abs(np.stack(frames).astype(int) - expected).mean() < 12  # colours of half the size
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"cat.mp4", "cat.gif", *(f"cat-{number:03}.png" for number in range(5))}


@pytest.mark.parametrize("name", ["cat.mp4", "cat.gif", "cat-%d.png"])
def test_an_interrupted_write_leaves_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Endless(np.ndarray):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            yield from super().__iter__()
            raise KeyboardInterrupt

    pixels = np.zeros((3, 16, 16, 3), np.uint8).view(Endless)
    (tmp_path / name).write_bytes(b"before")
    made = GeneratedVideo(pixels=pixels, frame_rate=16, options=None)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        made.write(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == b"before"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "A video has no place to go"),
        (["--json"], "A video has no place to go"),
        (["--output", "cat.jpg"], "expected a name that ends with .mp4 or .gif or .png"),
        (["--output", "cat.png"], "Expected a name with the place of their numbers"),
        (["--output", "cat.gif", "--frames", "7"], "frames is 7; expected 1 more than a multiple"),
        (["--output", "cat.gif", "--fps", "0"], "fps is 0.0; expected a number over 0"),
        (["--output", "cat.gif", "--mask", "x"], "--mask does not apply to text-to-video"),
    ],
)
def test_run_refuses(
    words: list[str],
    message: str,
    wan: Built,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TextToVideoSession, "denoise", None)
    assert cli.main(["run", str(wan.package.path), "--prompt", "a cat", *words]) == 1
    assert message in capsys.readouterr().err


def test_mp4_without_pyav_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "find_spec", lambda name: None)
    with pytest.raises(GenerationError, match=r"PyAV, which writes MP4, is not installed"):
        video.check_file("cat.mp4")
    video.check_file("cat.gif")


# --- images --------------------------------------------------------------------------------------


@pytest.fixture
def animator(built: Callable[[str], Built]) -> Built:
    """A pipeline that draws videos of images."""
    return built("2.2 from an image")


def test_run_writes_a_video_of_an_image(animator: Built, tmp_path: Path) -> None:
    file, output = tmp_path / "cat.png", tmp_path / "cat.gif"
    IMAGE.save(file)
    words = ["--prompt", "a cat", "-o", str(output), *WORDS, "--image", str(file)]
    assert cli.main(["run", str(animator.package.path), *words]) == 0
    with Image.open(output) as gif:
        assert (gif.n_frames, gif.size) == (5, (32, 16))
    video, black = (
        animator.session.draw("a cat", image=image, seed=3, steps=2, **SMALL).pixels
        for image in (IMAGE, Image.new("RGB", (32, 16)))
    )
    assert (video != black).any()


def test_a_video_without_an_image_is_refused(
    animator: Built, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(GenerationError, match="begin with an image, and there is none"):
        animator.session.draw("a cat", **SMALL)
    words = ["--prompt", "a cat", "--output", "cat.gif"]
    assert cli.main(["run", str(animator.package.path), *words]) == 1
    assert "--image is given 0 times; expected one image" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("model_index.json", {"expand_timesteps": True}, "reads a time for each patch"),
        ("transformer/config.json", {"image_dim": 8}, "has no image_encoder, and a transformer"),
        ("transformer/config.json", {"pos_embed_seq_len": 5}, "the states of a last image too"),
        ("transformer/config.json", {"in_channels": 4}, "reads 4 channels; expected 12"),
    ],
)
def test_other_models_of_images_are_refused(
    name: str, values: dict[str, Any], message: str, animator: Built, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(animator.checkpoint, tmp_path / "checkpoint"))
    changed(folder, name, **values)
    with pytest.raises(PlanError, match=message):
        check(open_checkpoint(str(folder)), Request())


# --- checkpoints ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("model_index.json", {"boundary_ratio": None}, "boundary_ratio None, and a transformer_2"),
        (
            "model_index.json",
            {"transformer_2": [None, None]},
            "boundary_ratio 0.875, and no transformer_2",
        ),
        ("transformer/config.json", {"in_channels": 36}, "reads 36 channels; expected 4"),
        ("transformer_2/config.json", {"image_dim": 8}, "transformer_2 that reads states of an"),
        ("transformer/config.json", {"patch_size": [2, 2, 2]}, "patches of 2 frames; expected 1"),
        ("vae/config.json", {"scale_factor_temporal": 8}, "scale_factor_temporal 8, whose levels"),
        ("scheduler/scheduler_config.json", {"_class_name": "Own"}, "Cannot use the scheduler"),
    ],
)
def test_bad_checkpoints_are_refused(
    name: str, values: dict[str, Any], message: str, copied: Path
) -> None:
    changed(copied, name, **values)
    if name.startswith("scheduler"):
        changed(copied, "model_index.json", scheduler=["diffusers", values["_class_name"]])
    with pytest.raises(PlanError, match=message):
        check(open_checkpoint(str(copied)), Request())
