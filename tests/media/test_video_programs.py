# SPDX-License-Identifier: Apache-2.0
"""Videos whose frames go through other operators than images, in a program of their own: as the unpatched model."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import parity
import pytest
import torch
import transformers
from fixtures_media_recipes import session_of
from fixtures_video_times import clip
from fixtures_videos import video_of
from tiny_checkpoint import plain_class
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers.models.llava_next_video.video_processing_llava_next_video import (
    LlavaNextVideoVideoProcessor,
)
from transformers.models.video_llama_3.processing_video_llama_3 import VideoLlama3Processor
from transformers.video_utils import VideoMetadata

from qeff_zoo import pipeline
from qeff_zoo.errors import GenerationError, MediaError
from qeff_zoo.media.image_processor import image_processor
from qeff_zoo.media.pixels import resize_across, shortest_edge
from qeff_zoo.media.video_processor import KINDS, load_video_processor
from qeff_zoo.package import Package
from qeff_zoo.plan import resolve
from qeff_zoo.plan.request import Request
from qeff_zoo.registry import find_recipe
from qeff_zoo.sessions import open_session
from qeff_zoo.store import Store
from qeff_zoo.tasks.multimodal import samples
from qeff_zoo.tasks.multimodal.trial import ImageTrial
from qeff_zoo.validation import tiny_models

pytestmark = pytest.mark.turns(3)

IMAGE, VIDEO, LENGTH = 200, 201, 6
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
    requested = Request(prefill_seq_len=16, ctx_len=128, full_batch_size=2)
    done = pipeline.build(str(checkpoint), requested, validate=False, store=Store(folder / "store"))
    return done.package, checkpoint


def named(checkpoint: Path, model: str) -> None:
    """Write the settings of processors, as a checkpoint of that model has them."""
    for file, name, value in (
        ("preprocessor_config.json", "image_processor_type", "CLIPImageProcessor"),
        ("video_preprocessor_config.json", "video_processor_type", f"{model}VideoProcessor"),
    ):
        (checkpoint / file).write_text(json.dumps({**SIZES, name: value}))


def answers(
    session: Any, model: Any, rows: int, shown: Any
) -> Iterator[tuple[Any, Any, list[int]]]:
    """Yield what a session was asked of images and videos, how it answers, and how the model does.

    Args:
        session: Of the package.
        model: Unpatched.
        rows: Of a frame.
        shown: A picture, as the model takes it, and how many rows it takes.
    """
    (image,), (given, count) = video_of(1, 1, 28, 28), shown
    for number, (prompt, clips) in enumerate((
        ([3, VIDEO, 4], [video_of(3, 2, 30, 40)]),
        ([3, VIDEO, 4], [video_of(3, 3, 30, 40)]),
        ([3, VIDEO, 4, IMAGE, 5, VIDEO], [video_of(2, 4, 28, 28), video_of(2, 5, 40, 30)]),
    )):  # fmt: skip
        photos = [image] if IMAGE in prompt else []
        played = [session.prepare_video(one)["pixel_values_videos"] for one in clips]
        run = {IMAGE: count, VIDEO: rows * len(clips[0])}
        ids = [same for one in prompt for same in [one] * run.get(one, 1)]
        requested = session.request(prompt, images=photos, videos=clips, generation_len=2)
        assert [*requested.prompt] == ids
        settings = {
            **(given if photos else {}),
            "pixel_values_videos": torch.from_numpy(np.concatenate(played)),
        }
        right = model.generate(input_ids=torch.tensor([ids]), **settings, **CHOICES)
        prepared = [{"pixel_values_videos": one} for one in played]
        for videos in (clips, prepared):
            (answer,) = session.generate(
                [prompt], images=[photos], videos=[videos], generation_len=LENGTH, ignore_eos=True
            )
            yield number, answer.token_ids, right[0, len(ids) :].tolist()


def test_another_tower_reads_frames(built: tuple[Package, Path]) -> None:
    package, checkpoint = built
    assert [program.role for program in package.programs] == ["language", "vision", "frames"]
    session: Any = open_session(package, threads=1)
    model: Any = transformers.AutoModelForImageTextToText.from_pretrained(checkpoint).eval()
    (image,) = video_of(1, 1, 28, 28)
    pixels = torch.from_numpy(session.prepare(image)["pixel_values"])
    found = {}
    for number, answer, right in answers(session, model, 17, ({"pixel_values": pixels}, 16)):
        assert answer == right
        found[number] = right
    assert found[0] != found[1], "videos make no difference"
    with pytest.raises(GenerationError, match="160 tokens of a prompt"):
        session.request([3, VIDEO], videos=[video_of(10, 1, 28, 28)], generation_len=2)


def test_features_of_frames_are_pooled() -> None:
    recipe = find_recipe("llava_next_video")
    case = parity.Case(recipe=recipe, tiny=recipe.tiny[0])
    subject = parity.Subject(case.config, recipe)
    named(subject.folder / "checkpoint", "LlavaNextVideo")
    session: Any = session_of(case, subject)
    (image,) = video_of(1, 1, 28, 28)
    shown = {name: torch.from_numpy(value) for name, value in session.prepare(image).items()}
    rows = session.reader.look(session.prepare(image)).rows
    for _, answer, right in answers(session, subject.hf, 4, (shown, rows)):
        assert answer == right


def test_a_package_is_compared_on_videos_too(built: tuple[Package, Path]) -> None:
    session: Any = open_session(built[0], threads=1)
    sequences, shown = samples.insert(session, [[3] * 60] * 3, ImageTrial(session).inputs())
    names = [[next(iter(one)) for one in every] for every in shown]
    assert names == [["pixel_values", "pixel_values_videos"], ["pixel_values_videos"], []]
    assert [sequence.count(VIDEO) for sequence in sequences] == [34, 34, 0]


def test_where_nothing_runs_it_a_package_goes_without(built: tuple[Package, Path]) -> None:
    requested = Request(target="qaic", ctx_len=128, prefill_seq_len=16)
    _, made = pipeline.make_plan(str(built[1]), requested)
    assert [program.role for program in made.programs] == ["language", "vision"]
    assert isinstance(made, resolve.Plan)
    session: Any = open_session(built[0], threads=1)
    session.reader._open_frames = None
    with pytest.raises(GenerationError, match=r"no vision program.*--target ort"):
        session.request([3, VIDEO], videos=[video_of(2, 1)], generation_len=2)


@pytest.mark.parametrize("shape", [(40, 30), (30, 41), (28, 28)])
def test_frames_are_cropped_as_images(tmp_path: Path, shape: tuple[int, int]) -> None:
    named(tmp_path, "LlavaNextVideo")
    shots = video_of(2, 3, *shape)
    found = load_video_processor(tmp_path)(shots)["pixel_values_videos"]
    across = [resize_across(shot, *shortest_edge(shot, 28), 3) for shot in shots]
    right = image_processor({**SIZES, "image_processor_type": "CLIPImageProcessor"})(across)
    np.testing.assert_allclose(found[0], right["pixel_values"], atol=5e-7)
    usual = LlavaNextVideoVideoProcessor()
    settings = load_video_processor(tmp_path).settings
    assert [*settings["image_mean"]] == [*usual.image_mean]
    assert settings["resample"] == usual.resample


# --- VideoLLaMA 3 ----------------------------------------------------------------------------------------------------

MERGED = {
    "patch_size": 4, "merge_size": 2, "size": {"shortest_edge": 64, "longest_edge": 2048},
}  # fmt: skip


def still(frames: int, seed: int) -> list[Any]:
    """Return frames of 16 x 24 pixels of which the lower half stays; the third has one other color alone."""
    random = np.random.default_rng(seed)
    base = random.integers(0, 256, (16, 24, 3), np.uint8)
    every = []
    for number in range(frames):
        frame = base.copy()
        frame[:8] = random.integers(0, 256, (8, 24, 3), np.uint8)
        if number == 2:
            frame = every[-1].copy()
            frame[0, 0, 0] ^= 1
        every.append(frame)
    return every


@pytest.fixture(scope="module")
def pruning() -> tuple[Any, Any]:
    """Return a session and its model; a space is one with what follows it."""
    recipe = find_recipe("video_llama_3")
    case = parity.Case(recipe=recipe, tiny=replace(recipe.tiny[0], ctx_len=128))
    subject = parity.Subject(case.config, recipe)
    folder = subject.folder / "checkpoint"
    letters = [one for one in sorted(pre_tokenizers.ByteLevel.alphabet()) if ord(one) < 128]
    special = {"<|image_pad|>": IMAGE, "<|video_pad|>": VIDEO}
    known = {one: at for at, one in enumerate([*letters, "Ġ", "Ċ", "ĠT"])}
    tokenizer = Tokenizer(models.BPE(known | special, [("Ġ", "T")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([*special])
    tokenizer.save(str(folder / "tokenizer.json"))
    plain_class(folder)
    (folder / "chat_template.jinja").write_text("a <|video_pad|>{{ messages[0].content[1].text }}")
    (folder / "preprocessor_config.json").write_text(json.dumps({**MERGED, "merge_size": 1}))
    settings = {**MERGED, "video_processor_type": "VideoLlama3VideoProcessor"}
    (folder / "video_preprocessor_config.json").write_text(json.dumps(settings))
    return session_of(case, subject), subject.hf


def written(session: Any, text: str, made: Any, fps: float | None) -> list[int]:
    """Return the ids of a text with a video, as transformers' processor writes it."""
    writer: Any = SimpleNamespace(video_token="<|video_pad|>")
    count = int(made["video_grid_thw"][0, 0])
    settings = VideoMetadata(total_num_frames=count, fps=fps, frames_indices=[*range(count)])
    given = {name: torch.from_numpy(value) for name, value in made.items()} | {
        "video_metadata": [settings]
    }
    whole = VideoLlama3Processor.replace_video_token(writer, given, 0)
    return list(session.tokenizer.encode(text.replace("<|video_pad|>", whole)))


