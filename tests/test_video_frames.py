# SPDX-License-Identifier: Apache-2.0
"""Videos whose frames are read as pictures, one by one: as the unpatched models answer.

Those of InternVL are steps in the prompt; of LLaVA-OneVision's, fewer rows stand there together.
"""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import parity
import pytest
import torch
import transformers
from test_media_recipes import session_of
from test_video_times import clip
from test_videos import film
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers.models.internvl.processing_internvl import InternVLProcessor
from transformers.models.llava_onevision.processing_llava_onevision import LlavaOnevisionProcessor
from transformers.video_utils import VideoMetadata, default_sample_indices_fn

from qeff_zoo import pipeline
from qeff_zoo.choices import Request
from qeff_zoo.errors import GenerationError, MediaError
from qeff_zoo.media.image_processor import image_processor
from qeff_zoo.media.pixels import resize_across
from qeff_zoo.media.video_processor import KINDS, load_video_processor
from qeff_zoo.media.videos import Frames
from qeff_zoo.package import Package
from qeff_zoo.registry import find_recipe
from qeff_zoo.runtime import open_session
from qeff_zoo.store import Store
from qeff_zoo.validation import tiny_models

PICTURE, LENGTH = 200, 6
SPECIAL = {"<IMG_CONTEXT>": 200, "<video>": 201, "<img>": 202, "</img>": 203}
SETTINGS = {
    "video_processor_type": "InternVLVideoProcessor", "size": {"height": 28, "width": 28},
}  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Package, Path]:
    folder = tmp_path_factory.mktemp("frames")
    recipe = find_recipe("internvl")
    checkpoint = tiny_models.make(recipe, recipe.tiny[0], folder / "checkpoint")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    kept = {one: place for place, one in enumerate(letters) if ord(one) < 128}
    tokenizer = Tokenizer(
        models.BPE({**kept, **SPECIAL, "Ġ": 199, "Ċ": 198, "ĊF": 197}, [("Ċ", "F")])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([*SPECIAL])
    tokenizer.save(str(checkpoint / "tokenizer.json"))
    said = {"image_processor_type": "GotOcr2ImageProcessor", "size": SETTINGS["size"]}
    (checkpoint / "preprocessor_config.json").write_text(json.dumps(said))
    (checkpoint / "video_preprocessor_config.json").write_text(json.dumps(SETTINGS))
    asked = Request(prefill_seq_len=16, ctx_len=128, full_batch_size=2)
    done = pipeline.build(str(checkpoint), asked, validate=False, store=Store(folder / "store"))
    return done.package, checkpoint


Case = tuple[str, list[Any], list[Any]]
#: Text, pictures and videos; a line ends where the first frame begins.
CASES: list[Case] = [
    ("a\n<video>bcd", [], [film(3, 1, 28, 28)]),
    ("a\n<video>bcd", [], [film(3, 2, 28, 28)]),
    ("a<IMG_CONTEXT>b<video>what", film(1, 2, 28, 28), [film(1, 3, 28, 28)]),
    ("<video><IMG_CONTEXT><video>b", film(1, 4, 28, 28), [film(2, 4, 28, 28), film(1, 5, 28, 28)]),
    ("abcdef", [], []),
]  # fmt: skip


def processed(session: Any, case: Case) -> dict[str, Any]:
    """Return what the model's own forward takes, its text written by transformers."""
    text, pictures, films = case
    writer: Any = SimpleNamespace(
        start_image_token="<img>",
        end_image_token="</img>",
        image_token="<IMG_CONTEXT>",
        image_seq_length=4,
    )
    left, shown = iter(films), iter(pictures)
    pieces, pixels = [], []
    for piece in text.replace("<", "\0<").replace(">", ">\0").split("\0"):
        if piece == "<video>":
            made = session.prepare_video(next(left))["pixel_values"]
            piece = InternVLProcessor.replace_video_token(
                writer, {"pixel_values_videos": [made]}, 0
            )
            pixels.append(made)
        elif piece == "<IMG_CONTEXT>":
            pixels.append(session.prepare(next(shown))["pixel_values"])
            piece = InternVLProcessor.replace_image_token(writer, {"num_patches": [1]}, 0)
        pieces.append(piece)
    found = {"input_ids": torch.tensor([session.tokenizer.encode("".join(pieces))])}
    if pixels:
        found["pixel_values"] = torch.from_numpy(np.concatenate(pixels))
    return found


def test_answers_are_those_of_generate(built: tuple[Package, Path]) -> None:
    session: Any = open_session(built[0], threads=1)
    model = transformers.AutoModelForImageTextToText.from_pretrained(built[1]).eval()
    expected = []
    for case in CASES:
        given = processed(session, case)
        asked = session.request(case[0], images=case[1], videos=case[2], generation_len=2)
        assert list(asked.prompt) == given["input_ids"][0].tolist()
        made = model.generate(
            **given, max_new_tokens=LENGTH, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        expected.append(made[0, given["input_ids"].shape[1] :].tolist())
    assert expected[0] != expected[1], "videos make no difference"
    prompts, pictures, films = ([*one] for one in zip(*CASES, strict=True))
    answers = session.generate(
        prompts, images=pictures, videos=films, generation_len=LENGTH, ignore_eos=True
    )
    assert [answer.token_ids for answer in answers] == expected


def test_what_a_processor_prepared_is_taken(built: tuple[Package, Path]) -> None:
    session: Any = open_session(built[0], threads=1)
    frames = session.prepare_video(film(3, 1))["pixel_values"]
    one, other = (
        session.request("<video>", videos=[video], generation_len=2)
        for video in ({"pixel_values_videos": frames[None]}, film(3, 1))
    )
    assert one.prompt == other.prompt
    digests = [[part.digest for part in made.insets.parts] for made in (one, other)]
    assert digests[0] == digests[1]
    with pytest.raises(GenerationError, match=r"160 tokens of a prompt.*--ctx-len"):
        session.request("<video>", videos=[film(40, 1)], generation_len=2)


#: What `InternVLVideoProcessor` of transformers 5.23 chooses, whose module needs torchvision: settings, frames, how
#: many a second takes, and those that are chosen. Among 140 are some that float32 rounds up.
CHOSEN: list[tuple[dict[str, Any], int, float, list[int]]] = [
    ({"num_frames": 4}, 9, 4.0, [1, 3, 5, 7]),
    ({"num_frames": 4}, 61, 12.5, [7, 22, 38, 53]),
    ({"num_frames": 5, "initial_shift": 0}, 61, 12.5, [0, 12, 24, 36, 48]),
    ({"num_frames": 7, "initial_shift": False}, 9, 4.0, [0, 1, 2, 3, 5, 6, 7]),
    ({"fps": 2}, 61, 12.5, [3, 10, 16, 23, 30, 37, 44, 50, 57]),
    ({"fps": 1.3, "initial_shift": 1.5}, 61, 12.5, [1, 11, 21, 32, 42, 52]),
    ({"fps": 2}, 140, 13.276309282644394, [
        3, 10, 16, 23, 30, 36, 43, 50, 56, 63, 70, 76, 83, 90, 96, 103, 110, 116, 123, 130, 136,
    ]),
    ({}, 3, 1.0, [0, 1, 2]),
]  # fmt: skip


@pytest.mark.parametrize(("told", "frames", "fps", "expected"), CHOSEN)
def test_frames_are_those_that_transformers_takes(
    told: dict[str, Any], frames: int, fps: float, expected: list[int]
) -> None:
    kind = KINDS["InternVLVideoProcessor"]
    video = Frames([np.zeros((1, 1, 3), np.uint8)] * frames, fps, "a video")
    assert list(kind.sample(video, {**kind.settings, **told})) == expected


def test_numbers_are_those_of_a_picture(tmp_path: Path) -> None:
    said = {**SETTINGS, "do_sample_frames": True, "num_frames": 3}
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(said))
    process, shots = load_video_processor(tmp_path), film(8, 3, 40, 30)
    picture = image_processor(
        {"image_processor_type": "GotOcr2ImageProcessor", "size": SETTINGS["size"]}
    )
    for given in (shots, clip(tmp_path, shots, 250)):
        found = process(given)["pixel_values"]
        chosen = [resize_across(shots[one], 28, 28, 3) for one in (1, 4, 6)]
        right = np.concatenate([picture([one])["pixel_values"] for one in chosen])
        np.testing.assert_allclose(found, right, atol=5e-7)
    with pytest.raises(MediaError, match=r"it has 2 frames\. Expected at least 3"):
        process(film(2, 1))
    said = {**SETTINGS, "do_sample_frames": True, "fps": 2}
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(said))
    with pytest.raises(MediaError, match="no times"):
        load_video_processor(tmp_path)(shots)


