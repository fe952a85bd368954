# SPDX-License-Identifier: Apache-2.0
"""Videos whose frames are read as images, one by one: as the unpatched models answer.

Those of InternVL and SmolVLM are steps in the prompt; of LLaVA-OneVision's, fewer rows stand there together.
"""

import base64
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

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
from transformers.models.internvl.processing_internvl import InternVLProcessor
from transformers.models.llava_onevision.processing_llava_onevision import LlavaOnevisionProcessor
from transformers.models.smolvlm import processing_smolvlm
from transformers.models.smolvlm.processing_smolvlm import SmolVLMProcessor
from transformers.models.smolvlm.video_processing_smolvlm import SmolVLMVideoProcessor
from transformers.video_utils import VideoMetadata, default_sample_indices_fn

from qeff_zoo import pipeline
from qeff_zoo.errors import GenerationError, MediaError
from qeff_zoo.media.image_processor import image_processor
from qeff_zoo.media.pixels import resize_across
from qeff_zoo.media.video_processor import KINDS, load_video_processor
from qeff_zoo.media.videos import Frames
from qeff_zoo.multimodal.encoding.video_steps import _in_words
from qeff_zoo.package import Package
from qeff_zoo.plan.request import Request
from qeff_zoo.registry import find_recipe
from qeff_zoo.runtime.text.chat_template import ChatTemplate
from qeff_zoo.serving.requests.prompts import chat_requests
from qeff_zoo.serving.requests.schemas import ChatRequest
from qeff_zoo.sessions import open_session
from qeff_zoo.store import Store
from qeff_zoo.validation import tiny_models

pytestmark = pytest.mark.turns(2)

IMAGE, LENGTH = 200, 6
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
    kept = {letter: place for place, letter in enumerate(letters) if ord(letter) < 128}
    tokenizer = Tokenizer(
        models.BPE({**kept, **SPECIAL, "Ġ": 199, "Ċ": 198, "ĊF": 197}, [("Ċ", "F")])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([*SPECIAL])
    tokenizer.save(str(checkpoint / "tokenizer.json"))
    plain_class(checkpoint)
    settings = {"image_processor_type": "GotOcr2ImageProcessor", "size": SETTINGS["size"]}
    (checkpoint / "preprocessor_config.json").write_text(json.dumps(settings))
    (checkpoint / "video_preprocessor_config.json").write_text(json.dumps(SETTINGS))
    requested = Request(prefill_seq_len=16, ctx_len=128, full_batch_size=2)
    done = pipeline.build(str(checkpoint), requested, validate=False, store=Store(folder / "store"))
    return done.package, checkpoint


Case = tuple[str, list[Any], list[Any]]
#: Text, pictures and videos; a line ends where the first frame begins.
CASES: list[Case] = [
    ("a\n<video>bcd", [], [video_of(3, 1, 28, 28)]),
    ("a\n<video>bcd", [], [video_of(3, 2, 28, 28)]),
    ("a<IMG_CONTEXT>b<video>what", video_of(1, 2, 28, 28), [video_of(1, 3, 28, 28)]),
    ("<video><IMG_CONTEXT><video>b", video_of(1, 4, 28, 28), [video_of(2, 4, 28, 28), video_of(1, 5, 28, 28)]),
    ("abcdef", [], []),
]  # fmt: skip


def processed(session: Any, case: Case) -> dict[str, Any]:
    """Return what the model's own forward takes, its text written by transformers."""
    text, images, videos = case
    writer: Any = SimpleNamespace(
        start_image_token="<img>",
        end_image_token="</img>",
        image_token="<IMG_CONTEXT>",
        image_seq_length=4,
    )
    left, shown = iter(videos), iter(images)
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
        requested = session.request(case[0], images=case[1], videos=case[2], generation_len=2)
        assert list(requested.prompt) == given["input_ids"][0].tolist()
        made = model.generate(
            **given, max_new_tokens=LENGTH, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        expected.append(made[0, given["input_ids"].shape[1] :].tolist())
    assert expected[0] != expected[1], "videos make no difference"
    prompts, photos, video_inputs = ([*one] for one in zip(*CASES, strict=True))
    answers = session.generate(
        prompts, images=photos, videos=video_inputs, generation_len=LENGTH, ignore_eos=True
    )
    assert [answer.token_ids for answer in answers] == expected


def test_output_of_a_video_processor_is_accepted(built: tuple[Package, Path]) -> None:
    session: Any = open_session(built[0], threads=1)
    frames = session.prepare_video(video_of(3, 1))["pixel_values"]
    one, other = (
        session.request("<video>", videos=[video], generation_len=2)
        for video in ({"pixel_values_videos": frames[None]}, video_of(3, 1))
    )
    assert one.prompt == other.prompt
    digests = [[part.digest for part in made.spans.parts] for made in (one, other)]
    assert digests[0] == digests[1]
    with pytest.raises(GenerationError, match=r"160 tokens of a prompt.*--ctx-len"):
        session.request("<video>", videos=[video_of(40, 1)], generation_len=2)


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


@pytest.mark.parametrize(("settings", "frames", "fps", "expected"), CHOSEN)
def test_frames_are_those_that_transformers_takes(
    settings: dict[str, Any], frames: int, fps: float, expected: list[int]
) -> None:
    kind = KINDS["InternVLVideoProcessor"]
    video = Frames([np.zeros((1, 1, 3), np.uint8)] * frames, fps, "a video")
    assert list(kind.sample(video, {**kind.settings, **settings})) == expected


def test_numbers_are_those_of_an_image(tmp_path: Path) -> None:
    settings = {**SETTINGS, "do_sample_frames": True, "num_frames": 3}
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(settings))
    process, shots = load_video_processor(tmp_path), video_of(8, 3, 40, 30)
    image = image_processor(
        {"image_processor_type": "GotOcr2ImageProcessor", "size": SETTINGS["size"]}
    )
    for given in (shots, clip(tmp_path, shots, 250)):
        found = process(given)["pixel_values"]
        chosen = [resize_across(shots[one], 28, 28, 3) for one in (1, 4, 6)]
        right = np.concatenate([image([one])["pixel_values"] for one in chosen])
        np.testing.assert_allclose(found, right, atol=5e-7)
    with pytest.raises(MediaError, match=r"it has 2 frames\. Expected at least 3"):
        process(video_of(2, 1))
    settings = {**SETTINGS, "do_sample_frames": True, "fps": 2}
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.raises(MediaError, match="no times"):
        load_video_processor(tmp_path)(shots)


def test_without_a_type_the_recipe_sets_it(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"size": SETTINGS["size"]}))
    images: Any = find_recipe("internvl").images
    found = load_video_processor(tmp_path, images.video_processor)
    assert found.kind is KINDS["InternVLVideoProcessor"]


