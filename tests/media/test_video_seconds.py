# SPDX-License-Identifier: Apache-2.0
"""Videos whose steps are images, with their times behind them (GLM-4.1V, 4.6V): as the unpatched model answers."""

import importlib
import json
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import transformers
from fixtures_video_times import clip
from fixtures_videos import SIZES, video_of
from tiny_checkpoint import plain_class
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers.models.glm4v.processing_glm4v import Glm4vProcessor
from transformers.models.glm4v.video_processing_glm4v import smart_resize
from transformers.models.glm46v.processing_glm46v import Glm46VProcessor
from transformers.video_utils import VideoMetadata

from qeff_zoo import pipeline
from qeff_zoo.checkpoint.processors import standing_in
from qeff_zoo.media.video_processor import KINDS, load_video_processor, stamp_of
from qeff_zoo.media.videos import Frames
from qeff_zoo.multimodal.encoding.video_steps import Stamps
from qeff_zoo.package import Package
from qeff_zoo.plan.request import Request
from qeff_zoo.registry import find_recipe
from qeff_zoo.sessions import open_session
from qeff_zoo.store import Store
from qeff_zoo.validation import tiny_models

pytestmark = pytest.mark.turns(2)

IMAGE, LENGTH = 200, 6
SPECIAL = [f"<|{kind}|>" for kind in ("image", "begin_of_image", "end_of_image")]
SPECIAL += [one.replace("image", "video") for one in SPECIAL]
SETTINGS = {**SIZES, "size": {"shortest_edge": 64, "longest_edge": 4096}}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Package, Path]:
    folder = tmp_path_factory.mktemp("seconds")
    recipe = find_recipe("glm4v")
    checkpoint = tiny_models.make(recipe, recipe.tiny[0], folder / "checkpoint")
    letters = "0123456789.abcdefghijklmnopqrstuvwxyz "  # 0 is padding to `generate`
    words = {letter: place for place, letter in enumerate(letters, 1)}
    words |= {one: IMAGE + place for place, one in enumerate(SPECIAL)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(checkpoint / "tokenizer.json"))
    plain_class(checkpoint)
    (checkpoint / "chat_template.jinja").write_text(
        "{% for part in messages[0].content %}{{ part.text if part.type == 'text' else "
        "'<|begin_of_' + part.type + '|><|' + part.type + '|><|end_of_' + part.type + '|>' }}{% endfor %}"
    )
    settings = {"image_processor_type": "Glm4vImageProcessor", **SETTINGS}
    (checkpoint / "preprocessor_config.json").write_text(json.dumps(settings))
    # As transformers writes it: `num_frames` beside `fps`, which alone is read.
    given_settings = {**SETTINGS, "num_frames": 16, "fps": 2}
    (checkpoint / "video_preprocessor_config.json").write_text(json.dumps(given_settings))
    requested = Request(prefill_seq_len=16, ctx_len=128, full_batch_size=2)
    done = pipeline.build(str(checkpoint), requested, validate=False, store=Store(folder / "store"))
    return done.package, checkpoint


Case = tuple[str, int, int]
#: Text, frames and milliseconds of each: one that chunks cut, one as long, another, text alone.
CASES: list[Case] = [
    ("a<|begin_of_video|><|video|><|end_of_video|>bcd", 5, 1),
    ("a<|begin_of_video|><|video|><|end_of_video|>bcd", 5, 2),
    ("<|begin_of_video|><|video|><|end_of_video|>what is", 3, 3),
]


def processor_of(name: str) -> Any:
    """Return transformers' class, whose module needs torchvision for nothing that is called here."""
    kind, path = name.lower(), "torchvision.transforms.v2"
    parts = [path.rsplit(".", count)[0] for count in range(3)]
    with standing_in({part: mock.MagicMock() for part in parts}):
        found = importlib.import_module(f"transformers.models.{kind}.video_processing_{kind}")
    return getattr(found, f"{name}VideoProcessor")


