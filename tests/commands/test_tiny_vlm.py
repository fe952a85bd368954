# SPDX-License-Identifier: Apache-2.0
"""The trained model that sees: `scripts/train_tiny_vlm.py`, its checkpoint, and its package, which tells the truth."""

import base64
import importlib.util
import json
import random
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import warm
from checkout import ROOT
from fixtures_handoff import serving
from fixtures_serving import MODEL, connect, figures, running
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

import qeff_zoo
from qeff_zoo import bench, cli
from qeff_zoo.bench import case as bench_case
from qeff_zoo.errors import GenerationError
from qeff_zoo.package import Package
from qeff_zoo.runtime import Engine
from qeff_zoo.runtime.engine.disaggregated import Prefills
from qeff_zoo.tasks.multimodal.image_text_session import ImageTextToTextSession
from qeff_zoo.validation.reference.subjects import answers_of

CHECKPOINT = ROOT / "examples" / "tiny-vlm"
GUIDE = (ROOT / "docs" / "vision-language.md").read_text(encoding="utf-8")
SIZES = {"ctx_len": 256, "full_batch_size": 4, "prefill_seq_len": 64}
pytestmark = pytest.mark.together("tiny_vlm")


@pytest.fixture(scope="module")
def vlm() -> Iterator[ModuleType]:
    """Give the script as a module, which imports the one that trains the Llama."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        spec = importlib.util.spec_from_file_location(
            "train_tiny_vlm", ROOT / "scripts" / "train_tiny_vlm.py"
        )
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, "train_tiny_vlm", module)
        spec.loader.exec_module(module)
        yield module


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give the store of all packages here."""
    folder = tmp_path_factory.mktemp("tiny-vlm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QEFF_HOME", str(folder))
        yield folder


@pytest.fixture(scope="module")
def package(home: Path) -> Package:
    """Give a package that was compared with Hugging Face."""
    return qeff_zoo.build(CHECKPOINT, **SIZES)


@pytest.fixture(scope="module")
def session(package: Package) -> ImageTextToTextSession:
    found = qeff_zoo.load(package, threads=1)
    assert isinstance(found, ImageTextToTextSession)
    return found


def held_out(vlm: ModuleType, seed: int = 1) -> list[tuple[Any, Image.Image]]:
    """Draw an image of every scene that was held out."""
    chance = random.Random(f"test {seed}")
    return [(scene, vlm.draw(scene, chance)) for scene in vlm.scenes(held_out=True)]


def share_right(session: ImageTextToTextSession, vlm: ModuleType) -> float:
    """Ask everything about every scene that was held out, many requests at a time."""
    chance = random.Random(0)
    requested = [
        (image, question, answer)
        for scene, image in held_out(vlm)
        for _, question, answer in vlm.questions([scene], chance)
    ]
    answers = session.generate(
        [question for _, question, _ in requested],
        images=[[image] for image, _, _ in requested],
        chat=True,
        generation_len=16,
    )
    right = [
        answer.text == settings for answer, (_, _, settings) in zip(answers, requested, strict=True)
    ]
    return sum(right) / len(right)


