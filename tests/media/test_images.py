# SPDX-License-Identifier: Apache-2.0
"""Images and text in, text out: two programs of one package, compared with Hugging Face, and at work."""

import base64
import json
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkout import ROOT
from PIL import Image
from rejecting import Oracle
from static_server import served
from tiny_checkpoint import plain_class
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForImageTextToText

import qeff_zoo
from qeff_zoo import pipeline
from qeff_zoo.cli import main
from qeff_zoo.cli.description import describe
from qeff_zoo.errors import GenerationError, MediaError, PlanError
from qeff_zoo.media import fetching
from qeff_zoo.package import Package
from qeff_zoo.plan.request import Request
from qeff_zoo.qefficient.cloud import execute, infer
from qeff_zoo.qefficient.generation.cloud_infer import QAICInferenceSession
from qeff_zoo.qefficient.generation.positions import with_positions
from qeff_zoo.qefficient.program_paths import ProgramPaths
from qeff_zoo.registry import find_recipe
from qeff_zoo.runtime.decoding.multimodal_spans import Encoded, MultimodalSpans, arrange
from qeff_zoo.runtime.engine.speculation import Speculation
from qeff_zoo.serving.errors import ApiError
from qeff_zoo.serving.requests.prompts import chat_requests
from qeff_zoo.serving.requests.schemas import ChatRequest
from qeff_zoo.sessions import open_session
from qeff_zoo.store import Store
from qeff_zoo.tasks.multimodal.image_text_session import ImageTextToTextSession
from qeff_zoo.validation import ladder, tiny_models
from qeff_zoo.validation.trial.cases import Call, Span, Stage, uncut

pytestmark = pytest.mark.turns(2)

#: A picture of one size and continuous batching; patches of pictures of any size, 3 axes of RoPE, and drafts.
CASES: dict[str, dict[str, Any]] = {
    "llava": {"full_batch_size": 3},
    "qwen2_5_vl": {"batch_size": 2, "num_speculative_tokens": (3,)},
}
PROCESSORS = {
    "llava": {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": 28},
        "crop_size": {"height": 28, "width": 28},
    },
    "qwen2_5_vl": {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": 4,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "size": {"shortest_edge": 64, "longest_edge": 512},
    },
}


@pytest.fixture(scope="module", params=CASES)
def built(request: Any, tmp_path_factory: Any) -> tuple[Package, Path]:
    name, folder = request.param, tmp_path_factory.mktemp(request.param)
    recipe = find_recipe(name)
    checkpoint = tiny_models.make(recipe, recipe.tiny[0], folder / "checkpoint")
    requested = Request(prefill_seq_len=8, ctx_len=48, **CASES[name])
    done = pipeline.build(str(checkpoint), requested, validate=False, store=Store(folder / "store"))
    return done.package, checkpoint


@pytest.fixture
def session(built: tuple[Package, Path]) -> ImageTextToTextSession:
    found = open_session(built[0], threads=1)
    assert isinstance(found, ImageTextToTextSession)
    return found


@pytest.fixture
def talking(built: tuple[Package, Path], tmp_path: Path) -> Package:
    """The package with a tokenizer, a chat template and a processor, as a checkpoint brings them."""
    folder = tmp_path / "talking"
    shutil.copytree(built[0].path, folder)
    teach(folder, built[0].model_type)
    return Package(folder, built[0].manifest)


def teach(folder: Path, model_type: str) -> None:
    """Write a tokenizer, a chat template and a processor."""
    words = {f"w{number}": number for number in range(257)}
    words["<image>"] = words.pop("w200")
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    plain_class(folder)
    (folder / "chat_template.jinja").write_text(
        "{% for part in messages[0].content %}{{ '<image> ' if part.type == 'image' else part.text }}{% endfor %}"
    )
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSORS[model_type]))


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    values = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    Image.fromarray(values).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def image_of(session: ImageTextToTextSession, seed: int) -> dict[str, Any]:
    shape = [
        length
        for length in session.reader.program.inputs["pixel_values"].shape
        if length != "patches"
    ]
    grid = {}
    if session.reader.patch_geometry:
        grid, shape = {"image_grid_thw": np.array([[1, 4, 6]])}, [24, *shape]
    return {"pixel_values": np.random.default_rng(seed).standard_normal(shape, np.float32), **grid}


