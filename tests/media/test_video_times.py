# SPDX-License-Identifier: Apache-2.0
"""Videos whose times are written among their frames (Qwen3-VL, Qwen3.5): as the unpatched model answers."""

import base64
import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import parity
import pytest
import torch
import transformers
from fixtures_video_times import clip
from fixtures_videos import SIZES, video_of
from tiny_checkpoint import plain_class
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import (
    Qwen3VLVideoProcessor,
    smart_resize,
)
from transformers.video_utils import VideoMetadata

from qeff_zoo import pipeline
from qeff_zoo.errors import CheckpointError, GenerationError, MediaError, UnsupportedModelError
from qeff_zoo.media.video_processor import KINDS, load_video_processor
from qeff_zoo.media.videos import Frames
from qeff_zoo.package import Package
from qeff_zoo.plan.request import Request
from qeff_zoo.registry import find_recipe
from qeff_zoo.runtime.decoding.call_inputs import Piece
from qeff_zoo.serving.requests.prompts import chat_requests
from qeff_zoo.serving.requests.schemas import ChatRequest
from qeff_zoo.sessions import open_session
from qeff_zoo.store import Store
from qeff_zoo.validation import tiny_models

pytestmark = pytest.mark.turns(3)

IMAGE, VIDEO, LENGTH = 200, 201, 6
SPECIAL = {
    "<|image_pad|>": 200, "<|video_pad|>": 201, "<|vision_start|>": 202, "<|vision_end|>": 203,
}  # fmt: skip
SETTINGS = {
    **SIZES, "video_processor_type": "Qwen3VLVideoProcessor",
    "size": {"shortest_edge": 64, "longest_edge": 4096}, "min_frames": 2, "fps": 24,
}  # fmt: skip


#: With experts they are the same programs otherwise: for a release.
WRITTEN = ["qwen3_vl", *(["qwen3_5", "qwen3_vl_moe"] if parity.EVERY else [])]


