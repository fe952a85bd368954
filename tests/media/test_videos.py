# SPDX-License-Identifier: Apache-2.0
"""Videos among text: as the unpatched model answers, whoever else is there; and what is refused."""

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import compressed
import numpy as np
import pytest
import torch
import transformers
from fixtures_videos import SIZES, video_of
from peaks import needs_counters, peak_memory, reset_peak
from PIL import Image
from static_server import served
from tiny_checkpoint import plain_class
from tokenizers import Tokenizer, models, pre_tokenizers

from qeff_zoo import pipeline
from qeff_zoo.cli import main
from qeff_zoo.errors import GenerationError, MediaError
from qeff_zoo.media import fetching, video_processor
from qeff_zoo.media.image_options import ImageInput, VideoInput, with_options
from qeff_zoo.media.image_processor import PROCESSORS, image_processor
from qeff_zoo.media.images import ImageLimits, blank
from qeff_zoo.media.pixels import resize_across
from qeff_zoo.media.steps import finished
from qeff_zoo.media.video_processor import KINDS, load_video_processor
from qeff_zoo.media.videos import Frames, open_video, read_video
from qeff_zoo.multimodal.families.qwen_video import QwenVideo
from qeff_zoo.package import Package
from qeff_zoo.plan.request import Request
from qeff_zoo.registry import find_recipe
from qeff_zoo.runtime.decoding.call_inputs import Piece
from qeff_zoo.serving.errors import ApiError
from qeff_zoo.serving.requests import prompts
from qeff_zoo.serving.requests.price import Bounds
from qeff_zoo.serving.requests.prompts import chat_requests
from qeff_zoo.serving.requests.schemas import ChatRequest
from qeff_zoo.sessions import open_session
from qeff_zoo.store import Store
from qeff_zoo.validation import tiny_models

pytestmark = pytest.mark.turns(2)

IMAGE, VIDEO, LENGTH = 200, 201, 6
PROCESSOR = {**SIZES, "size": {"shortest_edge": 64, "longest_edge": 512}}