# --- LLaVA-OneVision -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{"num_frames": 8}, {"fps": 0.7}, {"fps": 2}, {}])
def test_frames_are_at_whole_steps_as_in_transformers(settings: dict[str, Any]) -> None:
    kind = KINDS["LlavaOnevisionVideoProcessor"]
    for total, fps in ((8, 2), (9, 4.0), (61, 12.5), (140, 13.276309282644394), (700, 29.97)):
        data = VideoMetadata(total_num_frames=total, fps=fps)
        video = Frames([np.zeros((1, 1, 3), np.uint8)] * total, fps, "a video")
        expected = default_sample_indices_fn(data, **settings).tolist()
        assert [*kind.sample(video, {**kind.settings, **settings})] == expected


def test_rows_of_frames_are_fewer_and_end_with_one() -> None:
    """Ids and answers, beside an image, of a side that is no multiple of two."""
    recipe = find_recipe("llava_onevision")
    config = json.loads(json.dumps(recipe.tiny[0].config))
    config["vision_config"] |= {"image_size": 35, "patch_size": 7}
    config["image_grid_pinpoints"] = [[35, 70], [70, 35]]
    settings: Any = {**recipe.tiny[0].image_processor, "size": {"height": 35, "width": 35}}
    settings["image_grid_pinpoints"] = config["image_grid_pinpoints"]
    tiny = replace(recipe.tiny[0], config=config, image_processor=settings)
    case = parity.Case(recipe=recipe, tiny=tiny)
    subject = parity.Subject(case.config, recipe)
    file = subject.folder / "checkpoint" / "video_preprocessor_config.json"
    given_settings = {
        "video_processor_type": "LlavaOnevisionVideoProcessor",
        "size": settings["size"],
    }
    file.write_text(json.dumps(given_settings))
    session: Any = session_of(case, subject)
    (image,), shots = video_of(1, 1, 35, 70), video_of(3, 2, 20, 30)
    requested = session.request([3, 200, 4, 201, 5], images=[image], videos=[shots])
    made, shown = session.prepare_video(shots), session.prepare(image)
    writer: Any = SimpleNamespace(num_image_tokens=25, video_token="v")
    given = {"pixel_values_videos": torch.from_numpy(made["pixel_values"])[None]}
    count = len(LlavaOnevisionProcessor.replace_video_token(writer, given, 0))
    rows = session.reader.look(shown).rows
    ids = [3, *[200] * rows, 4, *[201] * count, 5]
    assert [*requested.prompt] == [200 if token == 201 else token for token in ids]
    given |= {name: torch.from_numpy(array) for name, array in shown.items()}
    choices = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    right = subject.hf.generate(input_ids=torch.tensor([ids]), **given, **choices)
    for video in (shots, {"pixel_values_videos": made["pixel_values"][None]}):
        (answer,) = session.generate(
            [[3, 200, 4, 201, 5]], images=[[image]], videos=[[video]], generation_len=6, ignore_eos=True
        )  # fmt: skip
        assert answer.token_ids == right[0, len(ids) :].tolist()
    with pytest.raises(GenerationError, match=r"takes 9,001 tokens of a prompt.*--ctx-len"):
        session.request([3, 201], videos=[video_of(1000, 1, 2, 2)])