def test_without_a_type_a_recipe_says_it(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"size": SETTINGS["size"]}))
    images: Any = find_recipe("internvl").images
    found = load_video_processor(tmp_path, images.video_processor)
    assert found.kind is KINDS["InternVLVideoProcessor"]


# --- LLaVA-OneVision -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [{"num_frames": 8}, {"fps": 0.7}, {"fps": 2}, {}])
def test_frames_are_at_whole_steps_as_in_transformers(told: dict[str, Any]) -> None:
    kind = KINDS["LlavaOnevisionVideoProcessor"]
    for total, fps in ((8, 2), (9, 4.0), (61, 12.5), (140, 13.276309282644394), (700, 29.97)):
        data = VideoMetadata(total_num_frames=total, fps=fps)
        video = Frames([np.zeros((1, 1, 3), np.uint8)] * total, fps, "a video")
        expected = default_sample_indices_fn(data, **told).tolist()
        assert [*kind.sample(video, {**kind.settings, **told})] == expected


def test_rows_of_frames_are_fewer_and_end_with_one() -> None:
    """Ids and answers, beside a picture, of a side that is no multiple of two."""
    recipe = find_recipe("llava_onevision")
    config = json.loads(json.dumps(recipe.tiny[0].config))
    config["vision_config"] |= {"image_size": 35, "patch_size": 7}
    config["image_grid_pinpoints"] = [[35, 70], [70, 35]]
    said: Any = {**recipe.tiny[0].image_processor, "size": {"height": 35, "width": 35}}
    said["image_grid_pinpoints"] = config["image_grid_pinpoints"]
    tiny = replace(recipe.tiny[0], config=config, image_processor=said)
    case = parity.Case(recipe=recipe, tiny=tiny)
    subject = parity.Subject(case.config, recipe)
    file = subject.folder / "checkpoint" / "video_preprocessor_config.json"
    told = {"video_processor_type": "LlavaOnevisionVideoProcessor", "size": said["size"]}
    file.write_text(json.dumps(told))
    session: Any = session_of(case, subject)
    (picture,), shots = film(1, 1, 35, 70), film(3, 2, 20, 30)
    asked = session.request([3, 200, 4, 201, 5], images=[picture], videos=[shots])
    made, shown = session.prepare_video(shots), session.prepare(picture)
    writer: Any = SimpleNamespace(num_image_tokens=25, video_token="v")
    given = {"pixel_values_videos": torch.from_numpy(made["pixel_values"])[None]}
    count = len(LlavaOnevisionProcessor.replace_video_token(writer, given, 0))
    rows = session.reader.look(shown).rows
    ids = [3, *[200] * rows, 4, *[201] * count, 5]
    assert [*asked.prompt] == [200 if one == 201 else one for one in ids]
    given |= {name: torch.from_numpy(array) for name, array in shown.items()}
    choices = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    right = subject.hf.generate(input_ids=torch.tensor([ids]), **given, **choices)
    for video in (shots, {"pixel_values_videos": made["pixel_values"][None]}):
        (answer,) = session.generate(
            [[3, 200, 4, 201, 5]], images=[[picture]], videos=[[video]], generation_len=6, ignore_eos=True
        )  # fmt: skip
        assert answer.token_ids == right[0, len(ids) :].tolist()
    with pytest.raises(GenerationError, match=r"takes 9,001 tokens of a prompt.*--ctx-len"):
        session.request([3, 201], videos=[film(1000, 1, 2, 2)])
