# SPDX-License-Identifier: Apache-2.0
"""Images matched with texts: packages of two programs score labels as transformers does."""

import base64
import json
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from fixtures_qaic_runtime import rt
from fixtures_qaic_whole import compiled
from fixtures_serving import MODEL, figures, post, running
from PIL import Image
from tiny_checkpoint import plain_class
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from qeff_zoo import cli, contract, registry
from qeff_zoo.errors import GenerationError, PlanError
from qeff_zoo.media.images import decoded_bytes_of
from qeff_zoo.package import Package
from qeff_zoo.pipeline import build, prepare
from qeff_zoo.plan.request import Request
from qeff_zoo.serving.requests.prompts import QUICK_IMAGE
from qeff_zoo.sessions import ZeroShotSession, open_session
from qeff_zoo.store import Store
from qeff_zoo.store.adoption import adopt
from qeff_zoo.tasks.images.endpoints import ImageQueue
from qeff_zoo.validation import tiny_models
from qeff_zoo.validation.trial import sample_images

pytestmark = pytest.mark.turns(3)

__all__ = ["rt"]
TASK = "zero-shot-image-classification"
END = 98  # ends a text
LABELS = ["w3 w4", "w50", "w7 w8 w9"]


def teach(folder: Path) -> None:
    """Write a tokenizer of words, which ends each text."""
    words = {f"w{number}": number for number in range(99)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A w{END}", special_tokens=[(f"w{END}", END)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    plain_class(folder)


@pytest.fixture(scope="module", params=["clip", "siglip"])
def built(request: Any, tmp_path_factory: Any) -> tuple[Package, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    recipe = contract.for_task(registry.find_recipe(request.param), TASK)
    checkpoint = tiny_models.make(recipe, recipe.tiny[0], folder / "checkpoint")
    teach(checkpoint)
    requested = Request(batch_size=2)  # what its class is made for
    done = build(str(checkpoint), requested, store=Store(folder / "store"))
    return done.package, checkpoint


@pytest.fixture
def session(built: tuple[Package, Path]) -> ZeroShotSession:
    found = open_session(built[0], threads=1)
    assert isinstance(found, ZeroShotSession)
    return found


def images() -> list[Any]:
    sizes = [(61, 93), (40, 40), (120, 37)]
    return [sample_images.draw(number, *size) for number, size in enumerate(sizes)]


def reference_output(checkpoint: Path, texts: list[str]) -> Any:
    """Call transformers' model as its pipeline does: SigLIP's texts are as long as they can be, CLIP's are not."""
    model: Any = transformers.AutoModel.from_pretrained(checkpoint).eval()
    process = transformers.AutoImageProcessor.from_pretrained(checkpoint, backend="pil")
    shown = process([Image.fromarray(image) for image in images()], return_tensors="pt")
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    every = [tokenizer.encode(text).ids for text in texts]
    whole = model.config.model_type == "siglip"
    width = model.config.text_config.max_position_embeddings if whole else max(map(len, every))
    ids = torch.full((len(every), width), model.config.text_config.pad_token_id)
    mask = torch.full_like(ids, int(whole))
    for row, one in enumerate(every):
        ids[row, : len(one)] = torch.tensor(one)
        mask[row, : len(one)] = 1
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=mask, pixel_values=shown["pixel_values"])


def test_both_programs_were_compared_with_hugging_face(built: tuple[Package, Path]) -> None:
    package, _ = built
    assert (package.task, package.validated) == (TASK, "checkpoint")
    assert [program.role for program in package.programs] == ["vision", "encoder"]
    assert sum(file["role"] == "weights" for file in package.manifest["files"]) == 1
    results = package.manifest["validation"]
    assert {result["stage"] for result in results} == {
        "batch_1",
        "batch_2",
        "texts_1",
        "texts_2",
        "text",
        "settings",
        "weights",
    }
    caught = {result["stage"] for result in results if "canary" in result}
    assert caught == {result["stage"] for result in results}


def test_labels_are_scored_as_by_transformers(
    built: tuple[Package, Path], session: ZeroShotSession
) -> None:
    output = reference_output(built[1], LABELS)
    softly = getattr(output, "logits_per_image", None)
    assert softly is not None
    siglip = built[1].parent.name.startswith("siglip")
    expected = (softly.sigmoid() if siglip else softly.softmax(1)).numpy()
    for row, scores in zip(
        expected, session.classify(images(), LABELS, template="{}"), strict=True
    ):
        by_label = {score.label: score.score for score in scores}
        assert np.abs(row - [by_label[label] for label in LABELS]).max() < 2e-5
        assert [score.score for score in scores] == sorted(by_label.values(), reverse=True)
    assert np.abs(expected[0] - expected[1]).max() > 1e-4  # pictures matter
    assert np.abs(session.embed(images()) - output.image_embeds.numpy()).max() < 2e-5
    assert np.abs(session.embed_texts(LABELS) - output.text_embeds.numpy()).max() < 2e-5


@pytest.mark.parametrize("built", ["clip"], indirect=True)
def test_cards_score_labels(
    built: tuple[Package, Path], session: ZeroShotSession, tmp_path: Path
) -> None:
    """In float16, by two QPCs of which neither has states."""
    requested, store = Request(batch_size=2, target="qaic"), Store(tmp_path / "store")
    folder = prepare(
        str(built[1]), tmp_path / "prepared", request=requested, validate=False, store=store
    )
    on_cards = open_session(adopt(folder, compiled(folder, tmp_path), store))
    assert isinstance(on_cards, ZeroShotSession)
    expected = session.classify(images(), LABELS)
    for row, scores in zip(expected, on_cards.classify(images(), LABELS), strict=True):
        assert [one.label for one in scores] == [one.label for one in row]
        for wanted, score in zip(row, scores, strict=True):
            assert score.score == pytest.approx(wanted.score, abs=2e-3)


def test_run_scores_labels_and_embeds(
    built: tuple[Package, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(images()[0]).save(path)
    settings = ["run", str(built[0].path), "--image", str(path)]
    labels = [part for label in LABELS for part in ("--label", label)]
    assert cli.main([*settings, *labels, "--json"]) == 0
    (output,) = json.loads(capsys.readouterr().out)["outputs"]
    assert {score["label"] for score in output["scores"]} == {*LABELS}
    assert cli.main([*settings, *labels]) == 0
    assert capsys.readouterr().out.count("w") >= len(LABELS)
    assert cli.main([*settings, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["outputs"][0]["embedding"]) == session_width(
        built
    )


def session_width(built: tuple[Package, Path]) -> int:
    return int(open_session(built[0], threads=1)._program.outputs["output"].shape[1])  # type: ignore[union-attr]


def test_unscorable_inputs_are_refused_with_a_reason(
    built: tuple[Package, Path], session: ZeroShotSession
) -> None:
    for labels, template in (([], "{}"), (["w1"], "a photo")):
        with pytest.raises(GenerationError, match="at least one label"):
            session.classify(images(), labels, template=template)
    with pytest.raises(GenerationError, match="expected 1 to 16"):
        session.embed_texts([[1] * 17])
    assert (
        len(session.embed_texts([" ".join(["w1"] * 40)])) == 1
    )  # text is cut, as transformers does
    with pytest.raises(PlanError, match="--pooling mean does not apply"):
        build(str(built[1]), Request(task=TASK, pooling="mean"))
    with pytest.raises(PlanError, match="qnn-htp"):
        build(str(built[1]), Request(task=TASK, target="qnn-htp"))


def test_a_server_embeds_images_and_texts(session: ZeroShotSession) -> None:
    """As vLLM takes them: an image in `messages`, texts in `input`."""

    def part(image: Any) -> dict[str, Any]:
        file = BytesIO()
        Image.fromarray(image).save(file, "PNG")
        url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
        return {"type": "image_url", "image_url": {"url": url}}

    shown = [part(images()[0])]
    photograph = np.repeat(np.repeat(images()[0], 20, 0), 30, 1)  # which a worker prepares
    assert decoded_bytes_of(photograph, photograph.shape[:2]) > QUICK_IMAGE
    with closing(ImageQueue(session, max_waiting=8)) as queue, running(queue) as served:

        def request(**body: Any) -> tuple[int, Any]:
            return post(served, "embeddings", json.dumps({"model": MODEL, **body}).encode())

        status, answer = request(messages=[{"role": "user", "content": shown}])
        assert status == 200
        (found,) = answer["data"]
        assert found["embedding"] == pytest.approx(session.embed(images()[:1])[0].tolist())
        status, answer = request(input=LABELS)
        assert [len(one["embedding"]) for one in answer["data"]] == [len(found["embedding"])] * 3
        assert answer["usage"]["prompt_tokens"] == sum(len(one.ids) for one in session.read(LABELS))
        assert request(messages=[{"role": "user", "content": "w3 w4"}])[1]["data"][0][
            "embedding"
        ] == pytest.approx(answer["data"][0]["embedding"])
        both = [*shown, {"type": "text", "text": "w3"}]
        for body in (
            {},
            {"messages": [{"role": "user", "content": both}]},
            {"input": ["w1" * 9, 3]},
            {"input": ["w1"] * 2049},
        ):
            assert request(**body)[0] == 400
        status, answer = request(messages=[{"role": "user", "content": [part(photograph)]}])
        assert status == 200
        assert answer["data"][0]["embedding"] == pytest.approx(
            session.embed(photograph)[0].tolist()
        )
        assert figures(served)["images_total"] == 2
        large = {"url": f"data:image/png;base64,{'A' * (10 << 20)}"}  # as a photograph takes
        _, answer = request(
            messages=[{"role": "user", "content": [{"type": "image_url", "image_url": large}]}]
        )
        assert "it is of an unknown kind" in answer["error"]["message"]


def test_a_server_of_images_alone_refuses_texts(tmp_path: Path) -> None:
    recipe = contract.for_task(registry.find_recipe("dinov2"), "image-feature-extraction")
    checkpoint = tiny_models.make(recipe, recipe.tiny[0], tmp_path / "checkpoint")
    done = build(str(checkpoint), Request(), validate=False, store=Store(tmp_path / "store"))
    session: Any = open_session(done.package, threads=1)
    with closing(ImageQueue(session, max_waiting=8)) as queue, running(queue) as served:
        body = json.dumps({"model": MODEL, "input": "a text"}).encode()
        status, answer = post(served, "embeddings", body)
    assert status == 400
    assert "reads images alone" in answer["error"]["message"]