def test_a_few_steps_leave_a_checkpoint(tmp_path: Path) -> None:
    size = "--layers 2 --hidden 64 --steps 12 --batch-size 8 --seed 1"
    command = [warm.PYTHON.executable, ROOT / "scripts" / "train_tiny_vlm.py", "--output", tmp_path]
    done = subprocess.run([*command, *size.split()], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["last_loss"] < report["first_loss"] - 1
    assert report["held_out_right"].keys() == {
        *("shape", "colour", "count", "place", "all", "first", "second", "alike")
    }
    assert AutoModelForImageTextToText.from_pretrained(tmp_path).config.model_type == "llava"
    assert f"{report['held_out_right']['shape']:.1%}" in (tmp_path / "README.md").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {
        path.name for path in CHECKPOINT.iterdir()
    }


def test_held_out_scenes_are_not_trained_on(vlm: ModuleType) -> None:
    kept, trained = vlm.scenes(held_out=True), vlm.scenes(held_out=False)
    assert not {*kept} & {*trained}
    assert len(kept) > 20
    # Each word of an answer was seen in others.
    for name in ("shape", "colour", "count", "place"):
        assert {getattr(one, name) for one in kept} <= {getattr(one, name) for one in trained}


def test_the_committed_checkpoint_is_small_and_as_accurate_as_in_its_card(vlm: ModuleType) -> None:
    assert sum(path.stat().st_size for path in CHECKPOINT.rglob("*") if path.is_file()) < 10_000_000
    model = AutoModelForImageTextToText.from_pretrained(CHECKPOINT, dtype=torch.float32)
    right = vlm.held_out_right(model, AutoProcessor.from_pretrained(CHECKPOINT, backend="pil"), 0)
    card = (CHECKPOINT / "README.md").read_text()
    for kind, share in right.items():
        assert share >= 0.95, kind
        settings = re.search(rf"^\| {kind} \|.*\| ([\d.]+)% \|$", card, re.MULTILINE)
        assert settings
        assert 100 * share == pytest.approx(float(settings[1]), abs=2.5), kind


def test_the_package_was_compared_with_hugging_face(package: Package) -> None:
    assert package.validated == "checkpoint"
    stages = {check["stage"] for check in package.manifest["validation"]}
    assert {"prefill", "decode"} <= stages


def test_outputs_for_held_out_images_are_right(
    session: ImageTextToTextSession, vlm: ModuleType
) -> None:
    assert share_right(session, vlm) >= 0.95


@pytest.mark.parametrize("weights", ["int8", "int4", "w8a8"])
def test_in_fewer_bits_it_answers_right_too(home: Path, vlm: ModuleType, weights: str) -> None:
    package = qeff_zoo.build(CHECKPOINT, weights=weights, validate=False, **SIZES)
    rounded: Any = qeff_zoo.load(package, threads=1)
    assert share_right(rounded, vlm) >= 0.95


def test_answers_are_those_of_transformers_generate(
    session: ImageTextToTextSession, vlm: ModuleType
) -> None:
    """With transformers' own processor: none, one or two images, of any size."""
    model = AutoModelForImageTextToText.from_pretrained(CHECKPOINT, dtype=torch.float32)
    processor = AutoProcessor.from_pretrained(CHECKPOINT, backend="pil")
    photos = [image for _, image in held_out(vlm, 2)]
    for question, count in (("What is this?", 1), ("Same colour?", 2), ("Where is it?", 0)):
        shown = photos[:count]
        content = [*[{"type": "image"}] * count, {"type": "text", "text": question}]
        text = processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True
        )
        inputs = processor(text=text, images=shown or None, return_tensors="pt")
        ids = model.generate(**inputs, max_new_tokens=12, do_sample=False)[0]
        (answer,) = session.generate(question, images=shown, chat=True, generation_len=12)
        assert answer.token_ids == ids[inputs["input_ids"].shape[1] :].tolist()


def test_requests_with_different_images_run_together(
    session: ImageTextToTextSession, vlm: ModuleType
) -> None:
    """Seven requests in four rows: each is answered as when it is alone."""
    shown = held_out(vlm, 3)
    requested: list[tuple[str, Sequence[Image.Image]]] = [
        *[("What is this?", [image]) for _, image in shown[:4]],
        ("What is in the second picture?", [shown[4][1], shown[5][1]]),
        ("What is in the first picture?", [shown[4][1], shown[5][1]]),
        ("Who are you?", []),
    ]
    together = session.generate(
        [question for question, _ in requested],
        images=[photos for _, photos in requested],
        chat=True,
        generation_len=12,
    )
    fresh: Any = qeff_zoo.load(session.folder, threads=1, prefix_cache_bytes=0)
    alone = [
        fresh.generate(question, images=photos, chat=True, generation_len=12)[0]
        for question, photos in requested
    ]
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]
    settings = [scene.answers["all"] for scene, _ in (*shown[:4], shown[5], shown[4])]
    right = [one.text == answer for one, answer in zip(together, settings, strict=False)]
    assert sum(right) >= len(settings) - 1