def test_rows_that_repeat_are_left_out(pruning: tuple[Any, Any], tmp_path: Path) -> None:
    session, model = pruning
    found = []
    for seed, fps in ((1, None), (2, None), (1, 2.0)):
        shots = still(4, seed)
        given = clip(tmp_path, shots, 500) if fps else shots
        made = session.prepare_video(given)
        assert 0 < made["video_compression_mask"].sum() < 24
        ids = written(session, "a <|video_pad|>b", made, fps)
        settings = {
            name: torch.from_numpy(value) for name, value in made.items() if name != "timestamps"
        }
        right = model.generate(input_ids=torch.tensor([ids]), **settings, **CHOICES)[0, len(ids) :]
        for video in (given, made):
            requested = session.request("b", chat=True, videos=[video], generation_len=2)
            assert [*requested.prompt] == ids
            (answer,) = session.generate(
                ["b"], chat=True, videos=[[video]], generation_len=LENGTH, ignore_eos=True
            )
            assert answer.token_ids == right.tolist()
        found.append(answer.token_ids)
    assert found[0] != found[1], "videos make no difference"
    del made["video_compression_mask"]
    with pytest.raises(GenerationError, match="has no video_compression_mask"):
        session.prepare_video(made)
    with pytest.raises(MediaError, match=r"merged by \[1\]; expected 2"):
        session.request(
            "b", chat=True, videos=[{**session.prepare_video(shots), "video_merge_sizes": [1]}]
        )


