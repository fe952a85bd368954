# SPDX-License-Identifier: Apache-2.0
"""A package that reads images and recordings in one prompt, against transformers' processor and `generate`.

`test_media_recipes` compares the programs of every recipe; this module tests sessions of two.
"""

import base64
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import parity
import pytest
import torch
import transformers
from fixtures_audio_text import RATE, recorded, recording
from fixtures_media_recipes import session_of
from fixtures_omni_models import EOS, saved, tokenizer
from fixtures_serving import MODEL, connect, figures, running
from PIL import Image
from safetensors.torch import save_file
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

from qeff_zoo import bench, pipeline
from qeff_zoo.bench import case as bench_case
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.cli import main
from qeff_zoo.contract import for_task
from qeff_zoo.errors import GenerationError, PlanError
from qeff_zoo.media.audio_processor import AudioProcessor
from qeff_zoo.media.features import find
from qeff_zoo.plan import resolve
from qeff_zoo.plan.request import Request
from qeff_zoo.registry import find_recipe, recipe_for
from qeff_zoo.runtime import Engine
from qeff_zoo.runtime.text.tokenizer import Tokenizer
from qeff_zoo.sessions import open_session
from qeff_zoo.store import Store
from qeff_zoo.tasks.multimodal.any_to_any_session import AnyToAnySession

pytestmark = pytest.mark.together("any_to_any")

SIZES: dict[str, Any] = {"ctx_len": 128, "prefill_seq_len": 8, "full_batch_size": 2}
IMAGE = "<|vision_bos|> <|IMAGE|> <|vision_eos|>"
AUDIO = "<|audio_bos|> <|AUDIO|> <|audio_eos|>"
TEMPLATE = (
    "{% for one in messages[0].content %}{% if one.type == 'text' %}{{ one.text }}{% elif one.type == 'image' %}"
    f"{IMAGE} {{% else %}}{AUDIO} {{% endif %}}{{% endfor %}}"
)
#: Prompts, and the numbers of their images and recordings: in both orders, several of both, one kind, none.
PROMPTS = {
    f"w7 {IMAGE} w3 {AUDIO} w4 w5": (1, 1),
    f"{AUDIO} w3 {IMAGE} w4": (1, 1),
    f"w8 {IMAGE} {AUDIO} w9 {IMAGE} w3 {AUDIO} w4": (2, 2),
    f"{AUDIO} w3 w4": (0, 1),
    f"w9 {IMAGE} w4": (1, 0),
    "w3 w4 w5": (0, 0),
}
LENGTH = 6


class Omni:
    """A tiny Qwen2.5-Omni, its processor, and the package built of it.

    Args:
        folder: For all of them.
    """

    def __init__(self, folder: Path) -> None:
        audio = transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=3)
        self.checkpoint = folder / "tiny-omni"
        self.model, self.processor = saved(self.checkpoint, audio, tokenizer(TEMPLATE))
        self.store = Store(folder / "store")
        self.package = self.build().package

    def build(self, **more: Any) -> Any:
        requested = Request(**{"task": "any-to-any", **SIZES, **more})
        return pipeline.build(str(self.checkpoint), requested, validate=False, store=self.store)

    def answer(self, text: str, images: list[Any], recordings: list[Any]) -> list[int]:
        """Answer by transformers' processor, model and `generate`."""
        given = self.processor(
            text=text, images=images or None, audio=recordings or None, sampling_rate=RATE,
            return_tensors="pt",
        )  # fmt: skip
        given.pop("num_audio_tokens", None)
        with torch.no_grad():
            found = self.model.generate(
                **given, max_new_tokens=LENGTH, do_sample=False, eos_token_id=None
            )
        return found[0, given["input_ids"].shape[1] :].tolist()  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def omni(tmp_path_factory: pytest.TempPathFactory) -> Omni:
    return Omni(tmp_path_factory.mktemp("omni"))


@pytest.fixture
def session(omni: Omni) -> AnyToAnySession:
    found = open_session(omni.package, threads=1)
    assert isinstance(found, AnyToAnySession)
    return found


def pixels(seed: int) -> Any:
    """Draw an image, wide or high."""
    size = (24, 40, 3) if seed % 2 else (33, 17, 3)
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def brought(number: int, counts: tuple[int, int]) -> tuple[list[Any], list[Any]]:
    """Draw the images and recordings of a prompt, of several sizes."""
    images = [pixels(10 * number + place) for place in range(counts[0])]
    recordings = [recording(10 * number + place, 0.3 + 0.9 * place) for place in range(counts[1])]
    return images, recordings