def test_a_second_question_about_an_image_encodes_nothing(
    package: Package, vlm: ModuleType
) -> None:
    """And what is kept of a prompt is not used for another image, although the text is the same."""
    session: Any = qeff_zoo.load(package, threads=1)
    (scene, image), (other_scene, other) = held_out(vlm, 4)[3:5]
    question = "What do you see in this picture, and of which colour is it? Describe the picture."

    def request(shown: Image.Image, text: str = question) -> tuple[Any, Any]:
        (answer,) = session.generate(text, images=[shown], chat=True, generation_len=12)
        return answer, session.metrics

    first, metrics = request(image)
    assert (metrics.images, metrics.encoded_images, metrics.reused_tokens) == (1, 1, 0)
    assert metrics.encoding_s > 0
    again, metrics = request(image)
    assert (metrics.images, metrics.encoded_images, metrics.encoding_s) == (1, 0, 0)
    assert metrics.reused_tokens > 0
    assert again.token_ids == first.token_ids
    _, metrics = request(image, "Which colour?")
    assert metrics.encoded_images == 0
    stranger, metrics = request(other)
    assert (metrics.encoded_images, metrics.reused_tokens) == (1, 0)
    fresh: Any = qeff_zoo.load(package, threads=1)
    (alone,) = fresh.generate(question, images=[other], chat=True, generation_len=12)
    assert stranger.token_ids == alone.token_ids
    assert stranger.token_ids != first.token_ids
    assert scene != other_scene


def test_a_server_answers_about_content_parts(package: Package, vlm: ModuleType) -> None:
    scene, image = held_out(vlm, 5)[0]
    file = BytesIO()
    image.save(file, "PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    parts = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": "Which colour?"},
    ]
    with Engine(qeff_zoo.load(package, threads=1)) as engine, running(engine) as served:  # type: ignore[arg-type]
        with connect(served) as client:
            for _ in range(2):
                answer = client.chat.completions.create(
                    model=MODEL,
                    messages=[{"role": "user", "content": parts}],  # type: ignore[list-item, misc]
                    max_tokens=8,
                    temperature=0,
                )
                assert answer.choices[0].message.content == scene.answers["colour"]
        counted = figures(served)
    assert (counted["images_total"], counted["encoded_images_total"]) == (2, 1)


def test_unsupported_inputs_of_a_package_are_refused_by_name(
    session: ImageTextToTextSession,
) -> None:
    with pytest.raises(GenerationError, match="has audio, which this package does not read"):
        session.generate("What is this?", audio=["speech.wav"], chat=True)


def test_bench_counts_images(package: Package, capsys: pytest.CaptureFixture[str]) -> None:
    """One of noise where none is named; each prompt's are encoded, and their tokens are beside the text's."""
    (case, _) = bench.plan(package, prompt_lens=[10], generation_len=4, threads=1)
    noise, named = (
        bench_case.measure(package, one, 1)
        for one in (
            case,
            bench.Case(
                **{**asdict(case), "batch_size": 2, "images": (str(next(image_files())),) * 2}
            ),
        )
    )
    assert (noise.image_tokens, named.image_tokens) == (36, 72)
    assert noise.encode_s
    assert named.encode_s
    assert noise.ttft_s > noise.encode_s
    prompt = noise.prompt_len + noise.image_tokens
    assert noise.ttft_s > prompt / noise.prefill_tokens_per_s + noise.encode_s
    large = bench.Case(**{**asdict(case), "prompt_len": 218})
    with pytest.raises(GenerationError, match=r"218 tokens, images of 36 and 4 new .* 256"):
        bench_case.measure(package, large, 1)
    assert bench.plan(package)[0].prompt_len + bench.plan(package)[0].generation_len + 36 <= 256
    settings = ["--prompt-len", "8", "--generation-len", "2", "--batch-size", "1", "--repeat", "1"]
    assert cli.main(["bench", str(package.path), *settings]) == 0
    assert "encode s" in capsys.readouterr().out