def asked(session: ImageTextToTextSession, *photos: dict[str, Any]) -> Any:
    tokens = [3, *[session.media_tokens.placeholder, 4] * len(photos), *range(10, 22)]
    return session.request(tokens, images=photos, generation_len=6)


def test_a_package_has_two_programs_and_one_file_of_weights(built: tuple[Package, Path]) -> None:
    package, _ = built
    assert [program.role for program in package.programs] == ["language", "vision"]
    assert sum(file["role"] == "weights" for file in package.manifest["files"]) == 1


def test_image_packages_agree_with_hugging_face(built: tuple[Package, Path]) -> None:
    """Prefill, chunks that cut an image, padded batches, images in some rows only, decoding."""
    record = ladder.validate(*built, level="tiny", threads=1)
    assert record.passed, record.failures
    assert record.reported["greedy"]["matched"] == record.reported["greedy"]["generated"]


@pytest.mark.parametrize("built", ["llava"], indirect=True)
def test_rows_of_features_that_are_swapped_are_noticed(
    built: tuple[Package, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = ImageTextToTextSession.spans

    def swapped(self: Any, tokens: Any, images: Any) -> Any:
        recorded = right(self, tokens, images)
        if recorded is None:
            return None
        turned = {name: rows[::-1] for name, rows in recorded.features.items()}
        return replace(recorded, features=turned)

    monkeypatch.setattr(ImageTextToTextSession, "spans", swapped)
    assert not ladder.validate(*built, level="tiny", threads=1).passed


@pytest.mark.parametrize("built", ["qwen2_5_vl"], indirect=True)
def test_one_specialization_reads_images_of_every_shape(session: ImageTextToTextSession) -> None:
    """QEfficient has one for each height, width and number of frames."""
    assert len(session.reader.program.specializations) == 1
    random, found = np.random.default_rng(0), set[tuple[int, ...]]()
    for height, width in ((2, 2), (4, 6), (6, 4), (2, 12)):
        shape = [
            length
            for length in session.reader.program.inputs["pixel_values"].shape
            if length != "patches"
        ]
        pixels = random.standard_normal([height * width, *shape], np.float32)
        recorded = {"pixel_values": pixels, "image_grid_thw": np.array([[1, height, width]])}
        (answer,) = session.generate([asked(session, recorded)])
        found.add(tuple(answer.token_ids))
        assert session.reader.look(recorded).rows == height * width // 4
    assert len(found) > 1


def test_requests_do_not_share_images(session: ImageTextToTextSession) -> None:
    """Placeholders of all images are the same tokens; what is kept of one prompt must know its pixels."""
    one, other = image_of(session, 1), image_of(session, 2)
    alone = session.generate([asked(session, one)])[0].token_ids
    assert (
        session.generate([asked(session, one)])[0].reused_tokens > 0
    )  # else this test proves nothing
    fresh = session.generate([asked(session, other)])[0]
    assert fresh.reused_tokens == 0
    assert fresh.token_ids != alone
    together = session.generate([asked(session, one), asked(session, other)])
    assert [answer.token_ids for answer in together] == [alone, fresh.token_ids]


def test_an_image_is_encoded_once(session: ImageTextToTextSession) -> None:
    before = session.reader.read
    for _ in range(3):
        session.reader.look(image_of(session, 5))
    assert session.reader.read == before + 1
    session.reader.look(image_of(session, 6))
    assert session.reader.read == before + 2


@pytest.mark.parametrize("built", ["qwen2_5_vl"], indirect=True)
def test_drafts_change_no_output_for_an_image(
    built: tuple[Package, Path], session: ImageTextToTextSession
) -> None:
    requests = [
        replace(
            asked(session, *(image_of(session, seed) for seed in seeds)),
            limit=12,
            eos_token_ids=frozenset(),
        )
        for seeds in ((1,), (2, 3))
    ]
    plain = [output.token_ids for output in session.generate(requests)]
    right = dict(zip([request.prompt for request in requests], plain, strict=True))
    oracle = Oracle(right, frozenset(range(0, 12, 5)))
    session.speculation = Speculation(most=3, drafter=lambda _: oracle)
    outputs = session.generate(requests)
    assert [output.token_ids for output in outputs] == plain
    assert all(output.drafted_tokens > output.accepted_tokens > 0 for output in outputs)
    assert open_session(built[0], threads=1, draft="lookup").speculation


def test_text_alone_is_answered_too(session: ImageTextToTextSession) -> None:
    answers = session.generate([[3, 4, 5], [6]], generation_len=4)
    assert [len(answer.token_ids) for answer in answers] == [4, 4]


def test_qefficients_class_takes_what_a_processor_returns(
    built: tuple[Package, Path], session: ImageTextToTextSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts with two images and with one, padded: each gets its own."""
    one, other, third = (image_of(session, seed) for seed in (1, 2, 3))
    requests = [asked(session, one, other), asked(session, third)]
    expected = [answer.token_ids for answer in session.generate(requests)]
    longest = max(len(request.prompt) for request in requests)
    padding = [longest - len(request.prompt) for request in requests]
    stacked = {
        name: np.concatenate(
            [
                np.atleast_2d(each[name])
                if name == "image_grid_thw"
                else (
                    each[name]
                    if session.reader.patch_geometry
                    else each[name].reshape(1, *each[name].shape[-3:])
                )
                for each in (one, other, third)
            ]
        )
        for name in one
    }
    inputs = {
        "input_ids": np.array(
            [
                [0] * left + [*request.prompt]
                for left, request in zip(padding, requests, strict=True)
            ]
        ),
        "attention_mask": np.array([[0] * left + [1] * (longest - left) for left in padding]),
        **stacked,
    }
    model = qeff_zoo.QEFFAutoModelForImageTextToText.from_pretrained(built[1], kv_offload=True)
    model.package = built[0]
    info = model.generate(inputs=inputs, generation_len=6)
    assert [found[:6] for found in info.generated_ids] == expected
    with pytest.raises(GenerationError, match="expected as many of both"):
        model.generate(inputs={"input_ids": inputs["input_ids"]}, generation_len=6)
    for ids in ([[3, 4]], inputs["input_ids"][:1]):  # no place for any, and for two of three
        with pytest.raises(GenerationError, match="more images than its prompts have places"):
            model.generate(inputs={**stacked, "input_ids": ids}, generation_len=6)
    with pytest.raises(GenerationError, match="inputs alone, or prompts"):
        model.generate(inputs=inputs, prompts=["What?"])


def test_qefficients_session_calls_both_programs(built: tuple[Package, Path]) -> None:
    """In chunks, with the positions that transformers computes; the logits are those of its model."""
    package, checkpoint = built
    paths = ProgramPaths.of(str(package.path), package)
    vision, language = (
        QAICInferenceSession(paths[f"{one}_qpc_path"]) for one in ("vision", "lang")
    )
    model = AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.float32).eval()
    is_patches = "image_grid_thw" in vision.input_names
    shape = (48, 96) if is_patches else (2, 3, 28, 28)
    inputs: dict[str, Any] = {"pixel_values": torch.randn(shape, generator=torch.manual_seed(0))}
    tokens = 6 if is_patches else 16
    if is_patches:
        inputs["image_grid_thw"] = torch.tensor([[1, 4, 6], [1, 6, 4]])
    image = [200] * tokens
    ids = torch.tensor([[3, 202, *image, 4, 202, *image, 5, 6]])
    inputs |= {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    inputs |= {"mm_token_type_ids": (ids == 200).int()} if is_patches else {}
    with torch.no_grad():
        expected = model(**inputs).logits[0, -1].numpy()
    features = vision.run({name: inputs[name] for name in vision.input_names})
    assert [*features] == vision.output_names
    language.set_buffers(features)
    usual = np.arange(ids.shape[1])[None]
    positions = np.asarray(with_positions(inputs, model.config).get("position_ids", usual))
    call: dict[str, Any] = {}
    for at in range(0, ids.shape[1], 8):
        part = slice(at, at + 8)
        call |= {"input_ids": ids[:, part], "position_ids": positions[..., part]}
        found = language.run(call)
        call["image_idx"] = found["image_idx_output"]
    np.testing.assert_allclose(found["logits"][0, 0], expected, atol=1e-3)
    assert call["image_idx"] == 2 * tokens
    with pytest.raises(GenerationError, match="no 'vision_embeds'"):
        QAICInferenceSession(paths).run(
            {"input_ids": ids[:, :8], "position_ids": positions[..., :8]}
        )
    if not is_patches:
        return
    with pytest.raises(GenerationError, match="position_ids has 2 axes"):
        language.run({"input_ids": ids[:, :8], "position_ids": usual[:, :8]})
    with pytest.raises(GenerationError, match="48 patches of pixel_values and no 'image_grid_thw'"):
        vision.run({"pixel_values": inputs["pixel_values"]})


@pytest.mark.parametrize("decode_only", [None, True])
@pytest.mark.parametrize("target", ["openvino", "qnn-htp", "qnn-aic"])
def test_targets_of_one_program_refuse(
    built: tuple[Package, Path], target: str, decode_only: bool | None
) -> None:
    """Those that answers come from alone, too: no package for the target could read images for them."""
    with pytest.raises(PlanError, match=f"--target {target} does not run 'vision' of them"):
        pipeline.make_plan(str(built[1]), Request(target=target, decode_only=decode_only))


@pytest.mark.parametrize("built", ["qwen2_5_vl"], indirect=True)
def test_programs_of_fixed_sizes_get_the_sizes_of_images(built: tuple[Package, Path]) -> None:
    """As many patches as an image has, rounded up to squares that are merged; and windows for any shape of it."""

    def plan(target: str = "qaic", **asked: Any) -> Any:
        return pipeline.make_plan(str(built[1]), Request(target=target, **asked))[1]

    *_, usual = plan().programs
    assert [specialization["symbols"]["patches"] for specialization in usual.specializations] == [
        "1024"
    ]
    small, large = plan(image_size=("20x33", "8x16")).programs[-1].specializations
    # Windows are of 2 x 2 rows of features: a picture of 15 rows may be one line of them.
    assert (
        small["symbols"] | {"patches": "8", "image_rows": "2", "windows": "3"} == small["symbols"]
    )
    assert large["symbols"] | {"patches": "60", "windows": "10"} == large["symbols"]
    for sizes in (("20x",), ("0x40",), ("8x8",)):
        with pytest.raises(PlanError, match=r"expected HEIGHTxWIDTH in pixels"):
            plan(image_size=sizes)
    with pytest.raises(PlanError, match=r"--image-size is for models that read images of any"):
        plan("ort", image_size=("20x33",))


def test_run_generates_for_an_image(
    talking: Package, photo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [
        "--prompt",
        "<image> w3 w4",
        "--image",
        str(photo),
        "--generation-len",
        "4",
        "--json",
    ]
    assert main(["run", str(talking.path), *settings]) == 0
    shown = json.loads(capsys.readouterr().out)["outputs"][0]
    session: Any = open_session(talking, threads=1)
    (answer,) = session.generate("<image> w3 w4", images=[photo], generation_len=4)
    assert shown["token_ids"] == answer.token_ids
    with served(photo.parent) as (url, _):
        settings[3] = f"{url}/photo.png"
        assert main(["run", str(talking.path), *settings]) == 0
    assert json.loads(capsys.readouterr().out)["outputs"][0] == shown
    (by_chat,) = session.generate("w3 w4", images=[photo], chat=True, generation_len=4)
    assert by_chat.token_ids == answer.token_ids


@pytest.mark.parametrize("built", ["llava"], indirect=True)
def test_qefficients_commands_generate_for_an_image(
    built: tuple[Package, Path],
    photo: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of a file or a URL, for every prompt, from the checkpoint and then from the package."""
    checkpoint = shutil.copytree(built[1], tmp_path / "checkpoint")
    teach(checkpoint, "llava")
    monkeypatch.setenv("QEFF_HOME", str(tmp_path / "store"))
    monkeypatch.setattr(pipeline, "build", partial(pipeline.build, validate=False))
    requests = ["--prompt", "w3 w4|w5", "--generation_len", "4", "--json"]
    model = [
        "--model_name",
        str(checkpoint),
        "--num_cores",
        "16",
        "--prompt_len",
        "8",
        "--ctx_len",
        "48",
    ]
    assert infer.main([*model, *requests, "--image-path", str(photo)]) == 0
    answer = json.loads(capsys.readouterr().out)
    session: Any = open_session(Package.open(answer["package"]), threads=1)
    expected = session.generate(["w3 w4", "w5"], images=[[photo]] * 2, chat=True, generation_len=4)
    assert answer["generated_ids"] == [one.token_ids for one in expected]

    with served(tmp_path) as (url, _):
        requested = ["--qpc_path", answer["package"], *requests, "--image_url", f"{url}/photo.png"]
        assert execute.main(requested) == 0
    assert json.loads(capsys.readouterr().out)["generated_ids"] == answer["generated_ids"]
    assert execute.main([*requested[:4], "--image-path", str(photo)]) == 0
    assert capsys.readouterr().out.count("Prompt: w5\nCompletion: ") == 1


@pytest.mark.parametrize("built", ["llava"], indirect=True)
def test_the_guides_snippet_runs_with_one_changed_line(
    built: tuple[Package, Path], photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With transformers' own processor: its inputs get the answer that the prompt and the image get."""
    guide = (ROOT / "docs" / "from-qefficient.md").read_text(encoding="utf-8")
    section = guide.partition("### Images and text")[2].partition("###")[0]
    blocks = re.findall(r"```(?:diff|python)\n(.*?)```", section, re.DOTALL)
    lines = [line for line in blocks[0].splitlines() if line[0] != "-"]
    code = "\n".join(line[1:] for line in lines) + "\nfirst = info\n" + blocks[1]
    (name,) = set(re.findall(r'from_pretrained\("([^"]+)"', code))
    (tmp_path / name).parent.mkdir()
    folder = shutil.copytree(built[1], tmp_path / name)
    teach(folder, "llava")
    config = json.loads((folder / "config.json").read_bytes())
    config["text_config"]["max_position_embeddings"] = 1024
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast"}
    tokenizer["extra_special_tokens"] = {"image_token": "<image>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    rows = {"patch_size": 7, "num_additional_image_tokens": 1}
    processor = {"processor_class": "LlavaProcessor", "image_token": "<image>", **rows}
    processor["vision_feature_select_strategy"] = "default"
    (folder / "processor_config.json").write_text(json.dumps(processor))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QEFF_HOME", str(tmp_path / "store"))
    monkeypatch.setattr(pipeline, "build", partial(pipeline.build, validate=False))
    names: dict[str, Any] = {}
    with pytest.warns(UserWarning, match="There is no Cloud AI SDK here"):
        exec(code, names)
    assert names["first"].generated_ids == names["info"].generated_ids
    assert len(names["info"].generated_ids[0]) == 8


def test_inspect_prints_a_command_with_an_image(talking: Package) -> None:
    assert "--image photo.png --chat --prompt 'What is this?'" in describe(talking)


def test_images_and_placeholders_are_counted(talking: Package, photo: Path) -> None:
    session: Any = open_session(talking, threads=1)
    for prompt, images in (("w3", [photo]), ("<image> w3", []), ("<image> w3", [photo, photo])):
        with pytest.raises(GenerationError, match=r"places for images.*'<image>'.*--chat"):
            session.generate(prompt, images=images)
    with pytest.raises(GenerationError, match="a list of images"):
        session.generate(["<image>", "w1"], images=[[photo]])


@pytest.mark.parametrize("size", [(1, 1), (300, 2)])
def test_images_of_any_shape_are_encoded_or_refused(
    talking: Package, tmp_path: Path, size: tuple[int, int]
) -> None:
    Image.new("RGB", size, "red").save(tmp_path / "odd.png")
    session: Any = open_session(talking, threads=1)
    try:
        (answer,) = session.generate("<image> w3", images=[tmp_path / "odd.png"], generation_len=2)
    except GenerationError as error:
        assert "Expected" in str(error) or "expected" in str(error)  # noqa: PT017
    else:
        assert len(answer.token_ids) == 2


@pytest.mark.parametrize("built", ["llava"], indirect=True)
def test_invalid_arrays_are_refused_before_a_call(
    session: ImageTextToTextSession,
) -> None:
    """No blame falls on the package, which is whole; and what torch holds is an array, too."""
    good = image_of(session, 1)
    pixels = good["pixel_values"].reshape(1, *good["pixel_values"].shape[-3:])
    unknown = pixels.copy()
    unknown[0, 0, 0, 0] = np.nan
    for wrong, message in (
        ({"pixel_values": pixels[..., :20]}, r"pixel_values is \(1, 3, 28, 20\); expected"),
        ({"pixel_values": unknown}, "pixel_values has values that are no numbers"),
        ({"pixels": pixels}, "expected 'pixel_values' among them"),
        ({"pixel_values": "a.png"}, "pixel_values is of type"),
    ):
        with pytest.raises(MediaError, match=message):
            session.reader.look(wrong)  # type: ignore[arg-type]
    held: Any = {"pixel_values": torch.from_numpy(pixels)}
    assert session.reader.look(held).digest == session.reader.look({"pixel_values": pixels}).digest


@pytest.mark.parametrize("built", ["llava"], indirect=True)
def test_one_image_needs_no_list(talking: Package, photo: Path) -> None:
    session: Any = open_session(talking, threads=1)
    settings = {"generation_len": 2}
    (wanted,) = session.generate("<image> w3", images=[photo], **settings)
    for one in (photo, str(photo), photo.read_bytes(), Image.open(photo)):
        (answer,) = session.generate("<image> w3", images=one, **settings)
        assert answer.token_ids == wanted.token_ids
    several = session.generate(["<image> w3", "<image> w3"], images=[photo, [photo]], **settings)
    assert [answer.token_ids for answer in several] == [wanted.token_ids] * 2
    with pytest.raises(GenerationError, match="a list of images for each"):
        session.generate(["<image>", "<image>"], images=photo)


def test_a_truncated_image_is_refused(talking: Package, photo: Path) -> None:
    photo.write_bytes(photo.read_bytes()[:200])
    session: Any = open_session(talking, threads=1)
    with pytest.raises(MediaError, match="Cannot read"):
        session.request("<image> w3", images=[photo])


def chat(url: str) -> ChatRequest:
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "w3 w4"}]
    return ChatRequest(model="m", messages=[{"role": "user", "content": parts}], max_tokens=4)  # type: ignore[list-item]


def test_a_server_takes_images_as_data_alone(talking: Package, photo: Path) -> None:
    session: Any = open_session(talking, threads=1)
    data = "data:image/png;base64," + base64.b64encode(photo.read_bytes()).decode()
    (request,) = chat_requests(session, chat(data))
    expected = session.request("<image> w3 w4", images=[photo])
    assert request.prompt == expected.prompt
    assert request.spans is not None
    assert request.spans.parts[0].digest == expected.spans.parts[0].digest
    for url in ("http://169.254.169.254/latest", "file:///etc/passwd", "data:image/png,x"):
        with pytest.raises(ApiError, match="does not fetch it"):
            chat_requests(session, chat(url))
    with pytest.raises(ApiError, match="Expected base64"):
        chat_requests(session, chat("data:image/png;base64,!!"))
    with pytest.raises(ApiError, match="Cannot read"):
        chat_requests(session, chat("data:image/png;base64,AAAA"))


def test_a_server_fetches_images_from_allowed_hosts(
    talking: Package, photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session: Any = open_session(talking, threads=1)
    with served(photo.parent) as (url, recorded):
        host = url.removeprefix("http://")
        with pytest.raises(ApiError, match="is at a private address"):
            chat_requests(session, chat(f"{url}/photo.png"), hosts=[host])
        monkeypatch.setattr(fetching, "_is_public", lambda _: True)
        (request,) = chat_requests(session, chat(f"{url}/photo.png"), hosts=[host])
        with pytest.raises(ApiError, match="is not one that may be asked") as caught:
            chat_requests(session, chat(f"{url}/photo.png"), hosts=["pictures.example"])
        many = chat(f"{url}/photo.png")
        many.messages *= 17
        with pytest.raises(ApiError, match="expected at most 16"):
            chat_requests(session, many, hosts=[host])
    assert caught.value.code == "invalid_image_url"
    assert len(recorded) == 1
    expected = session.request("<image> w3 w4", images=[photo])
    assert request.spans is not None
    assert request.spans.parts[0].digest == expected.spans.parts[0].digest


# --- what needs no package ---------------------------------------------------------------------------------------


def observed(
    tokens: list[int], *rows: int, whole: str = "", prompt: int | None = None
) -> MultimodalSpans:
    images = [
        Encoded(digest=bytes([number]), features={"image_embeds": np.zeros((count, 2))})
        for number, count in enumerate(rows)
    ]
    found = arrange(tokens, [9], images, whole=whole, prompt=prompt)
    assert found is not None
    return found


def test_a_call_does_not_split_an_image_that_must_be_whole() -> None:
    tokens = [1, 9, 9, 9, 2, 9, 9, 3]
    assert [observed(tokens, 3, 2).end(0, stop) for stop in range(9)] == list(range(9))
    spans = observed(tokens, 3, 2, whole="image")
    assert [spans.end(0, stop) for stop in range(9)] == [0, 1, 1, 1, 4, 5, 5, 7, 8]
    assert spans.end(1, 3) == 4  # the picture itself, however long


def test_a_bidirectional_prompt_is_one_call_and_no_shared_prefix() -> None:
    """States of its first tokens hold what its last ones say: only the same prompt has the same."""
    tokens = [1, 9, 9, 9, 2, 9, 9, 3]
    spans = observed(tokens, 3, 2, whole="prompt", prompt=8)
    assert [spans.end(0, stop) for stop in range(10)] == [0, *[8] * 8, 9]
    assert spans.together.tolist() == list(range(8))
    assert observed(tokens, 3, 2, whole="prompt").together.tolist() == list(range(7))
    other = observed([*tokens[:-1], 4], 3, 2, whole="prompt", prompt=8)
    assert spans.name(0, 1) == spans.name(4, 8) != other.name(0, 1)
    assert spans.name(8, 9) == b""


def test_validation_does_not_cut_what_must_be_whole() -> None:
    calls = [
        Call(kind="prefill", spans=(Span(row=0, sequence=0, start=a, stop=a + 2),)) for a in (0, 2)
    ]
    decodes = [Call(kind="decode", spans=(Span(row=0, sequence=0, start=4, stop=5),))]
    (stage,) = uncut([Stage(name="any", calls=(*calls, *decodes))], [[(1, 4)]])
    found = [(call.kind, span.start, span.stop) for call in stage.calls for span in call.spans]
    assert found == [("prefill", 0, 4), ("decode", 4, 5)]


def test_rotary_positions_continue_from_the_larger_side_of_an_image() -> None:
    image = Encoded(digest=b"", features={"image_embeds": np.zeros((6, 2))}, grid=(1, 2, 3))
    spans = arrange([1, *[9] * 6, 2], [9], [image], axes=3)
    assert spans is not None
    assert spans.positions(0, 9).T.tolist() == [
        [0, 0, 0],
        *([1, 1 + row, 1 + column] for row in range(2) for column in range(3)),
        [4, 4, 4],
        [5, 5, 5],
    ]


def test_images_are_distinguished_by_position_and_pixels() -> None:
    spans = observed([1, 9, 9, 9, 2, 9, 9, 3], 3, 2)
    assert [spans.name(start, start + 4) for start in (0, 4)] == [b"\0", b"\1"]
    assert spans.name(0, 1) == b""
    index, rows = spans.between(2, 6)
    assert index.tolist() == [0, 1, 3]
    assert rows["image_embeds"].shape == (3, 2)