def test_a_package_has_three_programs_and_one_file_of_weights(omni: Omni) -> None:
    roles = [program.role for program in omni.package.programs]
    assert roles == ["language", "vision", "audio"]
    assert sum(file["role"] == "weights" for file in omni.package.manifest["files"]) == 1


def test_answers_are_those_of_transformers_processor_and_generate(
    omni: Omni, session: AnyToAnySession
) -> None:
    """More prompts than rows, in chunks that cut images and recordings; each joins while another is answered."""
    every = [brought(number, counts) for number, counts in enumerate(PROMPTS.values())]
    images, recordings = ([*one] for one in zip(*every, strict=True))
    outputs = session.generate(
        [*PROMPTS], images=images, audio=recordings, generation_len=LENGTH, ignore_eos=True
    )
    for text, shown, found in zip(PROMPTS, every, outputs, strict=True):
        assert found.token_ids == omni.answer(text, *shown), text
    assert session.metrics
    assert (session.metrics.encoded_images, session.metrics.encoded_audio) == (5, 5)


def test_the_command_answers_as_generate(
    omni: Omni, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.fromarray(pixels(1)).save(tmp_path / "a.png")
    audio = recorded(tmp_path / "speech.wav", recording(1))
    given = (recording(1) * 32767).astype("<i2").astype(np.float32) / 32768
    command = ["run", str(omni.package.path), str(audio), "--image", str(tmp_path / "a.png")]
    command += ["--chat", "--prompt", "w3 w4", "--generation-len", str(LENGTH), "--json"]
    assert main(command) == 0
    (found,) = json.loads(capsys.readouterr().out)["outputs"]
    assert found["token_ids"] == omni.answer(f"{IMAGE} {AUDIO} w3 w4", [pixels(1)], [given])


def test_an_image_is_located_by_the_token_before_it(omni: Omni, session: AnyToAnySession) -> None:
    with pytest.raises(GenerationError, match=r"for images without '<\|vision_bos\|>' before it"):
        session.request("<|IMAGE|> w3 w4", images=[pixels(1)])
    assert session.eos_token_ids == {EOS}  # set by the tokenizer alone


def test_requests_do_not_share_images_or_audio(session: AnyToAnySession) -> None:
    """The prefix cache ends before the first image or recording that differs."""
    text = f"w7 {IMAGE} w3 {AUDIO} " + "w4 " * 20

    def request(image: int, audio: int) -> Any:
        shown: dict[str, Any] = {"images": [pixels(image)], "audio": [recording(audio)]}
        return session.generate(text, **shown, generation_len=LENGTH, ignore_eos=True)[0]

    first, again, behind, other = request(1, 1), request(1, 1), request(1, 2), request(3, 1)
    assert again.token_ids == first.token_ids
    assert again.reused_tokens > behind.reused_tokens > other.reused_tokens == 0
    assert len({tuple(one.token_ids) for one in (first, behind, other)}) == 3
    # Of the images of four prompts two were encoded, as were two of the recordings: equal ones are cached.
    assert [reader.read for reader in session.readers] == [2, 2]


def test_a_server_takes_images_and_audio_in_one_prompt(
    omni: Omni, session: AnyToAnySession, tmp_path: Path
) -> None:
    Image.fromarray(pixels(1)).save(tmp_path / "a.png")
    image, audio_input = tmp_path / "a.png", recorded(tmp_path / "speech.wav", recording(1))
    observed, spoken = (base64.b64encode(one.read_bytes()).decode() for one in (image, audio_input))
    parts: list[Any] = [
        {"type": "input_audio", "input_audio": {"data": spoken, "format": "wav"}},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{observed}"}},
        {"type": "text", "text": "w3 w4"},
    ]
    text = f"{AUDIO} {IMAGE} w3 w4"
    (expected,) = session.generate(text, images=[image], audio=[audio_input], generation_len=4)
    opened: Any = open_session(omni.package, threads=1)
    with Engine(opened) as engine, running(engine) as url, connect(url) as client:
        answer = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": parts}], max_tokens=4, temperature=0
        )
        counted = figures(url)
    assert answer.choices[0].message.content == expected.text
    assert (counted["audio_total"], counted["encoded_images_total"]) == (1, 1)