@pytest.fixture(scope="module", params=["qwen2_vl", "qwen2_5_vl"])
def built(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Package, Path]:
    folder = tmp_path_factory.mktemp("videos")
    recipe = find_recipe(request.param)
    checkpoint = tiny_models.make(recipe, recipe.tiny[0], folder / "checkpoint")
    words = {f"w{number}": number for number in range(257)}
    words |= {"<image>": words.pop("w200"), "<video>": words.pop("w201")}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(checkpoint / "tokenizer.json"))
    plain_class(checkpoint)
    (checkpoint / "chat_template.jinja").write_text(
        "{% for part in messages[0].content %}"
        "{{ '<' + part.type + '> ' if part.type != 'text' else part.text }}{% endfor %}"
    )
    settings = {"image_processor_type": "Qwen2VLImageProcessor", **PROCESSOR}
    (checkpoint / "preprocessor_config.json").write_text(json.dumps(settings))
    (checkpoint / "video_preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    requested = Request(prefill_seq_len=8, ctx_len=64, full_batch_size=2)
    done = pipeline.build(str(checkpoint), requested, validate=False, store=Store(folder / "store"))
    return done.package, checkpoint


#: Tokens, pictures and videos: one that chunks of eight cut, one of three frames behind a picture, two, text alone.
CASES: list[tuple[list[int], list[Any], list[Any]]] = [
    ([3, VIDEO, 10, 11, 12], [], [video_of(5, 1)]),
    ([3, IMAGE, 4, VIDEO, *range(10, 18)], video_of(1, 2), [video_of(3, 3)]),
    ([3, 5, 6, 7, 8, 9], [], []),
    ([VIDEO, 4, 5, VIDEO, 9], [], [video_of(4, 4, 16, 16), video_of(1, 5)]),
    ([3, VIDEO, 10, 11, 12], [], [video_of(5, 6)]),
]


def processed(session: Any, case: tuple[list[int], list[Any], list[Any]]) -> dict[str, Any]:
    """Return what the model's own forward takes, as transformers' processor writes it."""
    tokens, images, videos = case
    recorded = {IMAGE: [session.prepare(image) for image in images], VIDEO: []}
    recorded[VIDEO] = [session.prepare_video(video) for video in videos]
    left, ids = {token: iter(every) for token, every in recorded.items()}, list[int]()
    for token in tokens:
        grid = next(left[token])["image_grid_thw"] if token in left else None
        ids += [token] * (1 if grid is None else int(grid.prod()) // 4)
    found: dict[str, Any] = {"input_ids": torch.tensor([ids])}
    types = {IMAGE: 1, VIDEO: 2}
    found["mm_token_type_ids"] = torch.tensor([[types.get(token, 0) for token in ids]])
    for token, pixels, grids in (
        (IMAGE, "pixel_values", "image_grid_thw"),
        (VIDEO, "pixel_values_videos", "video_grid_thw"),
    ):
        if every := recorded[token]:
            found[pixels] = torch.from_numpy(np.concatenate([one["pixel_values"] for one in every]))
            found[grids] = torch.from_numpy(
                np.concatenate([one["image_grid_thw"] for one in every])
            )
    if videos and session.config["model_type"] == "qwen2_5_vl":
        seconds = np.concatenate([one["second_per_grid_ts"] for one in recorded[VIDEO]])
        found["second_per_grid_ts"] = torch.from_numpy(seconds)
    return found


def slowed(session: Any) -> None:
    """Let frames lie so far apart that positions in time, no whole numbers, go beyond those of rows and columns."""
    made = session.prepare_video

    def prepare(given: Any) -> Mapping[str, Any]:
        return {**made(given), "second_per_grid_ts": np.array([4.3], np.float32)}

    session.prepare_video = prepare


@pytest.mark.parametrize("slow", [False, True], ids=["as-it-is", "slow"])
@pytest.mark.sampled(2)
def test_answers_are_those_of_generate(built: tuple[Package, Path], slow: bool) -> None:
    """Prefill in chunks that cut videos, rows with and without them, decoding, known beginnings."""
    session: Any = open_session(built[0], threads=1)
    if slow:
        slowed(session)
    model = transformers.AutoModelForImageTextToText.from_pretrained(built[1]).eval()
    expected = []
    for case in CASES:
        given = processed(session, case)
        made = model.generate(
            **given, max_new_tokens=LENGTH, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        expected.append(made[0, given["input_ids"].shape[1] :].tolist())
    assert expected[0] != expected[4], "videos make no difference"
    prompts, photos, video_inputs = ([*one] for one in zip(*CASES, strict=True))
    for _ in range(2):  # the second time from what is known of prompts
        answers = session.generate(
            prompts, images=photos, videos=video_inputs, generation_len=LENGTH, ignore_eos=True
        )
        assert [answer.token_ids for answer in answers] == expected
    assert session.metrics.encoded_images == 0
    assert session.metrics.reused_tokens > 0


@pytest.mark.parametrize("case", [0, 1, 3])
def test_logits_are_those_of_the_forward(built: tuple[Package, Path], case: int) -> None:
    """Behind a prompt that is run in chunks, and behind one token more."""
    session: Any = open_session(built[0], threads=1)
    model = transformers.AutoModelForImageTextToText.from_pretrained(built[1]).eval()
    tokens, photos, video_inputs = CASES[case]
    requested = session.request(tokens, images=photos, videos=video_inputs, generation_len=2)
    given, end = processed(session, CASES[case]), len(requested.prompt)
    for start in range(0, end, 8):
        piece = Piece(requested.prompt[start : start + 8], start, requested.spans)
        logits = session.decoder.prefill({1: piece})[1]
    behind = session.decoder.decode({1: Piece([7], end, requested.spans)})[1]
    for got in (logits, behind):
        with torch.no_grad():
            right = model(**given).logits[0, -1].numpy()
        assert np.abs(got - right).max() <= 2e-5 * right.std()
        for name, one in (("input_ids", 7), ("mm_token_type_ids", 0)):
            given[name] = torch.cat([given[name], torch.tensor([[one]])], 1)


@pytest.mark.parametrize("size", [(84, 112), (84, 224), (168, 112)])
def test_frames_are_resized_nearly_as_by_torch(size: tuple[int, int]) -> None:
    """transformers resizes frames by torchvision, whose rounding is another; less than one number in fifty differs."""
    (frame,) = video_of(1, 9, 120, 160)
    given = torch.from_numpy(frame).permute(2, 0, 1)[None]
    made = torch.nn.functional.interpolate(given, size, mode="bicubic", antialias=True)
    apart = np.abs(made[0].permute(1, 2, 0).numpy().astype(int) - resize_across(frame, *size, 3))
    assert apart.max() <= 2
    assert (apart > 0).mean() <= 0.02


def test_the_command_plays_an_animation(
    built: tuple[Package, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the frames by themselves, but with its own times; a folder of frames is one, too."""
    frames = [Image.fromarray(one) for one in video_of(4, 1)]
    frames[0].save(
        tmp_path / "clip.png", save_all=True, append_images=frames[1:], duration=500, loop=0
    )
    (tmp_path / "folder").mkdir()
    for place, frame in enumerate(frames):
        frame.save(tmp_path / "folder" / f"{place}.png")
    session: Any = open_session(built[0], threads=1)
    clip, folder = (session.prepare_video(tmp_path / name) for name in ("clip.png", "folder"))
    assert (clip["pixel_values"] == folder["pixel_values"]).all()
    assert clip["second_per_grid_ts"] == [1]
    assert folder["second_per_grid_ts"] == np.float32(2 / 24)
    settings = [
        "run",
        str(built[0].path),
        "--chat",
        "--video",
        str(tmp_path / "clip.png"),
        "--json",
    ]
    assert main([*settings, "--generation-len", str(LENGTH), "--prompt", "w6 w7"]) == 0
    printed_text = json.loads(capsys.readouterr().out)["outputs"][0]["token_ids"]
    video_inputs = [tmp_path / "clip.png"]
    answer = session.generate("<video> w6 w7", videos=video_inputs, generation_len=LENGTH)[0]
    assert printed_text == answer.token_ids
    assert session.reader.look(clip).digest != session.reader.look(folder).digest


def test_bad_videos_are_refused(built: tuple[Package, Path], tmp_path: Path) -> None:
    session: Any = open_session(built[0], threads=1)
    (tmp_path / "empty").mkdir()
    for videos, prompt, error, words in (
        ([[]], [3, VIDEO], MediaError, "no frames"),
        ([tmp_path / "empty"], [3, VIDEO], MediaError, "no frames"),
        ([video_of(1, 1) + video_of(1, 1, 20)], [3, VIDEO], MediaError, "of 2 sizes"),
        (["clip.mp4"], [3, VIDEO], MediaError, "No such file"),
        (video_of(1, 1), [3, VIDEO], MediaError, r"\(16, 24, 3\).*Expected \(frames, height"),
        ([5], [3, VIDEO], MediaError, "it is int. Expected a path"),
        ([video_of(2, 1)] * 2, [3, VIDEO], GenerationError, r"1 places for videos.*2 videos"),
        ([video_of(60, 1)], [3, VIDEO], GenerationError, r"180 tokens.*--ctx-len"),
    ):
        with pytest.raises(error, match=words):
            session.request(prompt, videos=videos, generation_len=4)
    assert session.reader.read == 0
    if isinstance(session.media, QwenVideo):
        made = {**session.prepare_video(video_of(6, 1)), "second_per_grid_ts": np.array([8.3])}
        session.prepare_video = lambda _: made
        with pytest.raises(GenerationError, match=r"rotary position.*--ctx-len"):
            session.request([3, VIDEO], videos=[video_of(6, 1)], generation_len=4)
    session.media = replace(session.media, video="")
    with pytest.raises(GenerationError, match="reads images alone"):
        type(session).prepare_video(session, video_of(2, 1))


def test_frames_of_a_folder_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    shots = video_of(12, 8)
    for place, frame in enumerate(shots):
        Image.fromarray(frame).save(tmp_path / f"shot{place}.png")
    (tmp_path / ".DS_Store").write_bytes(b"no picture")
    found = read_video(tmp_path)
    np.testing.assert_array_equal(found.frames, shots)
    frames = [Image.fromarray(one) for one in shots]
    file = BytesIO()
    frames[0].save(file, "png", save_all=True, append_images=frames[1:], duration=250)
    animation = read_video(file.getvalue())
    np.testing.assert_array_equal(animation.frames, shots)
    assert animation.fps == 4


def test_numbers_are_those_of_an_image(tmp_path: Path) -> None:
    """A frame shown twice is an image, and an odd last frame is repeated; frames are taken at equal distances."""
    settings = {**PROCESSOR, "do_sample_frames": True, "fps": 2, "min_frames": 2}
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(settings))
    shots = video_of(9, 7, 21, 33)
    every = [Image.fromarray(one) for one in shots]
    every[0].save(tmp_path / "a.png", save_all=True, append_images=every[1:], duration=250)
    process = load_video_processor(tmp_path)
    found = process(tmp_path / "a.png")  # 2.25 s: four frames of nine
    image = image_processor({"image_processor_type": "Qwen2VLImageProcessor", **PROCESSOR})
    assert found["image_grid_thw"].tolist() == [[2, *image([shots[0]])["image_grid_thw"][0, 1:]]]
    parts = found["pixel_values"].reshape(2, -1, 3, 2, 16)
    for place, chosen in enumerate((0, 2, 4, 6)):
        right = image([shots[chosen]])["pixel_values"].reshape(-1, 3, 2, 16)[:, :, 0]
        np.testing.assert_allclose(parts[place // 2, :, :, place % 2], right, atol=5e-7)
    assert found["second_per_grid_ts"] == np.float32(2 / (4 / 9 * 4))
    with pytest.raises(MediaError, match="no times"):
        process(shots)


# --- over OpenAI's API -----------------------------------------------------------------------------------------------


def chat(*urls: str) -> ChatRequest:
    parts: list[Any] = [{"type": "video_url", "video_url": {"url": url}} for url in urls]
    parts.append({"type": "text", "text": "w3 w4"})
    return ChatRequest(
        model="m",
        messages=[{"role": "user", "content": parts}],
        max_tokens=4,  # type: ignore[list-item]
    )


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def shot(pixels: Any) -> bytes:
    """Return an image file."""
    Image.fromarray(pixels).save(file := BytesIO(), "png")
    return file.getvalue()


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    frames = [Image.fromarray(one) for one in video_of(4, 1)]
    frames[0].save(
        tmp_path / "clip.png", save_all=True, append_images=frames[1:], duration=500, loop=0
    )
    return tmp_path / "clip.png"


def test_a_server_takes_videos(built: tuple[Package, Path], clip: Path, tmp_path: Path) -> None:
    """As files, compressed ones too, among images, and as frames, in the order of the message."""
    session: Any = open_session(built[0], threads=1)
    (tmp_path / "clip.mp4").write_bytes(compressed.clip(video_of(3, 3)))
    expected = session.request("<video> w3 w4", videos=[tmp_path / "clip.mp4"])
    (request,) = chat_requests(
        session, chat(f"data:video/mp4;base64,{encoded((tmp_path / 'clip.mp4').read_bytes())}")
    )
    assert request.prompt == expected.prompt
    assert request.spans.parts[0].digest == expected.spans.parts[0].digest  # type: ignore[union-attr]
    whole = [*read_video(tmp_path / "clip.mp4").frames]
    frames_alone = session.request("<video> w3 w4", videos=[whole])
    assert expected.prompt == frames_alone.prompt
    expected = session.request("<video> w3 w4", videos=[clip])
    (request,) = chat_requests(
        session, chat(f"data:video/apng;base64,{encoded(clip.read_bytes())}")
    )
    assert request.prompt == expected.prompt
    assert request.spans.parts[0].digest == expected.spans.parts[0].digest  # type: ignore[union-attr]
    frames = [*map(shot, video_of(3, 2))]
    body = chat(f"data:video/jpeg;base64,{','.join(map(encoded, frames))}")
    content: Any = body.messages[0].content
    image = {
        "type": "image_url",
        "image_url": {"url": f"data:image/png;base64,{encoded(frames[0])}"},
    }
    settings = [*content[:1], image, *content[1:]]
    body = ChatRequest(model="m", messages=[{"role": "user", "content": settings}], max_tokens=4)  # type: ignore[list-item]
    (request,) = chat_requests(session, body)
    expected = session.request("<video> <image> w3 w4", images=[frames[0]], videos=[frames])
    assert request.prompt == expected.prompt
    assert [part.digest for part in request.spans.parts] == [
        part.digest for part in expected.spans.parts
    ]  # type: ignore[union-attr]


def test_videos_are_counted_before_any_is_decoded(
    built: tuple[Package, Path], clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their headers; animations, whose frame rates are in their frames, up to the one beyond the context."""
    session: Any = open_session(built[0], threads=1)
    file = compressed.clip(video_of(5, 3))
    for given in (file, [shot(one) for one in video_of(5, 3)]):
        (counted,) = session.video_tokens_of([given], [open_video(given)])
        assert counted == session.video_rows(session.prepare_video(given)) == 18
    url = f"data:video/mp4;base64,{encoded(file)}"
    animation = f"data:video/apng;base64,{encoded(clip.read_bytes())}"
    (request,) = chat_requests(session, chat(url, url, url))
    assert len(request.prompt) == 3 * 18 + 2
    prepared, prepare = list[Any](), session.preparing_video
    monkeypatch.setattr(session, "preparing_video", lambda *of: prepared.append(of) or prepare(*of))
    for urls, count in (([url] * 20, 0), ([animation] * 20, 5)):
        with pytest.raises(ApiError, match="The prompt has") as caught:
            chat_requests(session, chat(*urls))
        assert caught.value.code == "context_length_exceeded"
        assert len(prepared) == count
    with pytest.raises(ApiError, match="5,760 pixels in its videos; expected at most 5,759"):
        chat_requests(session, chat(url, url, url), bounds=Bounds(video_pixels=5759))


def test_videos_of_a_request_have_one_limit_of_memory(
    built: tuple[Package, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoded in turn, up to the one beyond the limit; so are lists of images that workers prepare."""
    session: Any = open_session(built[0], threads=1)
    file = compressed.clip(video_of(5, 3))
    nbytes = sum(np.asarray(value).nbytes for value in session.prepare_video(file).values())
    url = f"data:video/mp4;base64,{encoded(file)}"
    frames = ",".join(encoded(shot(one)) for one in video_of(5, 3))
    list_url = f"data:video/jpeg;base64,{frames}"
    monkeypatch.setattr(prompts, "QUICK_IMAGE", 0)
    prepared, process = list[Any](), session._process_video
    monkeypatch.setattr(session, "_process_video", lambda one: prepared.append(one) or process(one))
    monkeypatch.setattr(session, "video_tokens_of", lambda videos, _: [1] * len(videos))
    for one in (url, list_url):
        assert (
            len(chat_requests(session, chat(one, one), bounds=Bounds(decoded_bytes=2 * nbytes)))
            == 1
        )
        prepared.clear()
        with pytest.raises(
            ApiError, match=f"expected at most {2 * nbytes:,} for all of its videos"
        ):
            chat_requests(session, chat(*[one] * 5), bounds=Bounds(decoded_bytes=2 * nbytes))
        assert len(prepared) == 3


@pytest.mark.parametrize("name", ["Qwen2VLVideoProcessor", "InternVLVideoProcessor"])
@needs_counters
def test_a_long_video_takes_the_memory_of_its_arrays(name: str) -> None:
    """Frames are decoded in turn, and neither kept in their own size nor copied with all others."""
    kind = KINDS[name]
    process = video_processor.VideoProcessor(kind, {**kind.settings, **kind.fixed})
    clip = compressed.clip([np.full((240, 320, 3), number, np.uint8) for number in range(61)])
    process(compressed.clip(video_of(4, 0)))  # loads libraries
    before = reset_peak()
    made = process(clip)
    nbytes = sum(array.nbytes for array in made.values())
    assert nbytes > 64 << 20
    assert peak_memory() - before < 1.4 * nbytes


@pytest.mark.parametrize("name", sorted(KINDS))
@pytest.mark.parametrize("fps", [None, 4.0, 25.0])
def test_shapes_of_a_video_follow_from_those_of_its_beginning(
    name: str, fps: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"video_processor_type": name, "num_frames": 8, "min_frames": 2}
    if KINDS[name].settings.get("fps"):
        del settings["num_frames"]
    monkeypatch.setattr(video_processor, "_read", lambda _: (settings, Path("a.json")))
    process = load_video_processor(Path(), name)
    shots = video_of(19, 1, 60, 80)
    whole = finished(process.processing(Frames(shots, fps, "it")))
    steps, one, two = process.beginnings(Frames([blank(60, 80)] * len(shots), fps, "it"))
    for key, array in one.items():
        grows = np.array(two[key].shape) - array.shape
        assert whole[key].shape == (*(np.array(array.shape) + (steps - 1) * grows),)


def test_a_request_sets_pixels_and_frames(built: tuple[Package, Path], clip: Path) -> None:
    """As vLLM's `mm_processor_kwargs`; images have as many tokens as transformers makes of the same options."""
    session: Any = open_session(built[0], threads=1)
    Image.fromarray(video_of(1, 9, 40, 24)[0]).save(file := BytesIO(), "png")
    lines = base64.encodebytes(file.getvalue()).decode()  # with a break each 76 characters
    assert "\n" in lines.strip()
    image: Any = {
        "type": "image_url",
        "image_url": {"url": f"data:image/png;base64,{lines}"},
        "uuid": "a",
    }
    video: Any = {
        "type": "video_url",
        "video_url": {"url": f"data:video/apng;base64,{encoded(clip.read_bytes())}"},
    }
    text = {"type": "text", "text": "w3 w4"}

    def requested(part: Any, **settings: Any) -> Any:
        messages: Any = [{"role": "user", "content": [part, text]}]
        body = ChatRequest(
            model="m", messages=messages, max_tokens=4, mm_processor_kwargs=settings or None
        )
        return chat_requests(session, body)[0]

    process = transformers.AutoImageProcessor.from_pretrained(built[1])
    for settings, size in (
        ({}, {"shortest_edge": 64, "longest_edge": 512}),
        ({"max_pixels": 256}, {"shortest_edge": 64, "longest_edge": 256}),
        (
            {"images_kwargs": {"size": {"longest_edge": 128}}},
            {"shortest_edge": 64, "longest_edge": 128},
        ),
        ({"min_pixels": 1024, "max_pixels": 1100}, {"shortest_edge": 1024, "longest_edge": 1100}),
    ):
        made = requested(image, **settings)
        rows, columns = process([Image.open(file)], size=size)["image_grid_thw"][0][1:].tolist()
        assert made.prompt.count(session.media_tokens.placeholder) == rows * columns // 4
        options = settings.get("images_kwargs", settings)
        given = ImageInput(file.getvalue(), options)
        expected = session.request(
            "<image> w3 w4", images=[given] if options else [file.getvalue()]
        )
        assert made.prompt == expected.prompt
        assert made.spans.parts[0].digest == expected.spans.parts[0].digest
    whole, few = requested(video), requested(video, num_frames=2)
    assert len(few.prompt) < len(whole.prompt)
    assert few.prompt == requested(video, videos_kwargs={"num_frames": 2}).prompt
    sampled = session.request("<video> w3 w4", videos=[VideoInput(clip, {"num_frames": 2})])
    assert few.prompt == sampled.prompt
    for part, settings, message in (
        (
            image,
            {"max_patches": 3},
            "no option 'max_patches'; expected min_pixels, max_pixels, size",
        ),
        (image, {"min_pixels": 10_000}, "The prompt has 172 tokens"),
        (image, {"images_kwargs": "small"}, "has 'small'; expected an object"),
        (image, {"max_pixels": 0}, "'max_pixels' is 0; expected a whole number"),
        (image, {"max_pixels": True}, "'max_pixels' is True; expected a whole number"),
        (image, {"size": {"height": 3}}, "'size' is .*; expected longest_edge and shortest_edge"),
        (image, {"min_pixels": 300, "max_pixels": 200}, "'min_pixels' is 300 and 'max_pixels' 200"),
        (video, {"fps": "fast"}, "'fps' is 'fast'; expected a number"),
        (video, {"fps": 1, "num_frames": 2}, "'fps' and 'num_frames' are 1 and 2"),
        (video, {"videos_kwargs": {"max_pixels": 3}}, "Videos have no option 'max_pixels'"),
    ):
        with pytest.raises(ApiError, match=message) as caught:
            requested(part, **settings)
        assert caught.value.status == 400


@pytest.mark.parametrize(
    ("url", "words", "code"),
    [
        ("http://169.254.169.254/latest", "does not fetch it", "invalid_video_url"),
        ("file:///etc/passwd", "does not fetch it", "invalid_video_url"),
        ("data:video/apng,x", r"expected data:video", "invalid_video_url"),
        ("data:video/apng;base64,!!", "Cannot read a video .* Expected base64", "invalid_base64_video"),
        ("data:video/jpeg;base64,AAAA,!!", "Cannot read a frame .* Expected base64", "invalid_base64_video"),
        ("data:video/apng;base64,AAAA", "Cannot read", "invalid_value"),
        ("data:video/mp4;base64,R0lGT0Q=", "it is text. Expected a video", "invalid_value"),
        ("data:video/jpeg;base64,", "Cannot read", "invalid_value"),
    ],
)  # fmt: skip
def test_a_server_refuses_videos(
    built: tuple[Package, Path], url: str, words: str, code: str
) -> None:
    session: Any = open_session(built[0], threads=1)
    with pytest.raises(ApiError, match=words) as caught:
        chat_requests(session, chat(url))
    assert (caught.value.code, caught.value.status) == (code, 400)


def test_a_server_fetches_videos_from_hosts_that_its_operator_named(
    built: tuple[Package, Path], clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session: Any = open_session(built[0], threads=1)
    with served(clip.parent) as (url, recorded):
        host, video_url = url.removeprefix("http://"), f"{url}/clip.png"
        with pytest.raises(ApiError, match=r"private address.*data:video"):
            chat_requests(session, chat(video_url), hosts=[host])
        monkeypatch.setattr(fetching, "_is_public", lambda _: True)
        (request,) = chat_requests(session, chat(video_url), hosts=[host])
        with pytest.raises(
            ApiError, match=r"the video at .* is not one that may be asked"
        ) as caught:
            chat_requests(session, chat(video_url), hosts=["films.example"])
        with pytest.raises(ApiError, match="17 videos to be fetched; expected at most 16"):
            chat_requests(session, chat(*[video_url] * 17), hosts=[host])
        monkeypatch.setattr(session, "media", replace(session.media, video=""))
        with pytest.raises(ApiError, match="reads images alone"):
            chat_requests(session, chat(video_url), hosts=[host])
    assert caught.value.code == "invalid_video_url"
    assert len(recorded) == 1
    digest = session.reader.look(load_video_processor(built[0].path)(clip)).digest
    assert request.spans is not None
    assert request.spans.parts[0].digest == digest


@pytest.mark.parametrize("name", sorted(PROCESSORS))
def test_low_detail_takes_no_more_of_a_large_image(name: str) -> None:
    """Of processors with such an option fewer values of a photograph; of the others the same."""
    settings: dict[str, Any] = {"image_processor_type": name}
    if name == "GotOcr2ImageProcessor":
        settings["crop_to_patches"] = True
    usual = image_processor(settings)
    low = with_options(usual, {"detail": "low"})
    counts = []
    for process in (usual, low):
        try:
            made = process.arrays([blank(1500, 2000)])
        except MediaError:
            pytest.skip("refused")
        counts.append(sum(array.size for array in made.values()))
    assert counts[1] <= counts[0]
    assert (counts[1] < counts[0]) == (low.settings != usual.settings)


def test_tiles_of_a_request_have_a_limit() -> None:
    process = image_processor({"image_processor_type": "Llama4ImageProcessor"})
    with pytest.raises(MediaError, match="'max_patches' is 10,000,000; expected at most 64, which"):
        with_options(process, {"max_patches": 10_000_000})
    internvl = image_processor({"image_processor_type": "GotOcr2ImageProcessor"})
    with pytest.raises(MediaError, match="expected true or false"):
        with_options(internvl, {"crop_to_patches": 1})


def test_a_video_has_limits(clip: Path) -> None:
    shots = video_of(4, 1)
    for source in (clip, clip.read_bytes(), shots):
        with pytest.raises(MediaError, match=r"it has 4 frames\. Expected at most 3"):
            read_video(source, ImageLimits(frames=3))
        with pytest.raises(MediaError, match="its 4 frames have too many pixels"):
            read_video(source, ImageLimits(pixels=4 * 16 * 24 - 1))
        assert len(read_video(source, ImageLimits(frames=4, pixels=4 * 16 * 24)).frames) == 4
    with pytest.raises(MediaError, match="Expected at most 100"):
        read_video(clip, ImageLimits(file_bytes=100))