# --- SmolVLM ---------------------------------------------------------------------------------------------------------

TEXTS = {
    "<image>": 200, "<fake_token_around_image>": 201, "<global-img>": 202, "<|im_start|>": 203,
    "<end_of_utterance>": 204, "<row_1_col_1>": 205,
}  # fmt: skip
#: What num2words 0.5 writes.
WORDS = {
    1: "one", 2: "two", 3: "three", 13: "thirteen", 20: "twenty", 64: "sixty-four", 100: "one hundred",
    101: "one hundred and one", 999: "nine hundred and ninety-nine", 1000: "one thousand", 1001: "one thousand and one",
    1100: "one thousand, one hundred", 16384: "sixteen thousand, three hundred and eighty-four",
}  # fmt: skip


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Return a session and its model; words of the prompt's own and of a video's texts become one token."""
    recipe = find_recipe("smolvlm")
    case = parity.Case(recipe=recipe, tiny=replace(recipe.tiny[0], ctx_len=256))
    subject = parity.Subject(case.config, case.recipe)
    folder = subject.folder / "checkpoint"
    letters = [one for one in sorted(pre_tokenizers.ByteLevel.alphabet()) if ord(one) < 128]
    joined = [("Ġ", "Y"), ("Ċ", "Ċ"), ("ĊĊ", "w"), (">", "w")]
    every = [*letters, "Ġ", "Ċ", *("".join(one) for one in joined)]
    tokenizer = Tokenizer(models.BPE({one: at for at, one in enumerate(every)} | TEXTS, joined))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([*TEXTS])
    tokenizer.save(str(folder / "tokenizer.json"))
    plain_class(folder)
    (folder / "chat_template.jinja").write_text("{{ raise_exception('not of videos') }}")
    settings: Any = {**case.recipe.tiny[0].image_processor, "do_image_splitting": False}
    settings["video_sampling"] = {"fps": 2, "max_frames": 3, "video_size": {"longest_edge": 30}}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    session: Any = session_of(case, subject)
    session._processor = None  # but that of the file
    return session, subject.hf


def written(session: Any, text: str, videos: list[Any], fps: float | None = None) -> list[int]:
    """Return the ids of a text as transformers' processor writes its videos."""
    writer: Any = SimpleNamespace(
        image_token="<image>", fake_image_token="<fake_token_around_image>",
        global_image_token="<global-img>", image_seq_len=4,
    )  # fmt: skip
    every = []
    for video in videos:
        settings = VideoMetadata(
            total_num_frames=len(video), fps=fps, frames_indices=[*range(len(video))]
        )
        if fps:
            settings.duration, requested = len(video) / fps, SimpleNamespace(num_frames=3, fps=2)
            settings.frames_indices = SmolVLMVideoProcessor.sample_frames(requested, settings)  # type: ignore[arg-type]
        every.append(settings)
    # Shorter videos are filled up.
    given = {"pixel_values": np.zeros((1, max(len(one.frames_indices) for one in every)))}
    for settings in every:
        with mock.patch.object(processing_smolvlm, "num2words", WORDS.__getitem__):
            made = SmolVLMProcessor.replace_video_token(
                writer, {**given, "video_metadata": [settings]}, 0
            )
        text = text.replace("<video>", made, 1)
    return list(session.tokenizer.encode(text))


