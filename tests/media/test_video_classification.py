# SPDX-License-Identifier: Apache-2.0
"""Video classification: frames, scores and commands are those of transformers' processors, models and pipeline."""

import json
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from fixtures_video_times import clip
from fixtures_videos import video_of
from PIL import Image
from transformers.models.vivit.image_processing_vivit import VivitImageProcessor
from transformers.pipelines.video_classification import VideoClassificationPipeline
from transformers.video_processing_utils import BaseVideoProcessor
from transformers.video_utils import VideoMetadata

from qeff_zoo import cli, registry
from qeff_zoo.contract import example
from qeff_zoo.errors import ExportError, GenerationError, MediaError, PlanError
from qeff_zoo.media.video_processor import load_video_processor
from qeff_zoo.package import Package
from qeff_zoo.pipeline import build
from qeff_zoo.plan.request import Request
from qeff_zoo.sessions import open_session
from qeff_zoo.store import Store
from qeff_zoo.tasks.video_classification.reference import processor_of
from qeff_zoo.tasks.video_classification.task import NAME
from qeff_zoo.validation import tiny_models

pytestmark = pytest.mark.turns(3)

RECIPES = [recipe.model_type for recipe in registry.list_recipes() if recipe.task == NAME]
#: Settings of published checkpoints, and the file that has them.
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "videomae": (  # MCG-NJU/videomae-base-finetuned-kinetics
        "preprocessor_config.json",
        {
            "crop_size": {"height": 224, "width": 224}, "do_center_crop": True, "do_normalize": True,
            "do_rescale": True, "do_resize": True, "feature_extractor_type": "VideoMAEFeatureExtractor",
            "image_mean": [0.485, 0.456, 0.406], "image_processor_type": "VideoMAEImageProcessor",
            "image_std": [0.229, 0.224, 0.225], "resample": 2, "rescale_factor": 0.00392156862745098,
            "size": {"shortest_edge": 224},
        },
    ),
    "timesformer": (  # facebook/timesformer-base-finetuned-k400
        "preprocessor_config.json",
        {
            "crop_size": {"height": 224, "width": 224}, "do_center_crop": True, "do_normalize": True,
            "do_rescale": True, "do_resize": True, "feature_extractor_type": "VideoMAEFeatureExtractor",
            "image_mean": [0.45, 0.45, 0.45], "image_processor_type": "VideoMAEImageProcessor",
            "image_std": [0.225, 0.225, 0.225], "resample": 2, "rescale_factor": 0.00392156862745098,
            "size": {"shortest_edge": 224},
        },
    ),
    "vivit": (  # google/vivit-b-16x2-kinetics400
        "preprocessor_config.json",
        {
            "crop_size": {"height": 224, "width": 224}, "do_center_crop": True, "do_normalize": True,
            "do_rescale": True, "do_resize": True, "image_mean": [0.5, 0.5, 0.5],
            "image_processor_type": "VivitImageProcessor", "image_std": [0.5, 0.5, 0.5], "offset": True,
            "resample": 2, "rescale_factor": 0.00784313725490196, "size": {"shortest_edge": 256},
        },
    ),
    "vjepa2": (  # facebook/vjepa2-vitl-fpc16-256-ssv2
        "video_preprocessor_config.json",
        {
            "crop_size": {"height": 256, "width": 256}, "do_center_crop": True, "do_convert_rgb": True,
            "do_normalize": True, "do_rescale": True, "do_resize": True, "image_mean": [0.485, 0.456, 0.406],
            "image_std": [0.229, 0.224, 0.225], "resample": 2, "rescale_factor": 0.00392156862745098,
            "size": {"shortest_edge": 292}, "video_processor_type": "VJEPA2VideoProcessor",
        },
    ),
}  # fmt: skip
#: (height, width) of frames.
SIZES = ((97, 151), (240, 130), (300, 300))


def frames_at(count: int, wanted: int) -> list[int]:
    """Return the frames that transformers takes of a video."""
    metadata = VideoMetadata(total_num_frames=count)
    itself: Any = SimpleNamespace(num_frames=wanted, fps=None)
    chosen = BaseVideoProcessor.sample_frames(itself, metadata, num_frames=wanted)
    return [int(one) for one in chosen]