#: By frames of `still`, which rows `VideoLlama3VideoProcessor` of transformers 5.23 keeps, whose module needs
#: torchvision: of each frame its upper three and its lower three.
ROWS = {1: "111111", 3: "111111 111000 100000", 5: "111111 111000 100000 111000 111000"}


@pytest.mark.parametrize(("frames", "expected"), ROWS.items())
def test_rows_are_those_that_transformers_keeps(tmp_path: Path, frames: int, expected: str) -> None:
    content = {**MERGED, "video_processor_type": "VideoLlama3VideoProcessor"}
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(content))
    process = load_video_processor(tmp_path)
    kept = process(still(frames, 3))["video_compression_mask"]
    assert "".join(map(str, kept.astype(int))) == expected.replace(" ", "")
    every = replace(process, settings={**process.settings, "use_token_compression": False})
    assert every(still(frames, 3))["video_compression_mask"].all()


def test_frames_are_smaller_where_there_are_more() -> None:
    kind, image = KINDS["VideoLlama3VideoProcessor"], np.broadcast_to(np.uint8(0), (480, 640, 3))
    # What `smart_resize` of transformers 5.23 says.
    for frames, expected in ((1, (476, 644)), (8, (224, 308)), (180, (28, 56))):
        assert kind.size(image, frames, kind.settings) == expected
