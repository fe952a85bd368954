# SPDX-License-Identifier: Apache-2.0
"""Images and frames of videos as a whole and slices of it: MiniCPM-V 4.6.

Their patches lie side by side, and are merged within a tower.
"""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import parity
import pytest
import torch
from fixtures_media_recipes import session_of
from fixtures_video_times import clip
from fixtures_videos import video_of
from tiny_checkpoint import plain_class
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers.models.minicpmv4_6.processing_minicpmv4_6 import MiniCPMV4_6Processor
from transformers.models.minicpmv4_6.video_processing_minicpmv4_6 import (
    MiniCPMV4_6VideoProcessor,
)
from transformers.video_utils import VideoMetadata
from transformers.vision_utils import get_vision_nearest_position_ids

from qeff_zoo.errors import GenerationError, UnsupportedModelError
from qeff_zoo.media.video_processor import KINDS, load_video_processor
from qeff_zoo.media.videos import Frames
from qeff_zoo.multimodal.encoding.patch_positions import PatchGeometry
from qeff_zoo.qefficient.processor_outputs import images_of
from qeff_zoo.registry import find_recipe
from qeff_zoo.tasks.multimodal.image_text_session import ImageTextToTextSession
from qeff_zoo.tasks.multimodal.samples import noise

pytestmark = pytest.mark.turns(2)

RECIPE = find_recipe("minicpmv4_6")
TINY = RECIPE.tiny[0]
TOKENS = {
    "image_start_token": "<image>",
    "image_end_token": "</image>",
    "slice_start_token": "<slice>",
    "slice_end_token": "</slice>",
    "image_id_start_token": "<image_id>",
    "image_id_end_token": "</image_id>",
}


def opened(**changes: Any) -> tuple[ImageTextToTextSession, parity.Subject]:
    """Open what a package of the tiny model would have, of a config that says something else."""
    case = parity.Case(recipe=RECIPE, tiny=replace(TINY, config={**TINY.config, **changes}))
    subject = parity.Subject(case.config, RECIPE)
    session = session_of(case, subject)
    assert isinstance(session, ImageTextToTextSession)
    return session, subject


@pytest.mark.parametrize("side", [3, 7, 16, 32, 70])
def test_the_nearest_positions_are_those_of_transformers(side: int) -> None:
    tower = PatchGeometry(merge=4, inner=2, side=side, taps="nearest")
    for height, width in ((4, 4), (8, 12), (28, 36), (32, 32), (44, 24), (92, 8), (140, 100)):
        sizes = torch.tensor([[height, width]])
        expected = get_vision_nearest_position_ids(sizes, side).numpy()
        grid = (1, height, width)
        lines = replace(tower, lines=True)
        found = tower.describe(grid)["interp_indices"][:, 0]
        assert (found == lines.ordered(expected, grid)).all()


@pytest.mark.parametrize(
    ("changes", "merge"),
    [({"merger_times": 2}, 8), ({"downsample_mode": "4x"}, 2)],
)
def test_other_ways_to_merge_agree_with_hugging_face(changes: dict[str, Any], merge: int) -> None:
    """Of each, rows of an image whose squares lie line by line."""
    session, subject = opened(**changes)
    assert session.reader.patch_geometry.merge == merge
    made = noise(session, (2, 3), np.random.default_rng(0))
    settings = {name: torch.from_numpy(array) for name, array in made.items()}
    with torch.no_grad():
        (right,) = subject.hf.model.get_image_features(**settings).pooler_output
    found = session.reader.look(made).features["image_embeds"]
    assert np.abs(found - right.numpy()).max() < 1e-5 * np.abs(right.numpy()).max()


