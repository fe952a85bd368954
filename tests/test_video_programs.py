# SPDX-License-Identifier: Apache-2.0
"""Videos whose frames go through other operators than pictures, in a program of their own: as the unpatched model."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import parity
import pytest
import torch
import transformers
from test_media_recipes import session_of
from test_videos import film
from transformers.models.llava_next_video.video_processing_llava_next_video import (
    LlavaNextVideoVideoProcessor,
)

from qeff_zoo import pipeline, plan
from qeff_zoo.choices import Request
from qeff_zoo.errors import GenerationError
from qeff_zoo.media.image_processor import image_processor
from qeff_zoo.media.pixels import resize_across, shortest_edge
from qeff_zoo.media.video_processor import load_video_processor
from qeff_zoo.package import Package
from qeff_zoo.registry import find_recipe
from qeff_zoo.runtime import open_session
from qeff_zoo.store import Store
from qeff_zoo.validation import sample_media, tiny_models

PICTURE, VIDEO, LENGTH = 200, 201, 6
CHOICES = {
    "max_new_tokens": LENGTH, "do_sample": False, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip
SIZES = {
    "size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28},
}  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Package, Path]:
    folder = tmp_path_factory.mktemp("videos")
    recipe = find_recipe("video_llava")
    checkpoint = tiny_models.make(recipe, recipe.tiny[0], folder / "checkpoint")
    named(checkpoint, "VideoLlava")
    asked = Request(prefill_seq_len=16, ctx_len=128, full_batch_size=2)
    done = pipeline.build(str(checkpoint), asked, validate=False, store=Store(folder / "store"))
    return done.package, checkpoint


def named(checkpoint: Path, model: str) -> None:
    """Write the settings of processors, as a checkpoint of that model has them."""
    for file, name, value in (
        ("preprocessor_config.json", "image_processor_type", "CLIPImageProcessor"),
        ("video_preprocessor_config.json", "video_processor_type", f"{model}VideoProcessor"),
    ):
        (checkpoint / file).write_text(json.dumps({**SIZES, name: value}))


def answers(session: Any, model: Any, rows: int, shown: Any) -> Iterator[tuple[Any, Any, list[int]]]:
    """Yield what a session was asked of pictures and videos, how it answers, and how the model does.

    Args:
        session: Of the package.
        model: Unpatched.
        rows: Of a frame.
        shown: A picture, as the model takes it, and how many rows it takes.
    """
    (picture,), (given, count) = film(1, 1, 28, 28), shown
    for number, (prompt, clips) in enumerate((
        ([3, VIDEO, 4], [film(3, 2, 30, 40)]),
        ([3, VIDEO, 4], [film(3, 3, 30, 40)]),
        ([3, VIDEO, 4, PICTURE, 5, VIDEO], [film(2, 4, 28, 28), film(2, 5, 40, 30)]),
    )):  # fmt: skip
        pictures = [picture] if PICTURE in prompt else []
        played = [session.prepare_video(one)["pixel_values_videos"] for one in clips]
        run = {PICTURE: count, VIDEO: rows * len(clips[0])}
        ids = [same for one in prompt for same in [one] * run.get(one, 1)]
        asked = session.request(prompt, images=pictures, videos=clips, generation_len=2)
        assert [*asked.prompt] == ids
        told = {**(given if pictures else {}), "pixel_values_videos": torch.from_numpy(np.concatenate(played))}
        right = model.generate(input_ids=torch.tensor([ids]), **told, **CHOICES)
        prepared = [{"pixel_values_videos": one} for one in played]
        for videos in (clips, prepared):
            (answer,) = session.generate(
                [prompt], images=[pictures], videos=[videos], generation_len=LENGTH, ignore_eos=True
            )
            yield number, answer.token_ids, right[0, len(ids) :].tolist()


def test_another_tower_reads_frames(built: tuple[Package, Path]) -> None:
    package, checkpoint = built
    assert [program.role for program in package.programs] == ["language", "vision", "frames"]
    session: Any = open_session(package, threads=1)
    model: Any = transformers.AutoModelForImageTextToText.from_pretrained(checkpoint).eval()
    (picture,) = film(1, 1, 28, 28)
    pixels = torch.from_numpy(session.prepare(picture)["pixel_values"])
    found = {}
    for number, answer, right in answers(session, model, 17, ({"pixel_values": pixels}, 16)):
        assert answer == right
        found[number] = right
    assert found[0] != found[1], "videos make no difference"
    with pytest.raises(GenerationError, match="160 tokens of a prompt"):
        session.request([3, VIDEO], videos=[film(10, 1, 28, 28)], generation_len=2)


def test_features_of_frames_are_pooled() -> None:
    recipe = find_recipe("llava_next_video")
    case = parity.Case(recipe=recipe, tiny=recipe.tiny[0])
    subject = parity.Subject(case.config, recipe)
    named(subject.folder / "checkpoint", "LlavaNextVideo")
    session: Any = session_of(case, subject)
    (picture,) = film(1, 1, 28, 28)
    shown = {name: torch.from_numpy(one) for name, one in session.prepare(picture).items()}
    rows = session.reader.look(session.prepare(picture)).rows
    for _, answer, right in answers(session, subject.hf, 4, (shown, rows)):
        assert answer == right


def test_a_package_is_compared_on_videos_too(built: tuple[Package, Path]) -> None:
    session: Any = open_session(built[0], threads=1)
    sequences, shown = sample_media.insert(session, [[3] * 60] * 3)
    names = [[next(iter(one)) for one in every] for every in shown]
    assert names == [["pixel_values", "pixel_values_videos"], ["pixel_values_videos"], []]
    assert [one.count(VIDEO) for one in sequences] == [34, 34, 0]


def test_where_nothing_runs_it_a_package_goes_without(built: tuple[Package, Path]) -> None:
    asked = Request(target="qaic", ctx_len=128, prefill_seq_len=16)
    _, made = pipeline.make_plan(str(built[1]), asked)
    assert [program.role for program in made.programs] == ["language", "vision"]
    assert isinstance(made, plan.Plan)
    session: Any = open_session(built[0], threads=1)
    session.reader._open_frames = None
    with pytest.raises(GenerationError, match="no vision program.*--target ort"):
        session.request([3, VIDEO], videos=[film(2, 1)], generation_len=2)


@pytest.mark.parametrize("shape", [(40, 30), (30, 41), (28, 28)])
def test_frames_are_cut_as_pictures_are(tmp_path: Path, shape: tuple[int, int]) -> None:
    named(tmp_path, "LlavaNextVideo")
    shots = film(2, 3, *shape)
    found = load_video_processor(tmp_path)(shots)["pixel_values_videos"]
    across = [resize_across(one, *shortest_edge(one, 28), 3) for one in shots]
    right = image_processor({**SIZES, "image_processor_type": "CLIPImageProcessor"})(across)
    np.testing.assert_allclose(found[0], right["pixel_values"], atol=5e-7)
    usual = LlavaNextVideoVideoProcessor()
    settings = load_video_processor(tmp_path).settings
    assert [*settings["image_mean"]] == [*usual.image_mean]
    assert settings["resample"] == usual.resample