class Built:
    """A tiny model, its package for batches of 2, and transformers' model and processor."""

    def __init__(self, model_type: str, folder: Path) -> None:
        recipe = registry.find_recipe(model_type)
        self.checkpoint = tiny_models.make(recipe, recipe.tiny[0], folder / "checkpoint")
        requested, store = Request(batch_size=2), Store(folder / "store")
        done = build(str(self.checkpoint), requested, validate=False, store=store)
        self.package: Package = done.package
        self.model: Any = transformers.AutoModelForVideoClassification.from_pretrained(
            self.checkpoint
        ).eval()
        config = self.model.config
        self.count: int = getattr(config, "num_frames", None) or config.frames_per_clip

    def expected(self, frames: list[Any]) -> list[dict[str, Any]]:
        """Return what transformers' pipeline makes of a video's logits."""
        chosen = [Image.fromarray(frames[one]) for one in frames_at(len(frames), self.count)]
        process = processor_of(str(self.checkpoint), self.model.config.model_type)
        pixels = process(chosen, return_tensors="pt")["pixel_values"]
        with torch.no_grad():
            output = self.model(**{self.model.main_input_name: pixels})
        itself: Any = SimpleNamespace(model=self.model)
        found: list[dict[str, Any]] = VideoClassificationPipeline.postprocess(
            itself, output, top_k=self.model.config.num_labels
        )
        return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that builds a tiny model of a type, once."""
    return cache(lambda name: Built(name, tmp_path_factory.mktemp(name)))


@pytest.mark.parametrize("model_type", PUBLISHED)
def test_frames_equal_those_of_transformers_processors(model_type: str, tmp_path: Path) -> None:
    file, settings = PUBLISHED[model_type]
    (tmp_path / file).write_text(json.dumps(settings))
    usual = registry.find_recipe(model_type).image_processor
    ours, process = load_video_processor(tmp_path, usual), processor_of(str(tmp_path), model_type)
    if model_type == "vivit":
        assert isinstance(process, VivitImageProcessor)
    for size in SIZES:
        frames = video_of(3, sum(size), *size)
        expected = process([Image.fromarray(frame) for frame in frames], return_tensors="np")
        got = ours(np.stack(frames))["pixel_values_videos"]
        np.testing.assert_allclose(got, expected["pixel_values"], atol=1e-6, rtol=0)


@pytest.mark.parametrize("model_type", RECIPES)
def test_scores_equal_those_of_transformers_pipeline(model_type: str, built: Any) -> None:
    made = built(model_type)
    session: Any = open_session(made.package)
    videos = [video_of(made.count + more, more, 40, 52) for more in (0, 1, made.count, 41)]
    for video, scores in zip(videos, session.classify(videos), strict=True):
        expected = made.expected(video)
        assert [score.label for score in scores] == [one["label"] for one in expected]
        np.testing.assert_allclose(
            [score.score for score in scores], [one["score"] for one in expected], atol=1e-5
        )


def test_run_prints_scores_of_a_file(
    built: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = built("videomae")
    frames = video_of(9, 0, 40, 52)
    path = clip(tmp_path, frames, 40)
    command = ["run", str(made.package.path), "--video", str(path), "--json"]
    assert cli.main(command) == 0
    (output,) = json.loads(capsys.readouterr().out)["outputs"]
    assert output["video"] == str(path)
    expected = made.expected(frames)
    assert [score["label"] for score in output["scores"]] == [one["label"] for one in expected]
    assert cli.main(command[:-1]) == 0
    assert f"{expected[0]['score']:.4f}" in capsys.readouterr().out


def test_a_short_video_is_refused(built: Any) -> None:
    session: Any = open_session(built("videomae").package)
    with pytest.raises(MediaError, match="it has 5 frames"):
        session.classify([video_of(5, 0)])
    with pytest.raises(GenerationError, match="at least one video"):
        session.classify([])


def test_an_image_is_refused(built: Any, capsys: pytest.CaptureFixture[str]) -> None:
    package = str(built("videomae").package.path)
    assert cli.main(["run", package, "--image", "cat.png"]) == 1
    assert "--image does not apply to video-classification" in capsys.readouterr().err


def test_the_example_of_a_command_names_a_video() -> None:
    assert example(NAME) == "--video clip.mp4"


def test_frames_of_their_own_sizes_are_refused_before_a_trace(tmp_path: Path) -> None:
    recipe = registry.find_recipe("videomae")
    checkpoint = tiny_models.make(recipe, recipe.tiny[0], tmp_path / "checkpoint")
    file = checkpoint / "preprocessor_config.json"
    file.write_text(json.dumps({"do_center_crop": False}))
    with pytest.raises(PlanError, match=r"makes frames of the sizes .* Set `do_center_crop`"):
        build(str(checkpoint), Request(), validate=False, store=Store(tmp_path / "store"))


def test_a_model_without_an_answer_for_each_video_is_refused(tmp_path: Path) -> None:
    """TimeSformer of single frames answers for each frame, in transformers as well."""
    recipe = registry.find_recipe("timesformer")
    tiny = recipe.tiny[0]
    checkpoint = tiny_models.make(recipe, tiny, tmp_path / "checkpoint")
    file = checkpoint / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "attention_type": "space_only"}))
    with pytest.raises(ExportError, match="returns 10 answers for 2 videos"):
        build(str(checkpoint), Request(), validate=False, store=Store(tmp_path / "store"))
