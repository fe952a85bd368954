# SPDX-License-Identifier: Apache-2.0
"""Images as crops that overlap, rows of which are made of several, and videos: Molmo 2.

The tokens of all pictures of a prompt, and those of all frames, see one another.

Prepared and written as by transformers' processor, whose resizing and normalizing are torchvision's: here they are
PyTorch's functions that torchvision calls.
"""

import json
from collections.abc import Iterator
from functools import partial
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
from PIL import Image
from tiny_checkpoint import plain_class
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import image_processing_backends as backends
from transformers.models.molmo2.image_processing_molmo2 import Molmo2ImageProcessor
from transformers.models.molmo2.processing_molmo2 import Molmo2Processor
from transformers.models.molmo2.video_processing_molmo2 import Molmo2VideoProcessor
from transformers.video_utils import VideoMetadata

from qeff_zoo import pipeline
from qeff_zoo.errors import CheckpointError, GenerationError, PlanError
from qeff_zoo.media.image_processor import image_processor
from qeff_zoo.media.video_processor import KINDS
from qeff_zoo.media.videos import Frames
from qeff_zoo.multimodal.families.molmo2 import Molmo2
from qeff_zoo.plan.request import Request
from qeff_zoo.qefficient.processor_outputs import images_of
from qeff_zoo.registry import find_recipe, recipe_for
from qeff_zoo.tasks.multimodal.image_text_session import ImageTextToTextSession
from qeff_zoo.tasks.multimodal.samples import noise

RECIPE = find_recipe("molmo2")
TINY = RECIPE.tiny[0]
#: What published checkpoints say of videos, and transformers' class without them does not.
FILMED = {
    "video_processor_type": "Molmo2VideoProcessor", "size": {"height": 12, "width": 12}, "patch_size": 4,
    "pooling_size": [2, 2], "do_rescale": True, "do_normalize": True,
}  # fmt: skip


def _resize(image: Any, size: Any, interpolation: Any, antialias: bool) -> Any:
    assert interpolation == "bilinear"
    options = {"mode": interpolation, "align_corners": False, "antialias": antialias}
    return torch.nn.functional.interpolate(image, tuple(size), **options)


def _normalize(image: Any, mean: Any, std: Any, inplace: bool) -> Any:
    return image.sub(mean[:, None, None]).div(std[:, None, None])


@pytest.fixture
def torchvision() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(
        1
    )  # with more, PyTorch rounds a number in 100,000 to the other grey level
    modes = SimpleNamespace(LANCZOS="lanczos")
    functions = SimpleNamespace(resize=_resize, normalize=_normalize, InterpolationMode=modes)
    names = {2: "bilinear"}
    with (
        mock.patch.object(backends, "tvF", functions, create=True),
        mock.patch.object(backends, "pil_torch_interpolation_mapping", names),
    ):
        yield
    torch.set_num_threads(threads)


#: The settings of checkpoints; small ones with margins on one side, on none, and with other numbers.
SETTINGS: list[dict[str, Any]] = [
    {},
    {
        "size": {"height": 20, "width": 20},
        "patch_size": 4,
        "max_crops": 5,
        "overlap_margins": [2, 0],
    },
    {
        "size": {"height": 28, "width": 28},
        "patch_size": 4,
        "overlap_margins": [0, 0],
        "image_mean": [0.1, 0.2, 0.3],
        "image_std": [0.3, 0.2, 0.7],
    },
]


@pytest.mark.usefixtures("torchvision")
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("size", [(24, 40), (97, 31), (5, 5), (28, 56), (8, 200), (378, 500)])
def test_images_are_processed_bit_for_bit(size: tuple[int, int], settings: dict[str, Any]) -> None:
    """Two of them, the rows of which count the patches of both; and each by itself, taken apart again."""
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    both = [pixels, np.ascontiguousarray(pixels.transpose(1, 0, 2))]
    reference = Molmo2ImageProcessor(**settings)([Image.fromarray(one) for one in both])
    reference = {name: np.asarray(array) for name, array in reference.items()}
    processor = image_processor({"image_processor_type": "Molmo2ImageProcessor", **settings})
    ours = processor(both)
    assert ours.keys() == reference.keys()
    for name, array in ours.items():
        np.testing.assert_array_equal(array, reference[name], err_msg=name)
    for one, apart in zip(both, images_of(reference), strict=True):
        alone = processor([one])
        assert all((array == alone[name]).all() for name, array in apart.items())