def test_gemma_4_answers_as_transformers_processor_and_generate(tmp_path: Path) -> None:
    """Tokens of an image attend to one another, those of a recording do not."""
    own = parity.all_cases()["gemma4-base"]
    case = replace(own, recipe=for_task(recipe_for(own.config), "any-to-any"))
    subject = parity.Subject(case.config, case.recipe)
    session: Any = session_of(case, subject)
    words = ["<image>", "<boi>", "<eoi>", "<|video|>", "<audio>", "<boa>", "<eoa>"]
    fast = tokenizer(
        "",
        {
            f"{name}_token": (word, 200 + number)
            for number, (name, word) in enumerate(
                zip(("image", "boi", "eoi", "video", "audio", "boa", "eoa"), words, strict=True)
            )
        },
    )
    observed = Gemma4ImageProcessorPil(patch_size=4, max_soft_tokens=70)
    audio_input = transformers.Gemma4AudioFeatureExtractor(feature_size=8)
    with mock.patch.object(transformers.ProcessorMixin, "check_argument_for_proper_class"):
        processor = transformers.Gemma4Processor(audio_input, observed, fast, None)
    fast.pad_token = "w0"
    fast.save_pretrained(tmp_path)
    settings = {"feature_extractor": json.loads(audio_input.to_json_string())}
    settings["image_processor"] = observed.to_dict()
    (tmp_path / "processor_config.json").write_text(json.dumps(settings))
    session.folder = tmp_path
    session.tokenizer = session.names.tokenizer = Tokenizer.find(tmp_path)
    image, speech = pixels(1), recording(1, 0.83)
    for text in ("w7 <image> w3 <audio> w4", "<audio> w3 <image> w4"):
        given = processor(text=text, images=[image], audio=[speech], return_tensors="pt")
        with torch.no_grad():
            right = subject.hf.generate(
                **given, max_new_tokens=LENGTH, do_sample=False, eos_token_id=None
            )
        (found,) = session.generate(
            text, images=[image], audio=[speech], generation_len=LENGTH, ignore_eos=True
        )
        assert found.token_ids == right[0, given["input_ids"].shape[1] :].tolist()


@pytest.mark.parametrize("samples", [161, 320, 321, 16_000, 50_001])
@pytest.mark.parametrize("more", [{}, {"preemphasis": 0.9, "per_bin_mean": [0.1] * 64 + [1] * 64}])
def test_features_of_gemma_4_are_those_of_transformers(samples: int, more: dict[str, Any]) -> None:
    extractor = transformers.Gemma4AudioFeatureExtractor(**more)
    given = recording(samples, samples / RATE)
    reference = extractor([given], sampling_rate=RATE, return_tensors="np")
    settings = json.loads(extractor.to_json_string())
    ours, count = find(settings).compute(given), int(reference["input_features_mask"].sum())
    assert ours.shape == (count, 128)
    np.testing.assert_allclose(ours, reference["input_features"][0, :count], atol=1e-6, rtol=0)


@pytest.mark.parametrize("samples", [1, 640, 641, 16_000])
def test_frames_of_gemma_4_without_a_tower_are_those_of_transformers(samples: int) -> None:
    """Bit for bit; each becomes a row."""
    extractor = transformers.Gemma4UnifiedAudioFeatureExtractor()
    given = recording(samples, samples / RATE)
    reference = extractor([given], return_tensors="np")
    settings = json.loads(extractor.to_json_string())
    ours = AudioProcessor(find(settings), (1, 640), find_recipe("gemma4_unified").audio)
    for name, array in ours(given).items():
        np.testing.assert_array_equal(array, reference[name], err_msg=name)


def test_a_checkpoint_without_an_audio_encoder_is_refused(tmp_path: Path) -> None:
    settings = {**parity.all_cases()["gemma4-base"].config, "audio_config": None}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    save_file({}, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(str(tmp_path))
    for task in ("audio-text-to-text", "any-to-any"):
        with pytest.raises(PlanError, match=r"has no audio encoder .*null"):
            resolve.check(checkpoint, Request(task=task))


def test_placeholders_of_each_kind_must_match_the_media(session: AnyToAnySession) -> None:
    with pytest.raises(
        GenerationError, match="has 0 places for recordings, and there are 1 recordings"
    ):
        session.request(IMAGE, images=[pixels(1)], audio=[recording(1)])
    with pytest.raises(GenerationError, match="has 1 places for images, and there are 0 imag"):
        session.request(f"{IMAGE} {AUDIO}", audio=[recording(1)])


def test_other_targets_and_prefill_only_packages_are_refused(omni: Omni) -> None:
    with pytest.raises(PlanError, match="reads images and audio in one prompt, which programs"):
        omni.build(target="qaic")
    with pytest.raises(PlanError, match="encoded audio and other texts"):
        omni.build(prefill_only=True)


def test_bench_measures_a_prompt_with_an_image_and_a_recording(omni: Omni) -> None:
    sizes = {"prompt_lens": [4], "batch_sizes": [1], "generation_len": 2}
    (case,) = bench.plan(omni.package, **sizes, threads=1)
    found = asdict(bench_case.measure(omni.package, case, 1))
    assert found["image_tokens"] > found["audio_tokens"] > 0