def image_files() -> Iterator[Path]:
    yield from sorted((CHECKPOINT / "images").iterdir())


def test_committed_images_are_of_held_out_scenes(
    session: ImageTextToTextSession, vlm: ModuleType
) -> None:
    """Their names are the answers."""
    kept = {scene.answers["all"] for scene in vlm.scenes(held_out=True)}
    settings = [path.stem.replace("-", " ") for path in image_files()]
    assert {*settings} <= {one.replace(",", "") for one in kept}
    answers = session.generate(
        ["What is this?"] * len(settings), images=[[path] for path in image_files()], chat=True
    )
    assert [answer.text.replace(",", "") for answer in answers] == settings


def test_the_reference_follows_a_run_that_ends_inside_an_image() -> None:
    """Hugging Face's model takes all of an image or none of it."""
    model = AutoModelForImageTextToText.from_pretrained(CHECKPOINT).eval()
    token, count = model.config.image_token_index, model.config.image_seq_length
    size = model.config.vision_config.image_size
    request = {
        "task": "image-text-to-text",
        "sequences": [[9, *[token] * count, 10, 11]],
        "positions": [[0, 5, count + 2]],
        "media": [1],
    }
    images = {"media.0.0.pixel_values": np.ones((1, 3, size, size), np.float32)}
    with torch.no_grad():
        answers = answers_of(model, request, images)
        (whole,) = answers.alone()
        prefix = answers.run_prefix(0, 7, lambda *_: nullcontext())
    np.testing.assert_array_equal(prefix, whole[:2])


def test_the_guides_example_runs(
    package: Package, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command prints what the guide shows; each answer is there."""
    monkeypatch.chdir(ROOT)
    shown, *_ = re.findall(r"```console\n(.*?)```", GUIDE, re.DOTALL)
    _, *examples = shown.split("$ qeff-zoo ")
    assert len(examples) >= 4
    path = ""
    for example in examples:
        command, *lines = example.replace("\\\n", "").splitlines()
        words = [path if word == "PACKAGE" else word for word in shlex.split(command)]
        assert cli.main(words) == 0
        printed = capsys.readouterr().out
        if words[0] == "build":
            path = printed.strip()
            assert path == str(package.path)
        elif words[0] == "run":
            assert printed.split("\n") == [*lines, ""]


def test_the_guides_two_packages_answer_as_one(
    package: Package,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Built as the guide says; what one reads of an image, the other tells."""
    monkeypatch.chdir(ROOT)
    _, _, section = GUIDE.partition("## Images and disaggregated prefill")
    shown = section.partition("```console\n")[2].partition("```")[0]
    for command in re.findall(r"^\$ qeff-zoo (build .*)$", shown, re.MULTILINE):
        *words, folder = shlex.split(command)
        assert cli.main([*words, str(tmp_path / folder), "--no-validate"]) == 0
    capsys.readouterr()
    prompts, answers = (qeff_zoo.load(tmp_path / half, threads=1) for half in ("prefill", "decode"))
    image = ROOT / "examples/tiny-vlm/images/two-yellow-crosses.png"
    with (
        serving(prompts) as address,
        Engine(answers, prefills=Prefills(answers, [address])) as engine,
    ):
        requested = answers.request("What is this?", images=[image], chat=True)
        assert engine.submit(requested).result(60).text == "two yellow crosses"
        assert engine.stats().handed_over == 1