@pytest.mark.parametrize(
    "settings",
    [
        {"size": {"height": 20, "width": 24}},
        {"pooling_size": [2, 3]},
        {"overlap_margins": [3, 2]},
        {"resample": 3},
    ],
)
def test_unknown_settings_are_refused(settings: dict[str, Any]) -> None:
    given = {"size": {"height": 20, "width": 20}, "patch_size": 4, **settings}
    processor = image_processor({"image_processor_type": "Molmo2ImageProcessor", **given})
    with pytest.raises(CheckpointError, match=r"Expected .*Correct the processor's JSON"):
        processor([np.zeros((9, 9, 3), np.uint8)])


@pytest.mark.parametrize(
    "output",
    [
        {},
        {"use_single_crop_col_tokens": False},
        {"use_single_crop_col_tokens": None, "image_use_col_tokens": False},
        {"use_single_crop_col_tokens": True, "image_use_col_tokens": False},
        {"use_single_crop_start_token": False},
    ],
)
def test_placeholders_equal_those_of_transformers(output: dict[str, Any]) -> None:
    usual = {"image_use_col_tokens": True, "use_single_crop_col_tokens": None}
    settings = SimpleNamespace(**{**usual, "use_single_crop_start_token": True, **output})
    grids = np.array([[2, 2, 3, 1]])
    expected = Molmo2Processor.replace_image_token(settings, {"image_grids": grids}, 0)
    layout = Molmo2().prompt_layout
    parts = layout.write(layout.grid(3, {"image_grids": grids}, {}), 7, **output)
    names = {
        f"image_{name}_id": f"<im_{name.split('_')[0]}>"
        for name in ("col", "start_token", "end_token")
    }
    names["low_res_image_start_token_id"] = "<low_res_im_start>"
    assert (
        "".join("<im_patch>" * part if isinstance(part, int) else names[part] for part in parts)
        == expected
    )