def writer(process: Any) -> Any:
    """Return what a processor of transformers needs to write the steps of a video."""
    known = {SPECIAL[at]: IMAGE + at for at in range(len(SPECIAL))}
    found = SimpleNamespace(
        image_token="<|image|>",
        image_token_id=IMAGE,
        video_start_id=known["<|begin_of_video|>"],
        video_end_id=known["<|end_of_video|>"],
        video_processor=SimpleNamespace(**SIZES),
    )
    found.replace_frame_token_id = partial(process.replace_frame_token_id, found)
    return found


def written_by_transformers(session: Any, text: str, count: int, path: Path) -> dict[str, Any]:
    """Return what the model's own forward takes, its text written by transformers' own processor."""
    given_settings = VideoMetadata(total_num_frames=count, fps=0.8, duration=count / 0.8)
    given_settings.frames_indices = processor_of("Glm4v")(**SETTINGS).sample_frames(given_settings)
    made, process = session.prepare_video(path), writer(Glm4vProcessor)
    grid = torch.from_numpy(made["image_grid_thw"])
    settings = {"video_grid_thw": grid, "video_metadata": [given_settings]}
    steps = Glm4vProcessor.replace_video_token(process, settings, 0)
    ids = session.tokenizer.encode(text.replace("<|video|>", steps))
    types = Glm4vProcessor.create_mm_token_type_ids(process, [ids])
    assert 2 in types[0]
    return {
        "input_ids": torch.tensor([ids]),
        "mm_token_type_ids": torch.tensor(types),
        "pixel_values_videos": torch.from_numpy(made["pixel_values"]),
        "video_grid_thw": grid,
    }


@pytest.mark.parametrize("named", [False, True], ids=["by-type", "by-name"])
@pytest.mark.parametrize(
    ("model_type", "name", "process"),
    [
        ("glm4v", "Glm4v", Glm4vProcessor),
        ("glm46v", "Glm46V", Glm46VProcessor),
        ("glmga", "Glmga", Glm46VProcessor),
    ],
)
def test_times_are_written_as_by_transformers(
    model_type: str, name: str, process: Any, named: bool, tmp_path: Path
) -> None:
    """By the processor that a checkpoint names: those of GLM-4.6V have the model's types of before."""
    images = find_recipe("glm4v" if named else model_type).images
    assert images is not None
    if named:
        settings = {**SETTINGS, "video_processor_type": f"{name}VideoProcessor"}
        (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(settings))
    tokenizer: Any = SimpleNamespace()
    given_settings = VideoMetadata(
        total_num_frames=90, fps=7, frames_indices=[0, 5, 20, 33, 72, 80]
    )
    given = {"video_grid_thw": torch.tensor([[3, 2, 2]]), "video_metadata": [given_settings]}
    texts = stamp_of(tmp_path, images.video_processor)
    mine = Stamps(texts, tokenizer, "<|image|>").in_text(
        "<|image|>", [{"timestamps": np.array(given_settings.timestamps[::2])}]
    )
    assert mine == process.replace_video_token(writer(process), given, 0)