def written(subject: parity.Subject, use_image_id: bool) -> ImageTextToTextSession:
    """Open the tiny model with a tokenizer, and settings of a processor."""
    folder = subject.folder / "checkpoint"
    words = {f"w{number}": number for number in range(257)}
    for number, word in enumerate(("0", "1", "\n", *TOKENS.values()), 6):
        words[word] = words.pop(f"w{number}")
    words |= {"<pad>": words.pop("w200"), "<video>": words.pop("w201")}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    tokenizer.add_special_tokens(["<pad>", "<video>", *TOKENS.values()])
    tokenizer.save(str(folder / "tokenizer.json"))
    plain_class(folder)
    settings = {**TINY.image_processor, "use_image_id": use_image_id}
    filmed = {**settings, "max_num_frames": 3}
    for name, content in (
        ("tokenizer_config", {"extra_special_tokens": TOKENS}),
        ("preprocessor_config", settings),
        ("video_preprocessor_config", filmed),
    ):
        (folder / f"{name}.json").write_text(json.dumps(content))
    session = session_of(parity.Case(recipe=RECIPE, tiny=TINY), subject)
    assert isinstance(session, ImageTextToTextSession)
    return session


@pytest.mark.parametrize("use_image_id", [True, False])
def test_prompts_are_written_as_by_transformers(use_image_id: bool) -> None:
    """Numbers of images, the whole of each, and its slices, as many as there are; and taken apart again."""
    session: Any = written(opened()[1], use_image_id)
    random = np.random.default_rng(0)
    photos = [random.integers(0, 256, (*size, 3), np.uint8) for size in ((60, 60), (20, 20))]
    made = [session.prepare(photo) for photo in photos]
    assert [len(one["target_sizes"]) for one in made] == [5, 1]
    settings = SimpleNamespace(
        **{**TOKENS, "image_token": "<pad>", "slice_mode": True},
    )
    texts = [
        MiniCPMV4_6Processor.replace_image_token(
            settings,
            {**one, "num_patches_per_image": [len(one["target_sizes"])]},
            0,
            image_token_divisor=16,
        )
        for one in made
    ]
    text = "w1 <pad> w2 <pad> w3"
    if use_image_id:
        texts = MiniCPMV4_6Processor._prepend_local_ids(settings, [text], texts, "<pad>")
    first, second = texts
    prompt = [*session.request(text, images=photos).prompt]
    expected = f"w1 {first} w2 {second} w3"
    assert prompt == session.tokenizer.encode(expected, special_tokens=False)
    session.names.settings = replace(session.names.settings, special={})
    with pytest.raises(GenerationError, match=r"tokenizer_config.json.*'image_.*_token'"):
        session.request(text, images=photos)
    together = {
        "pixel_values": np.concatenate([one["pixel_values"] for one in made], -1),
        "target_sizes": np.concatenate([one["target_sizes"] for one in made]),
    }
    apart = images_of(together)
    rows = [session.reader.look(one).features["image_embeds"] for one in apart]
    whole = [session.reader.look(one).features["image_embeds"] for one in made]
    np.testing.assert_array_equal(np.concatenate(rows), np.concatenate(whole))
    assert session.request_written_out(prompt, apart).prompt == tuple(prompt)


# --- videos ----------------------------------------------------------------------------------------------------------


def of_video(prepared: Any) -> dict[str, Any]:
    """Return frames as transformers' class for videos gives them."""
    pixels, count = prepared["pixel_values"], len(prepared["pixel_values"])
    return {
        "pixel_values_videos": np.concatenate(pixels, -1)[None],
        "target_sizes_videos": np.tile(prepared["target_sizes"], (count, 1)),
        "grids_videos": np.tile(prepared["grids"], (count, 1)),
    }