@pytest.fixture(scope="module")
def session() -> ImageTextToTextSession:
    """A package of the recipe's, with a tokenizer that has no BOS, a chat template, and a processor."""
    config = {"model_type": "molmo2", **TINY.config}
    subject = parity.Subject(config, recipe_for(config))
    folder = subject.folder / "checkpoint"
    words = {f"w{number}": number for number in range(257)}
    words["<s>"] = words.pop("w5")
    words |= {f"{place / 2:.1f}": words.pop(f"w{240 + place}") for place in range(5)}
    words["<|video|>"] = words.pop("w239")
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    around = ("<im_patch>", "<low_res_im_start>", "<im_start>", "<im_col>", "<im_end>")
    frames = ("<frame_start>", "<frame_end>")
    tokenizer.add_special_tokens(["<s>", *around, *frames, "<|video|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    plain_class(folder)
    for name, content in (
        ("tokenizer_config", {"bos_token": None, "eos_token": {"content": "<s>"}}),
        (
            "processor_config",
            {
                "use_single_crop_col_tokens": False,
                "image_processor": dict(TINY.image_processor),
                "video_processor": FILMED,
            },
        ),
    ):
        (folder / f"{name}.json").write_text(json.dumps(content))
    (folder / "chat_template.jinja").write_text(
        "{% for part in messages[0].content %}{{ '<|image|>' if part.type == 'image' else part.text }}{% endfor %}"
    )
    case = parity.Case(recipe=RECIPE, tiny=TINY)
    found = session_of(case, subject)
    assert isinstance(found, ImageTextToTextSession)
    return found


IMAGE = np.random.default_rng(0).integers(0, 256, (24, 40, 3), np.uint8)


def test_all_image_tokens_attend_to_each_other_in_one_call(
    session: ImageTextToTextSession,
) -> None:
    """As transformers' processor tells them: rows, and what stands among and around them."""
    made = session.request("w1 <|image|> w2 w3 <|image|> w4", images=[IMAGE, IMAGE[:, :20]])
    tokens, spans = [*made.prompt], made.spans
    assert spans is not None
    of_whole, of_canvas = [258, 257, 257, 257, 257, 261], [259, *[257, 257, 260] * 2, 261]
    assert tokens == [5, 1, *of_whole, *of_canvas, 2, 3, *of_whole, *of_canvas, 4]
    settings = SimpleNamespace(
        image_token_ids=[*range(257, 262)], video_token_ids=[], audio_token_ids=[]
    )
    (types,) = Molmo2Processor.create_mm_token_type_ids(settings, [tokens])
    assert spans.together.tolist() == np.flatnonzero(types).tolist()
    assert spans.stretches == ((2, len(tokens) - 1),)
    assert [spans.end(0, stop) for stop in (1, 2, 3, len(tokens) - 2)] == [1, 2, 2, 2]
    assert spans.end(2, 10) == len(tokens) - 1


def test_states_of_images_are_not_shared(session: ImageTextToTextSession) -> None:
    """Those of the first hold what the second is, and what stands between; what comes before them does not."""
    texts = ("w1 <|image|> w2 <|image|> w4", "w1 <|image|> w3 <|image|> w4")
    shown = [IMAGE, IMAGE]
    made = [session.request(text, images=shown).spans for text in texts]
    made.append(session.request(texts[0], images=[IMAGE, IMAGE[:, :20]]).spans)
    assert None not in made
    spans: list[Any] = made
    assert len({span.name(1, 6) for span in spans}) == 3
    assert {span.name(0, 2) for span in spans} == {b""}
    assert spans[0].name(3, 6) == spans[0].name(20, 24)


def test_prompts_begin_as_transformers_begins_them(session: ImageTextToTextSession) -> None:
    assert session.encode("w1 w2") == session.encode("<s>w1 w2") == [5, 1, 2]
    assert session.encode([1, 2]) == [1, 2]
    assert [*session.request("w1", chat=True, images=[IMAGE]).prompt[:2]] == [5, 258]


def test_tokens_around_images_are_refused_in_prompts(session: ImageTextToTextSession) -> None:
    with pytest.raises(GenerationError, match=r"the tokens \[260\], which stand around images"):
        session.request("<|image|> w2 <im_col>", images=[IMAGE])


def test_without_processor_settings_an_image_is_noise(
    session: ImageTextToTextSession,
) -> None:
    made = noise(session, (2, 2), np.random.default_rng(0))
    assert session.reader.look(made).rows == 8


def test_programs_of_fixed_sizes_are_refused(session: ImageTextToTextSession) -> None:
    with pytest.raises(
        PlanError, match="reads images of any size and has nothing that fills one up"
    ):
        pipeline.make_plan(str(session.folder), Request(target="qaic"))


# --- videos ----------------------------------------------------------------------------------------------------------


def by_transformers(session: ImageTextToTextSession, text: str, frames: list[Any]) -> Any:
    """Return what the model's own forward takes of a video of two frames a second, and the text written out."""
    settings = VideoMetadata(total_num_frames=len(frames), fps=2, duration=len(frames) / 2)
    process = Molmo2VideoProcessor(**FILMED)
    made = process([np.stack(frames)], video_metadata=[settings], return_metadata=True)
    kinds = {"video_use_col_tokens": False, "use_frame_special_tokens": True}
    writer: Any = SimpleNamespace(**kinds, video_processor=process)
    writer.get_video_string = partial(Molmo2Processor.get_video_string, writer)
    string = Molmo2Processor.replace_video_token(writer, made, 0)
    tokens = session.encode(text.replace("<|video|>", string))
    ids = SimpleNamespace(
        image_token_ids=[*range(257, 264)], video_token_ids=[], audio_token_ids=[]
    )
    del made["video_metadata"]
    made["input_ids"] = torch.tensor([tokens])
    types = Molmo2Processor.create_mm_token_type_ids(ids, [tokens])
    made["mm_token_type_ids"] = torch.tensor(types)
    return made


@pytest.mark.usefixtures("torchvision")
@pytest.mark.parametrize(
    ("text", "count", "size"),
    [("w1 <|video|> w2 w3", 3, (20, 31)), ("<|video|> w4", 5, (9, 5)), ("w1 <|video|> w2 w3", 3, (12, 12))],
)  # fmt: skip
def test_answers_about_videos_are_those_of_generate(
    session: ImageTextToTextSession, text: str, count: int, size: tuple[int, int], tmp_path: Any
) -> None:
    """Ids, pixels and which tokens see one another, too."""
    frames = video_of(count, count, *size)
    given, path = by_transformers(session, text, frames), clip(tmp_path, frames, 500)
    requested = session.request(text, videos=[path], generation_len=6)
    assert list(requested.prompt) == given["input_ids"][0].tolist()
    together = given["mm_token_type_ids"][0].numpy()
    assert requested.spans is not None
    assert requested.spans.together.tolist() == np.flatnonzero(together).tolist()
    made = session.prepare_video(path)
    np.testing.assert_array_equal(made["pixel_values"], given["pixel_values_videos"])
    kind = transformers.AutoModelForImageTextToText
    model = kind.from_pretrained(session.folder, attn_implementation="eager").eval()
    settings = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    right = model.generate(**given, **settings)[0, len(requested.prompt) :].tolist()
    names = ("pixel_values_videos", "video_token_pooling", "video_grids")
    prepared = {name: np.asarray(given[name]) for name in names}
    prepared["timestamps"] = made["timestamps"]
    for video in (path, prepared):
        (answer,) = session.generate(text, videos=[video], generation_len=6, ignore_eos=True)
        assert answer.token_ids == right


def test_a_video_has_frames_of_its_own_and_is_alone(session: ImageTextToTextSession) -> None:
    """One frame is a video, too; without times its frames are as far apart as they are taken at most."""
    (one,) = session.generate("<|video|>", videos=[video_of(1, 1)], generation_len=2)
    assert one.prompt_tokens == len(["<s>", "0.0", "<frame_start>", *range(4), "<frame_end>"])
    assert session.prepare_video(video_of(3, 1))["timestamps"].tolist() == [0, 0.5, 1]
    for text, shown in (("<|image|> <|video|>", 1), ("<|video|> <|video|>", 0)):
        video_inputs = [video_of(1, 1)] * text.count("video")
        with pytest.raises(GenerationError, match=r"expected one video alone"):
            session.request(text, images=[IMAGE] * shown, videos=video_inputs)


@pytest.mark.parametrize(
    "output", [{"video_use_col_tokens": True}, {"use_frame_special_tokens": False}]
)
def test_frames_are_written_as_by_transformers(output: dict[str, Any]) -> None:
    settings = {"video_use_col_tokens": False, "use_frame_special_tokens": True, **output}
    grid = torch.tensor([1, 2, 2])
    expected = Molmo2Processor.get_video_string(SimpleNamespace(**settings), grid, [0.5])
    parts = Molmo2().prompt_layout.write((4, 0, 0), 4, **settings)
    names = {
        "image_col_id": "<im_col>", "image_start_token_id": "<im_start>", "image_end_token_id": "<im_end>",
        "frame_start_token_id": "<frame_start>", "frame_end_token_id": "<frame_end>",
    }  # fmt: skip
    written = ("<im_patch>" * part if isinstance(part, int) else names[part] for part in parts)
    assert "".join(("0.5 ", *written)) == expected


@pytest.mark.parametrize(
    "settings", [{}, {"num_frames": 8}, {"num_frames": None, "fps": 0.7}, {"max_fps": 1}]
)
@pytest.mark.parametrize("fps", [None, 0.5, 2, 2.4, 24, 30])
def test_frames_are_those_that_transformers_takes(
    settings: dict[str, Any], fps: float | None
) -> None:
    kind, reference = KINDS["Molmo2VideoProcessor"], Molmo2VideoProcessor()
    known = {**kind.settings, **settings}
    requested = {name: known.get(name) for name in ("num_frames", "fps", "max_fps")}
    reference.num_frames = requested["num_frames"]
    for total in (1, 2, 9, 17, 56, 61, 700):
        duration = fps and total / fps
        data = VideoMetadata(total_num_frames=total, fps=fps, duration=duration)
        expected = [
            one for one in reference.sample_frames(data, **requested).tolist() if one < total
        ]
        video = Frames([np.zeros((1, 1, 3), np.uint8)] * total, fps, "a video")
        assert kind.sample(video, known) == expected