def test_answers_are_those_of_generate(built: tuple[Package, Path], tmp_path: Path) -> None:
    """Ids, too: prompts are what transformers' processor and tokenizer make of the same text."""
    session: Any = open_session(built[0], threads=1)
    model = transformers.AutoModelForImageTextToText.from_pretrained(built[1]).eval()
    expected, video_inputs = [], []
    for number, (text, count, seed) in enumerate(CASES):
        (tmp_path / str(number)).mkdir()
        video_inputs.append([clip(tmp_path / str(number), video_of(count, seed), 1250)])
        given = written_by_transformers(session, text, count, video_inputs[-1][0])
        requested = session.request(text, videos=video_inputs[-1], generation_len=2)
        assert list(requested.prompt) == given["input_ids"][0].tolist()
        made = model.generate(
            **given, max_new_tokens=LENGTH, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        expected.append(made[0, given["input_ids"].shape[1] :].tolist())
    assert expected[0] != expected[1], "videos make no difference"
    answers = session.generate(
        [text for text, _, _ in CASES], videos=video_inputs, generation_len=LENGTH, ignore_eos=True
    )
    assert [answer.token_ids for answer in answers] == expected


def test_frames_without_times_are_all_taken(built: tuple[Package, Path]) -> None:
    """As transformers takes frames that were sampled before, which count as 24 a second."""
    session: Any = open_session(built[0], threads=1)
    shots = video_of(4, 1)
    given_settings = VideoMetadata(total_num_frames=4, fps=None, frames_indices=[*range(4)])
    grid = torch.from_numpy(session.prepare_video(shots)["image_grid_thw"])
    settings, process = (
        {"video_grid_thw": grid, "video_metadata": [given_settings]},
        writer(Glm4vProcessor),
    )
    text = CASES[0][0]
    steps = Glm4vProcessor.replace_video_token(process, settings, 0)
    ids = session.tokenizer.encode(text.replace("<|video|>", steps))
    assert list(session.request(text, videos=[shots], generation_len=2).prompt) == ids


@pytest.mark.parametrize("name", ["Glm4v", "Glm46V", "Glmga"])
def test_frames_are_those_that_transformers_takes(name: str) -> None:
    reference, kind = processor_of(name), KINDS[f"{name}VideoProcessor"]
    changed: dict[str, Any] = {"fps": 0.7, "max_duration": 40, "max_frames": 30}
    for frames, fps, settings in product(
        (2, 9, 61, 700, 2600), (0.5, 1, 2, 2.4, 7, 24, 30), ({}, changed)
    ):
        video = Frames([np.zeros((1, 1, 3), np.uint8)] * frames, fps, "a video")
        known = {key: value for key, value in settings.items() if hasattr(reference, key)}
        expected = reference(**known).sample_frames(
            VideoMetadata(total_num_frames=frames, fps=fps, duration=frames / fps)
        )
        assert list(kind.sample(video, {**kind.settings, **known})) == expected.tolist()


@pytest.mark.parametrize("expand", [1, 2])
def test_sizes_are_those_of_transformers(expand: int) -> None:
    """Of frames whose pixels are judged together; GLM-GA's may be multiples of more than what is merged."""
    kind = KINDS["GlmgaVideoProcessor"]
    settings = {**kind.settings, "patch_expand_factor": expand}
    low, high = (settings["size"][name] for name in ("shortest_edge", "longest_edge"))
    for frames in (2, 16, 640):
        for height, width in ((480, 640), (20, 1000), (1080, 1920), (33, 31)):
            expected = smart_resize(frames, height, width, 2, 28 * expand, low, high)
            image = np.broadcast_to(np.uint8(0), (height, width, 3))
            assert kind.size(image, frames, settings) == expected


@pytest.mark.parametrize("name", ["Glm4v", "Glm46V", "Glmga"])
def test_patches_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """To the last bit, where frames keep their size and numbers, which transformers leaves to torchvision."""
    as_they_are = dict.fromkeys(("do_resize", "do_rescale", "do_normalize"), False)
    settings = {**SETTINGS, **as_they_are, "video_processor_type": f"{name}VideoProcessor"}
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(settings))
    mine = load_video_processor(tmp_path)(clip(tmp_path, video_of(9, 3), 400))
    reference = processor_of(name)(**settings, do_convert_rgb=False)(
        [np.stack(video_of(9, 3))],
        video_metadata=[{"fps": 2.5, "total_num_frames": 9, "duration": 3.6}],
        return_metadata=True,
        return_tensors="np",
    )
    np.testing.assert_array_equal(mine["pixel_values"], reference["pixel_values_videos"])
    np.testing.assert_array_equal(mine["image_grid_thw"], reference["video_grid_thw"])
    assert mine["timestamps"].tolist() == reference["video_metadata"][0].timestamps[::2]
