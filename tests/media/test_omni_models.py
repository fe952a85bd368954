# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of several models, in the published form, of which the one that writes is built and answers.

About pictures and videos; `test_any_to_any` compares what it answers about sounds beside them, and
`test_audio_windows` about sounds alone.
"""

import copy
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
from fixtures_omni_models import CLASSES, EOS, LENGTH, saved, tokenizer
from fixtures_videos import video_of
from PIL import Image

from qeff_zoo import pipeline
from qeff_zoo.checkpoint.config import model_config
from qeff_zoo.cli import main
from qeff_zoo.errors import GenerationError, MediaError
from qeff_zoo.media.video_processor import KINDS
from qeff_zoo.multimodal.families.qwen_video import QwenVideo
from qeff_zoo.package import Package
from qeff_zoo.plan.request import Request
from qeff_zoo.qefficient.processor_outputs import prompts_of
from qeff_zoo.registry import find_recipe
from qeff_zoo.sessions import open_session
from qeff_zoo.store import Store

pytestmark = pytest.mark.turns(3)

TEMPLATE = (
    "{% for one in messages[0].content %}{% if one is string %}{{ one }}{% elif one.type == 'text' %}{{ one.text }}"
    "{% else %}<|vision_bos|><|{{ one.type | upper }}|><|vision_eos|>{% endif %}{% endfor %}"
)
BEGIN, VIDEO, END = "<|vision_bos|>", "<|VIDEO|>", "<|vision_eos|>"
#: Of large patches, since a frame has as many pixels as transformers' processor says, whatever a checkpoint does.
SIZES = {"patch_size": 64, "size": {"shortest_edge": 256 * 256, "longest_edge": 512 * 512}}
#: With experts the programs are Qwen3-VL's: for a release.
MODELS = [*CLASSES] if parity.EVERY else ["qwen2_5_omni"]


class Prepared:
    """Stands in for transformers' class, which needs torchvision to resize frames."""

    merge_size = temporal_patch_size = 2

    def __init__(self) -> None:
        self.session: Any = None
        self.options: dict[str, Any] = {}

    def __call__(self, videos: Any, **options: Any) -> dict[str, Any]:
        made = [self.session.prepare_video(video) for video in videos]
        self.options = options
        names = {"pixel_values_videos": "pixel_values", "video_grid_thw": "image_grid_thw"}
        return {
            name: torch.from_numpy(np.concatenate([one[mine] for one in made]))
            for name, mine in names.items()
        }


@pytest.fixture(scope="module", params=MODELS)
def built(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Package, Any, Any]:
    """Return a package, the model and its processor."""
    folder = tmp_path_factory.mktemp("several") / "tiny-omni"
    config = copy.deepcopy(dict(find_recipe(request.param).tiny[0].config))
    thinker: Any = config["thinker_config"]
    thinker["position_id_per_seconds"] = 3
    thinker["vision_config"] |= {"patch_size": 64, "window_size": 256}
    settings = {"config": config, "sizes": SIZES, "videos": Prepared(), "model_type": request.param}
    audio = transformers.WhisperFeatureExtractor()
    model, processor = saved(folder, audio, tokenizer(TEMPLATE), **settings)
    requested, store = Request(ctx_len=128, prefill_seq_len=32), Store(folder.parent / "store")
    done = pipeline.build(str(folder), requested, validate=False, store=store)
    return done.package, model, processor


def answer(model: Any, given: Any) -> list[int]:
    requested = {"max_new_tokens": LENGTH, "do_sample": False, "eos_token_id": None}
    with torch.no_grad():
        made = model.generate(**given, **requested, pad_token_id=0)
    return list(made[0, given["input_ids"].shape[1] :].tolist())