@pytest.mark.parametrize("use_image_id", [True, False])
@pytest.mark.sampled(2)
def test_answers_about_videos_are_those_of_generate(use_image_id: bool, tmp_path: Any) -> None:
    """Ids, too: videos have numbers of their own, and their frames none; one is cut into slices, and one is long."""
    subject = opened()[1]
    session: Any = written(subject, use_image_id)
    shots = video_of(2, 1, 40, 50), video_of(5, 2, 16, 24)
    video_inputs = []
    for place, frames in enumerate(shots):
        (tmp_path / str(place)).mkdir()
        video_inputs.append(clip(tmp_path / str(place), frames, 1000))
    made, (image,) = [session.prepare_video(one) for one in video_inputs], video_of(1, 3, 20, 20)
    assert [len(one["pixel_values"]) for one in made] == [2, 3]
    shown = session.prepare(image)
    settings = SimpleNamespace(
        **TOKENS, image_token="<pad>", video_token="<video>", video_slice_mode=True
    )
    settings.slice_mode = True
    given = {name: [] for name in of_video(made[0])}
    for one in made:
        for name, array in of_video(one).items():
            given[name].append(array)
    given = {
        name: np.concatenate(every, -1 if "pixel" in name else 0) for name, every in given.items()
    }
    counts = [len(one["pixel_values"]) for one in made]
    requested = {**given, "num_frames_per_video": np.array(counts)}
    texts = [
        MiniCPMV4_6Processor.replace_video_token(settings, requested, place, video_token_divisor=16)
        for place in range(2)
    ]
    recorded = {**shown, "num_patches_per_image": [1]}
    shown_as = [
        MiniCPMV4_6Processor.replace_image_token(settings, recorded, 0, image_token_divisor=16)
    ]
    text = "w1 <video> w2 <pad> w3 <video> w4"
    if use_image_id:
        number = MiniCPMV4_6Processor._prepend_local_ids
        texts, shown_as = (
            number(settings, [text], every, token)
            for every, token in ((texts, "<video>"), (shown_as, "<pad>"))
        )
    whole = text.replace("<pad>", "<I>").replace("<video>", "<V>", 1).replace("<video>", "<W>")
    for mark, one in (("<I>", shown_as[0]), ("<V>", texts[0]), ("<W>", texts[1])):
        whole = whole.replace(mark, one)
    ids = session.tokenizer.encode(whole, special_tokens=False)
    request = session.request(text, images=[image], videos=video_inputs, generation_len=6)
    assert [*request.prompt] == [200 if token == 201 else token for token in ids]
    arrays = {name: torch.from_numpy(array) for name, array in given.items() if "grids" not in name}
    arrays |= {name: torch.from_numpy(shown[name]) for name in ("pixel_values", "target_sizes")}
    choices = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    right = subject.hf.generate(input_ids=torch.tensor([ids]), **arrays, **choices)
    for videos in (video_inputs, [of_video(one) for one in made]):
        (answer,) = session.generate(
            text, images=[image], videos=videos, generation_len=6, ignore_eos=True
        )
        assert answer.token_ids == right[0, len(ids) :].tolist()
    del given["grids_videos"]
    with pytest.raises(GenerationError, match=r"expected `grids_videos`, too"):
        session.request("<video>", videos=[given])


def test_frames_are_those_that_transformers_takes(tmp_path: Any) -> None:
    """To the last bit, where they keep their size and numbers, which transformers leaves to torchvision."""
    kind = KINDS["MiniCPMV4_6VideoProcessor"]
    for most in (8, 37, 128):
        reference = MiniCPMV4_6VideoProcessor(max_num_frames=most)
        for total, fps in ((1, 1), (9, 2.4), (61, 7), (700, 29.97), (2600, 0.5), (999, 24)):
            data = VideoMetadata(total_num_frames=total, fps=fps, duration=total / fps)
            video = Frames([np.zeros((1, 1, 3), np.uint8)] * total, fps, "a video")
            given_settings = {**kind.settings, "max_num_frames": most}
            assert kind.sample(video, given_settings) == reference.sample_frames(data)
    settings: dict[str, Any] = {"do_resize": False, "do_normalize": False, "rescale_factor": 1.0}
    settings |= {"patch_size": 4, "video_processor_type": "MiniCPMV4_6VideoProcessor"}
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(settings))
    process = load_video_processor(tmp_path)
    mine = of_video(process(clip(tmp_path, video_of(9, 3, 16, 24), 400)))
    data = VideoMetadata(total_num_frames=9, fps=2.5, duration=3.6)
    reference = MiniCPMV4_6VideoProcessor(**settings, do_convert_rgb=False)
    expected = reference(
        [np.stack(video_of(9, 3, 16, 24))], video_metadata=[data], return_tensors="np"
    )
    for name, array in mine.items():
        np.testing.assert_array_equal(array, expected[name])
    shots = video_of(3, 1, 16, 24)  # without times
    expected = reference([np.stack(shots)], do_sample_frames=False, return_tensors="np")
    for name, array in of_video(process(shots)).items():
        np.testing.assert_array_equal(array, expected[name])
    settings["stack_frames"] = 3
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.raises(UnsupportedModelError, match=r"puts 3 frames of each second.*Expected 1"):
        load_video_processor(tmp_path)