def test_texts_around_a_video_are_read_with_what_stands_beside_it(
    small: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, model = small
    (image,), shots, others = video_of(1, 1, 28, 28), video_of(2, 2, 28, 28), video_of(3, 3, 28, 28)
    text = "a <video>what<image>b<video>w"
    shown = session.prepare(image)
    named = "<fake_token_around_image><global-img>", "<image>" * 4, "<fake_token_around_image>"
    apart = text.replace("<image>", "".join(named))
    ids = written(session, apart, [shots, others])
    requested = session.request(text, images=[image], videos=[shots, others], generation_len=2)
    assert [*requested.prompt] == ids
    pixels = [session.prepare_video(shots), shown, session.prepare_video(others)]
    every = [pixel["pixel_values"].reshape(-1, 3, 28, 28) for pixel in pixels]
    right = model.generate(
        input_ids=torch.tensor([ids]), pixel_values=torch.from_numpy(np.concatenate(every))[None],
        max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=0,
    )[0, len(ids) :].tolist()  # fmt: skip
    (answer,) = session.generate(
        [text], images=[[image]], videos=[[shots, others]], generation_len=6, ignore_eos=True
    )
    assert answer.token_ids == right
    # A chat, of an animation that is sampled, and the same from a server.
    path = clip(tmp_path, video_of(9, 1, 40, 30), 250)
    parts = [{"type": "video"}, {"type": "text", "text": "what"}]
    chat = session.chat_template.render
    with pytest.raises(GenerationError, match="not of videos"):
        chat([{"role": "user", "content": parts}])
    template = ChatTemplate(processing_smolvlm.DEFAULT_CHAT_TEMPLATE, {})
    whole = template.render([{"role": "user", "content": parts}])
    ids = written(session, whole, [video_of(9, 1, 40, 30)], fps=4)
    requested = session.request("what", chat=True, videos=[path], generation_len=2)
    assert [*requested.prompt] == ids
    assert "three frames from a 0:00:02 [H" in session.tokenizer.spelled(ids)
    url = "data:video/apng;base64," + base64.b64encode(path.read_bytes()).decode()
    sent: Any = [{"type": "video_url", "video_url": {"url": url}}, parts[1]]
    body = ChatRequest(model="m", messages=[{"role": "user", "content": sent}], max_tokens=2)
    (served,) = chat_requests(session, body)
    assert served.prompt == requested.prompt
    # What its processor prepared.
    made = session.prepare_video(path)
    given = {
        "pixel_values": made["pixel_values"][None],
        "timestamps": made["timestamps"],
        "duration": 2.25,
    }
    again = session.request("what", chat=True, videos=[given], generation_len=2)
    assert again.prompt == requested.prompt
    with pytest.raises(GenerationError, match="3 steps of time, and 0 times"):
        session.request("<video>", videos=[{"pixel_values": made["pixel_values"]}])
    with pytest.raises(GenerationError, match=r"2 places for videos.*1 videos"):
        session.request("<video><video>", videos=[given])
    monkeypatch.setattr(session, "tokenizer", None)
    with pytest.raises(GenerationError, match=r"no tokenizer.*Build the package"):
        session.request([3, 4], videos=[given])


def test_numbers_are_written_in_words() -> None:
    assert {word: _in_words(word) for word in WORDS} == WORDS


@pytest.mark.parametrize(
    ("settings", "frames", "fps"),
    [((3, 2), 9, 4.0), ((8, 1), 700, 29.97), ((64, 1), 61, 12.5), ((2, 0.5), 90, 30.0), ((4, 1), 1, 2.0)],
)  # fmt: skip
def test_frames_leave_out_the_ends_of_long_videos_as_in_transformers(
    settings: tuple[int, float], frames: int, fps: float
) -> None:
    requested = {"num_frames": settings[0], "fps": settings[1]}
    data = VideoMetadata(total_num_frames=frames, fps=fps, duration=frames / fps)
    expected = SmolVLMVideoProcessor.sample_frames(SimpleNamespace(**requested), data)  # type: ignore[arg-type]
    video = Frames([np.zeros((1, 1, 3), np.uint8)] * frames, fps, "a video")
    assert [*KINDS["SmolVLMVideoProcessor"].sample(video, requested)] == expected.tolist()


def test_frames_have_the_size_of_a_tile(tmp_path: Path) -> None:
    settings = {"size": {"longest_edge": 30}, "max_image_size": {"longest_edge": 14}}
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(settings))
    shots = video_of(2, 3, 20, 40)
    found = load_video_processor(tmp_path, "SmolVLMVideoProcessor")(shots)
    given_settings = {
        **KINDS["SmolVLMVideoProcessor"].settings,
        **settings,
        "do_image_splitting": False,
    }
    plain = image_processor({"image_processor_type": "SmolVLMImageProcessor", **given_settings})
    right = np.concatenate([plain([shot])["pixel_values"][0] for shot in shots])
    np.testing.assert_allclose(found["pixel_values"], right, atol=5e-7)
    assert found["timestamps"].tolist() == [0, 1 / 24]
    assert "duration" not in found