def test_the_model_that_writes_answers_as_generate(
    built: tuple[Package, Any, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package, model, processor = built
    pixels = np.random.default_rng(0).integers(0, 256, (24, 40, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "picture.png")
    given = processor(
        text="<|vision_bos|><|IMAGE|><|vision_eos|> w3 w4", images=[pixels], return_tensors="pt"
    )
    command = ["run", str(package.path), "--image", str(tmp_path / "picture.png"), "--json"]
    command += ["--generation-len", str(LENGTH), "--prompt"]
    assert main([*command, " w3 w4", "--chat"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["outputs"]
    assert found["token_ids"] == answer(model, given)
    assert main([*command, "<|IMAGE|> w3 w4"]) == 1
    assert "a place for images without '<|vision_bos|>' before it" in capsys.readouterr().err
    assert open_session(package, threads=1).eos_token_ids == {EOS}


Case = tuple[str, list[Any], list[Any]]
#: Text, pictures and videos: one whose time goes beyond its rows and columns, one behind a picture, two.
CASES: list[Case] = [
    (f"{BEGIN}{VIDEO}{END} w4 w5", [], [video_of(13, 1, 384, 384)]),
    (f"{BEGIN}<|IMAGE|>{END} w9 {BEGIN}{VIDEO}{END} w4", video_of(1, 2, 300, 300), [video_of(3, 3, 256, 512)]),
    (f"w3 {BEGIN}{VIDEO}{END} w9 {BEGIN}{VIDEO}{END} w4", [], [video_of(5, 4, 300, 400), video_of(2, 5, 384, 384)]),
]  # fmt: skip


def test_answers_about_videos_are_those_of_generate(
    built: tuple[Package, Any, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ids, sizes of frames and positions, too; and by the command."""
    package, model, processor = built
    session: Any = open_session(package, threads=1)
    processor.video_processor.session = session
    expected = []
    for text, photos, video_inputs in CASES:
        given = processor(
            text=text, images=photos or None, videos=video_inputs, return_tensors="pt"
        )
        size = processor.video_processor.options["size"]
        assert size == KINDS[type(processor).__name__].fixed["size"]
        requested = session.request(text, images=photos, videos=video_inputs, generation_len=2)
        assert list(requested.prompt) == [
            200 if one == 201 else one for one in given["input_ids"][0]
        ]
        given_settings = {name: given.get(name) for name in ("image_grid_thw", "video_grid_thw")}
        given_settings |= {"attention_mask": given["attention_mask"]}
        given_settings |= {"second_per_grids": given["video_second_per_grid"]}
        positions, _ = model.get_rope_index(given["input_ids"], **given_settings)
        np.testing.assert_array_equal(requested.spans.axes, positions[:, 0])
        expected.append(answer(model, given))
    prompts, photos, video_inputs = ([*one] for one in zip(*CASES, strict=True))
    answers = session.generate(
        prompts, images=photos, videos=video_inputs, generation_len=LENGTH, ignore_eos=True
    )
    assert [one.token_ids for one in answers] == expected
    (tmp_path / "film").mkdir()
    for place, frame in enumerate(CASES[0][2][0]):
        Image.fromarray(frame).save(tmp_path / "film" / f"{place}.png")
    command = ["run", str(package.path), "--video", str(tmp_path / "film"), "--json", "--chat"]
    assert main([*command, "--prompt", " w4 w5", "--generation-len", str(LENGTH)]) == 0
    (settings,) = json.loads(capsys.readouterr().out)["outputs"]
    assert settings["token_ids"] == expected[0][: len(settings["token_ids"])]


def test_the_audio_track_of_a_video_is_refused(built: tuple[Package, Any, Any]) -> None:
    session: Any = open_session(built[0], threads=1)
    given = {"pixel_values_videos": [], "video_grid_thw": [], "input_features": []}
    words = r"the video has input_features, its audio.*use_audio_in_video"
    with pytest.raises(GenerationError, match=words):
        session.request(f"{BEGIN}{VIDEO}{END}", videos=[given])


@pytest.mark.parametrize("name", ["Qwen2_5Omni", "Qwen3OmniMoe"])
def test_steps_have_the_interval_of_the_model(name: str) -> None:
    """At whole positions, to which one of the two models cuts others off; those of the other are refused."""
    images = find_recipe({"Qwen2_5Omni": "qwen2_5_omni"}.get(name, "qwen3_omni_moe")).images
    assert isinstance(images, QwenVideo)
    config: Any = {"position_id_per_seconds": 25, "vision_config": {}}
    config |= {"image_token_id": 200, "video_token_id": 201, "audio_token_id": 203}
    config |= {"vision_start_token_id": 202, "audio_start_token_id": 205, "seconds_per_chunk": 2}
    model: Any = SimpleNamespace(config=SimpleNamespace(**config), spatial_merge_size=2)
    base = getattr(transformers, f"{name}ThinkerForConditionalGeneration")
    model.get_llm_pos_ids_for_vision = partial(base.get_llm_pos_ids_for_vision, model)
    for seconds in (0.04, 1.0, 2.0, 0.7, 1 / 12):
        settings = {"second_per_grid_ts": np.array([seconds], np.float32)}
        given = torch.tensor([[202, *[201] * 11, 204, 5]])
        positions, _ = base.get_rope_index(
            model,
            given,
            video_grid_thw=torch.tensor([[11, 2, 2]]),
            attention_mask=torch.ones_like(given),
            second_per_grids=torch.tensor([seconds]),
        )
        times = positions[0, 0, 1:12] - 1
        if (times != times.long()).any():
            assert name == "Qwen3OmniMoe"
            with pytest.raises(MediaError, match=r"of each second they lie at.*another `fps`"):
                images.times(11, settings, config)
            continue
        np.testing.assert_array_equal(images.times(11, settings, config), times)


def test_the_model_is_the_one_with_a_language_model_and_a_tower() -> None:
    writes = {"text_config": {}, "audio_config": {}}
    speaks = {"text_config": {}, "code_predictor_config": {}}
    assert model_config({"talker_config": speaks, "thinker_config": writes}) is writes
    for alone in (writes, speaks, {**writes, "thinker_config": writes}, {"vocab_size": 3}):
        assert model_config(alone) is alone


@pytest.mark.parametrize("name", ["input_features", "pixel_values_videos"])
def test_audio_and_videos_beside_images_are_refused(name: str) -> None:
    """As transformers' processor prepares those of one prompt, or the recording of a video."""
    given: Any = {"input_ids": [[1, 203, 2]], name: np.zeros((1, 8, 20))}
    session: Any = None
    with pytest.raises(GenerationError, match=f"inputs have {name}; expected text and images"):
        next(prompts_of(session, given))