@pytest.fixture(scope="module", params=WRITTEN)
def built(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Package, Path]:
    folder = tmp_path_factory.mktemp("times")
    recipe = find_recipe(request.param)
    checkpoint = tiny_models.make(recipe, recipe.tiny[0], folder / "checkpoint")
    letters = {one: place for place, one in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    kept = {name: place for name, place in letters.items() if ord(name) < 128}
    # A space is one with what follows it, so that what stands before a time changes how that is cut.
    tokenizer = Tokenizer(models.BPE({**kept, **SPECIAL, "Ġ": 199, "Ġ<": 198}, [("Ġ", "<")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    words = json.loads(tokenizer.to_str())
    words["added_tokens"] = [
        {"id": place, "content": text, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False}
        for text, place in SPECIAL.items()
    ]  # fmt: skip
    (checkpoint / "tokenizer.json").write_text(json.dumps(words))
    plain_class(checkpoint)
    (checkpoint / "chat_template.jinja").write_text(
        "{% for part in messages[0].content %}{{ part.text if part.type == 'text' else "
        "'<|vision_start|><|' + part.type + '_pad|><|vision_end|>' }}{% endfor %}"
    )
    settings = {"image_processor_type": "Qwen2VLImageProcessor", **SIZES, "size": SETTINGS["size"]}
    (checkpoint / "preprocessor_config.json").write_text(json.dumps(settings))
    (checkpoint / "video_preprocessor_config.json").write_text(json.dumps(SETTINGS))
    requested = Request(prefill_seq_len=16, ctx_len=128, full_batch_size=2)
    done = pipeline.build(str(checkpoint), requested, validate=False, store=Store(folder / "store"))
    return done.package, checkpoint


Case = tuple[str, list[Any], list[Any]]
#: Text, pictures and videos: one that chunks cut, one of three frames behind a picture, two, text alone.
CASES: list[Case] = [
    ("a<|video_pad|>bcd", [], [video_of(5, 1)]),
    ("a <|video_pad|>bcd", [], [video_of(5, 2)]),
    ("a<|image_pad|>b<|video_pad|>what is", video_of(1, 2), [video_of(3, 3)]),
    ("abcdef", [], []),
    ("<|video_pad|>a<|video_pad|>b", [], [video_of(4, 4, 16, 16), video_of(2, 5)]),
]


def stand_in(session: Any) -> Any:
    """Return what transformers' processor needs to write a prompt; whole it wants torchvision."""
    names = {f"{one}_token": f"<|{one}|>" for one in ("vision_start", "vision_end")}
    found = SimpleNamespace(
        **names, video_token="<|video_pad|>", video_processor=SimpleNamespace(**SIZES)
    )
    found._calculate_timestamps = partial(Qwen3VLProcessor._calculate_timestamps, found)
    return found


def processed(session: Any, case: Case, fps: float = 24) -> dict[str, Any]:
    """Return what the model's own forward takes, its text written by transformers."""
    text, images, videos = case
    found: dict[str, Any] = {}
    shown = [session.prepare(image) for image in images]
    played = [session.prepare_video(video) for video in videos]
    for one in shown:
        rows = int(one["image_grid_thw"].prod()) // 4
        text = text.replace("<|image_pad|>", "<|IMAGE|>" * rows, 1)
    text = text.replace("<|IMAGE|>", "<|image_pad|>")
    places = text.split("<|video_pad|>")
    for place, one in enumerate(played):
        count = len(videos[place])
        indices = Qwen3VLVideoProcessor.sample_frames(
            SimpleNamespace(
                **{name: SETTINGS[name] for name in ("fps", "min_frames")}, max_frames=768
            ),
            VideoMetadata(total_num_frames=count, fps=fps),
        )
        given_settings = VideoMetadata(total_num_frames=count, fps=fps, frames_indices=indices)
        settings = {
            "video_grid_thw": torch.from_numpy(one["image_grid_thw"]),
            "video_metadata": [given_settings],
        }
        places[place] += Qwen3VLProcessor.replace_video_token(stand_in(session), settings, 0)
    ids = session.tokenizer.encode("".join(places))
    types = {IMAGE: 1, VIDEO: 2}
    found["input_ids"] = torch.tensor([ids])
    found["mm_token_type_ids"] = torch.tensor([[types.get(token, 0) for token in ids]])
    for every, pixels, grids in (
        (shown, "pixel_values", "image_grid_thw"),
        (played, "pixel_values_videos", "video_grid_thw"),
    ):
        if every:
            found[pixels] = torch.from_numpy(np.concatenate([one["pixel_values"] for one in every]))
            found[grids] = torch.from_numpy(
                np.concatenate([one["image_grid_thw"] for one in every])
            )
    return found


@pytest.mark.sampled(2)
def test_answers_are_those_of_generate(built: tuple[Package, Path]) -> None:
    """Ids, too: the session's prompt is what transformers' processor and tokenizer make of the same text."""
    session: Any = open_session(built[0], threads=1)
    model = transformers.AutoModelForImageTextToText.from_pretrained(built[1]).eval()
    expected = []
    for case in CASES:
        given = processed(session, case)
        requested = session.request(case[0], images=case[1], videos=case[2], generation_len=2)
        same = [IMAGE if one == VIDEO else one for one in given["input_ids"][0].tolist()]
        assert list(requested.prompt) == same
        made = model.generate(
            **given, max_new_tokens=LENGTH, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        expected.append(made[0, given["input_ids"].shape[1] :].tolist())
    assert expected[0] != expected[1], "videos make no difference"
    prompts, photos, video_inputs = ([*one] for one in zip(*CASES, strict=True))
    for _ in range(2):  # the second time from what is known of prompts
        answers = session.generate(
            prompts, images=photos, videos=video_inputs, generation_len=LENGTH, ignore_eos=True
        )
        assert [answer.token_ids for answer in answers] == expected
    assert session.metrics.encoded_images == 0
    assert session.metrics.reused_tokens > 0


def test_logits_are_those_of_the_forward(built: tuple[Package, Path]) -> None:
    session: Any = open_session(built[0], threads=1)
    model = transformers.AutoModelForImageTextToText.from_pretrained(built[1]).eval()
    for text, photos, video_inputs in CASES[:3]:
        requested = session.request(text, images=photos, videos=video_inputs, generation_len=2)
        given = processed(session, (text, photos, video_inputs))
        for start in range(0, len(requested.prompt), 16):
            piece = Piece(requested.prompt[start : start + 16], start, requested.spans)
            logits = session.decoder.prefill({1: piece})[1]
        with torch.no_grad():
            right = model(**given).logits[0, -1].numpy()
        assert np.abs(logits - right).max() <= 2e-5 * right.std()


def test_chats_and_servers_write_the_same_prompt(
    built: tuple[Package, Path], tmp_path: Path
) -> None:
    """With the times of an animation: five frames of half a second."""
    session: Any = open_session(built[0], threads=1)
    path = clip(tmp_path, video_of(5, 1), 500)
    text = "<|vision_start|><|video_pad|><|vision_end|>what"
    given = processed(session, (text, [], [video_of(5, 1)]), fps=2)
    requested = session.request("what", chat=True, videos=[path], generation_len=2)
    settings = session.tokenizer.decode(requested.prompt)
    assert list(requested.prompt) == [
        IMAGE if one == VIDEO else one for one in given["input_ids"][0]
    ]
    assert "<0.2 seconds>" in settings
    assert "<2.0 seconds>" in settings
    url = "data:video/apng;base64," + base64.b64encode(path.read_bytes()).decode()
    parts = [{"type": "video_url", "video_url": {"url": url}}, {"type": "text", "text": "what"}]
    body = ChatRequest(model="m", messages=[{"role": "user", "content": parts}], max_tokens=2)  # type: ignore[list-item]
    (served,) = chat_requests(session, body)
    assert served.prompt == requested.prompt
    assert [part.digest for part in served.spans.parts] == [
        part.digest for part in requested.spans.parts
    ]  # type: ignore[union-attr]


@pytest.mark.parametrize(("frames", "fps"), [(2, 24), (9, 4), (10, 30), (61, 30), (1000, 0.5)])
def test_frames_are_those_that_transformers_takes(frames: int, fps: float) -> None:
    video = Frames([np.zeros((1, 1, 3), np.uint8)] * frames, fps, "a video")
    for settings in (
        {"fps": 2, "min_frames": 4, "max_frames": 768},
        {"fps": 0.7, "min_frames": 1, "max_frames": 5},
    ):
        kind = KINDS["Qwen3VLVideoProcessor"]
        expected = Qwen3VLVideoProcessor.sample_frames(
            SimpleNamespace(**settings), VideoMetadata(total_num_frames=frames, fps=fps)
        )
        assert list(kind.sample(video, settings)) == expected.tolist()


@pytest.mark.parametrize("capped", [False, True])
def test_sizes_are_those_of_transformers(capped: bool) -> None:
    settings = {**KINDS["Qwen3VLVideoProcessor"].settings, "cap_pixels_per_frame": capped}
    low, high = (settings["size"][name] for name in ("shortest_edge", "longest_edge"))
    found = set()
    for frames in (2, 3, 5, 64):
        for height, width in ((480, 640), (20, 1000), (1080, 1920), (33, 31)):
            most = high
            if capped:
                most = max(min(768 * 1024, high // frames), int(low * 1.05)) * frames
            expected = smart_resize(frames, height, width, 2, 32, low, most)
            image = np.broadcast_to(np.uint8(0), (height, width, 3))
            assert KINDS["Qwen3VLVideoProcessor"].size(image, frames, settings) == expected
            found.add(expected)
    assert len(found) > 8


def test_what_contradicts_itself_is_refused(built: tuple[Package, Path], tmp_path: Path) -> None:
    session: Any = open_session(built[0], threads=1)
    bare = {"pixel_values_videos": np.zeros((24, 96)), "video_grid_thw": [[1, 4, 6]]}
    for given, error, words in (
        (video_of(1, 1), MediaError, "it has 1 frames. Expected at least 2"),
        (bare, GenerationError, "1 steps.*0 times"),
        (video_of(90, 1), GenerationError, "A prompt has at least"),
    ):
        with pytest.raises(error, match=words):
            session.request("<|video_pad|>", videos=[given], generation_len=2)
    with pytest.raises(GenerationError, match=r"1 places for videos.*2 videos"):
        session.request("<|video_pad|>", videos=[video_of(2, 1)] * 2, generation_len=2)
    file = tmp_path / "video_preprocessor_config.json"
    file.write_text(json.dumps({**SETTINGS, "num_frames": 8}))
    with pytest.raises(CheckpointError, match=r"takes 8 frames.*Remove"):
        load_video_processor(tmp_path)
    file.write_text(json.dumps({"video_processor_type": "VJEPA2VideoProcessor"}))
    with pytest.raises(UnsupportedModelError, match="Qwen2VLVideoProcessor, Qwen3VL"):
        load_video_processor(tmp_path)


def test_output_of_a_video_processor_is_accepted(built: tuple[Package, Path]) -> None:
    session: Any = open_session(built[0], threads=1)
    made = session.prepare_video(video_of(5, 1))
    given = {
        "pixel_values_videos": made["pixel_values"],
        "video_grid_thw": made["image_grid_thw"],
        "timestamps": made["timestamps"],
    }
    one, other = (
        session.request("<|video_pad|>", videos=[video], generation_len=2)
        for video in (given, video_of(5, 1))
    )
    assert one.prompt == other.prompt
    assert [part.digest for part in one.spans.parts] == [part.digest for part in other.spans.parts]


def test_patches_are_those_of_transformers(tmp_path: Path) -> None:
    """To the last bit, where frames keep their size and numbers, which transformers leaves to torchvision."""
    as_they_are = dict.fromkeys(("do_resize", "do_rescale", "do_normalize"), False)
    settings = {**SETTINGS, **as_they_are, "fps": 2}
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(settings))
    for frames, fps in ((2, 1.0), (5, 2.5), (9, 10.0), (30, 5.0)):
        mine = load_video_processor(tmp_path)(clip(tmp_path, video_of(frames, 3), int(1000 / fps)))
        reference = Qwen3VLVideoProcessor(**settings, do_convert_rgb=False)(
            [np.stack(video_of(frames, 3))],
            video_metadata=[{"fps": fps, "total_num_frames": frames}],
            return_metadata=True,
            return_tensors="np",
        )
        np.testing.assert_array_equal(mine["pixel_values"], reference["pixel_values_videos"])
        np.testing.assert_array_equal(mine["image_grid_thw"], reference["video_grid_thw"])
        indices = reference["video_metadata"][0].frames_indices
        times = Qwen3VLProcessor._calculate_timestamps(None, indices, fps, 2)
        assert mine["timestamps"].tolist() == times
