# SPDX-License-Identifier: Apache-2.0
"""Prompts with images are embedded as by transformers' processor and base model; the files choose the task."""

import argparse
import asyncio
import base64
import io
import json
import pickle
import shutil
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import parity
import pytest
import torch
from checkout import ROOT
from fixtures_image_text_embedding import RECIPE, session, subject
from fixtures_serving import MODEL, TIMEOUT, post, running
from fixtures_serving_fleet import models
from PIL import Image

import qeff_zoo
from qeff_zoo.checkpoint import processors
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.contract import IMAGE_TEXT_EMBEDDING, find, selection
from qeff_zoo.errors import GenerationError
from qeff_zoo.media.steps import finished
from qeff_zoo.plan.request import Request
from qeff_zoo.registry import find_recipe
from qeff_zoo.serving.errors import ApiError
from qeff_zoo.serving.requests import prompts
from qeff_zoo.serving.requests.price import BOUNDS
from qeff_zoo.serving.requests.schemas import ChatRequest
from qeff_zoo.tasks.multimodal.embedding_endpoints import PromptQueue
from qeff_zoo.tasks.multimodal.verbs import EmbedWithMedia

__all__ = ["session", "subject"]

TASK = find(IMAGE_TEXT_EMBEDDING)
GUIDE = (ROOT / "docs" / "embeddings.md").read_text(encoding="utf-8")


def photo(seed: int) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (70, 90, 3), np.uint8)
    return Image.fromarray(pixels)


def expected(subject: parity.Subject, text: str, images: list[Any], instruction: str) -> Any:
    """Return the normalized last state of transformers' model for what its processor returns."""
    reference = processors.load(subject.folder / "checkpoint")
    content = [{"type": "image", "image": image} for image in images]
    content += [{"type": "text", "text": text}] if text else []
    system = {"role": "system", "content": [{"type": "text", "text": instruction}]}
    given = reference.apply_chat_template(
        [system, {"role": "user", "content": content}],
        tokenize=True, return_dict=True, add_generation_prompt=True, return_tensors="pt",
    )  # fmt: skip
    with torch.no_grad():
        state = subject.hf(**given).last_hidden_state[0, -1]
    return (state / state.norm()).numpy()


def test_the_guides_embeddings_are_those_of_transformers(
    subject: parity.Subject, session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a text, an image and both, each in several calls in the same states."""
    monkeypatch.chdir(tmp_path)
    photo(0).save("dog.jpg", format="PNG")
    monkeypatch.setattr(qeff_zoo, "load", lambda _: session)
    code = GUIDE.partition("<!-- embeds -->\n```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {"qeff_zoo": qeff_zoo, "package": "folder"}
    exec(code, names)
    found, instruction = names["vectors"], "Represent the user's input."
    assert found.shape == (3, subject.hf.config.text_config.hidden_size)
    for text, files, embedding in zip(names["prompts"], names["images"], found, strict=True):
        right = expected(subject, text, [photo(0)] * len(files), instruction)
        np.testing.assert_allclose(embedding, right, atol=2e-5)
    other = session.embed(names["prompts"][2], images=[photo(1)], instruction=instruction)
    assert np.abs(other - found[2]).max() > 1e-3, "an image does not show"
    plain = session.embed("a b", chat=False)
    assert np.abs(plain - session.embed("a b")).max() > 1e-3, "the template does not show"


def test_images_belong_to_prompts(session: Any) -> None:
    with pytest.raises(GenerationError, match="images for 2 prompts, and 1 prompts; expected a"):
        session.embed([[3, 4]], images=[[], []])
    with pytest.raises(GenerationError, match="Token id 999 is not of this model"):
        session.embed([[999]])


def test_run_and_qefficients_class_return_the_same(
    subject: parity.Subject,
    session: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    photo(0).save(tmp_path / "dog.png")
    right = session.embed("a dog", images=[photo(0)])[0]
    given = argparse.Namespace(
        image=[str(tmp_path / "dog.png")], chat=True, adapter=None, json=True
    )
    EmbedWithMedia(IMAGE_TEXT_EMBEDDING, ["a dog"], given)(session)
    (printed,) = json.loads(capsys.readouterr().out)["outputs"]
    np.testing.assert_allclose(printed["embedding"], right, atol=1e-6)
    with pytest.raises(GenerationError, match="2 prompts, and --image belongs to one"):
        EmbedWithMedia(IMAGE_TEXT_EMBEDDING, ["a", "b"], given)(session)

    folder = str(subject.folder / "checkpoint")
    config = {"export_embedding": True}
    model = qeff_zoo.QEFFAutoModelForImageTextToText.from_pretrained(folder, qaic_config=config)
    assert model._loaded["task"] == IMAGE_TEXT_EMBEDDING
    monkeypatch.setattr(model, "_opened", lambda *_: session)
    content = [{"type": "image", "image": photo(0)}, {"type": "text", "text": "a dog"}]
    inputs = processors.load(subject.folder / "checkpoint").apply_chat_template(
        [{"role": "user", "content": content}],
        tokenize=True, return_dict=True, add_generation_prompt=True, return_tensors="pt",
    )  # fmt: skip
    found = model.generate(inputs=inputs)
    np.testing.assert_allclose(found["embedding_output"], right[None], atol=1e-5)


def test_the_task_is_that_of_the_checkpoints_files() -> None:
    recipe = find_recipe("qwen3_vl")
    names = [*recipe.architectures]
    chosen = selection.choose("a", recipe, names, ["modules.json"], None)
    assert (chosen.task, chosen.by) == (IMAGE_TEXT_EMBEDDING, "checkpoint: modules.json")
    assert selection.choose("a", recipe, names, [], None).task == recipe.task
    assert not selection.choose("a", recipe, names, [], IMAGE_TEXT_EMBEDDING).problems
    other = find_recipe("qwen3_vl_moe")
    assert selection.choose("a", other, other.architectures, [], IMAGE_TEXT_EMBEDDING).problems


def test_a_pooling_of_all_tokens_is_refused(subject: parity.Subject, tmp_path: Path) -> None:
    shutil.copytree(subject.folder / "checkpoint", tmp_path, dirs_exist_ok=True)
    checkpoint = open_checkpoint(str(tmp_path))
    assert TASK.defaults(checkpoint)["normalize"] == (True, "default")
    assert not TASK.problems(checkpoint, RECIPE, Request())
    (found,) = TASK.problems(checkpoint, RECIPE, Request(pooling="mean"))
    assert "--pooling is 'mean', and a decoder embeds a prompt by its last token" in found
    (found,) = TASK.problems(checkpoint, RECIPE, Request(decode_only=True))
    assert found.startswith("--decode-only is for text generation")
    modules = [
        {"type": f"sentence_transformers.models.{name}", "path": path}
        for name, path in (("Transformer", ""), ("Pooling", "1_Pooling"))
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode": "lasttoken"}')
    checkpoint = open_checkpoint(str(tmp_path))
    assert TASK.defaults(checkpoint)["normalize"] == (False, "checkpoint: modules.json")


def url_of(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "png")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def test_a_server_embeds_chats_with_images(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = {"type": "image_url", "image_url": {"url": url_of(photo(0))}}
    text = {"type": "text", "text": "a dog"}
    system = {"role": "system", "content": "Represent it."}

    def request(path: str, **body: Any) -> tuple[int, Any]:
        return post(url.removesuffix("/v1"), path, json.dumps({"model": MODEL, **body}).encode())

    def vectors(**body: Any) -> Any:
        status, found = request("v1/embeddings", **body)
        assert status == 200, found
        return np.array([one["embedding"] for one in found["data"]])

    with closing(PromptQueue(session, max_waiting=8)) as queue, running(queue) as url:
        right = session.embed(
            ["a dog", "a dog"], images=[[photo(0)], []], instruction="Represent it."
        )
        for content, expected in (
            ([shown, text], right[0]),
            ([text], right[1]),
            ("a dog", right[1]),
        ):
            messages = [system, {"role": "user", "content": content}]
            (found,) = vectors(messages=messages)
            np.testing.assert_allclose(found, expected, atol=1e-6)
        ids = session.encode_chat([{"role": "user", "content": "a b"}])
        expected = session.embed(["a b", "b"])
        np.testing.assert_allclose(vectors(input=["a b", "b"]), expected, atol=1e-6)
        np.testing.assert_allclose(vectors(input=ids), expected[:1], atol=1e-6)
        usage = request("invocations", input=ids)[1]["usage"]
        assert usage == {"prompt_tokens": len(ids), "total_tokens": len(ids)}
        begun = [{"role": "user", "content": "a b"}, {"role": "assistant", "content": ""}]
        found = vectors(messages=begun, continue_final_message=True, add_special_tokens=False)
        np.testing.assert_allclose(found, expected[:1], atol=1e-6)
        few = vectors(input="a b", dimensions=4)[0]
        np.testing.assert_allclose(
            few, expected[0, :4] / np.linalg.norm(expected[0, :4]), atol=1e-6
        )
        assert models(url)[0]["capabilities"] == ["embedding", "vision"]
        far = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
        video = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}
        for wrong, code in (
            ({}, "missing_required_parameter"),
            ({"messages": [{"role": "user", "content": [far]}]}, "invalid_image_url"),
            ({"messages": [{"role": "user", "content": [video]}]}, "invalid_value"),
            ({"messages": [{"role": "user", "content": [shown] * 99}]}, "context_length_exceeded"),
            ({"input": [[3] * 999]}, "context_length_exceeded"),
            ({"input": [[999]]}, "invalid_value"),
            ({"input": []}, "invalid_value"),
            ({"input": ["a"] * 2049}, "invalid_value"),
            ({"input": "a", "dimensions": 10_000}, "invalid_value"),
            ({"input": "a", "tools": []}, "unsupported_parameter"),
        ):
            status, refused = request("v1/embeddings", **wrong)
            assert (status, refused["error"]["code"]) == (400, code), (wrong, refused)
        monkeypatch.setattr(session, "chat_template", None)
        np.testing.assert_allclose(
            vectors(input="a b"), session.embed("a b", chat=False), atol=1e-6
        )
        messages = [{"role": "user", "content": "a"}]
        assert request("v1/embeddings", messages=messages)[1]["error"]["code"] == "no_chat_template"


def test_a_worker_prepares_videos_of_large_images(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, frames = io.BytesIO(), [photo(number) for number in range(2)]
    frames[0].save(file, "gif", save_all=True, append_images=frames[1:])
    right = session.prepare_video(file.getvalue())
    messages = [{"role": "user", "content": [{"type": "video_url", "video_url": {
        "url": f"data:video/gif;base64,{base64.b64encode(file.getvalue()).decode()}"}}]}]  # fmt: skip
    chat = ChatRequest.model_validate({"model": MODEL, "messages": messages})
    monkeypatch.setattr(prompts, "QUICK_IMAGE", 0)
    given, steps, arrays = None, prompts.prepare_chat(session, chat, None, BOUNDS, ()), []
    with suppress(StopIteration):
        while True:
            step = steps.send(given)
            if step.apart:
                work = pickle.loads(pickle.dumps(step.work))
                arrays.append(given := work())
            else:
                given = step.work() if callable(step.work) else finished(step.work)
    (found,) = arrays
    assert {*found} <= {*right}
    for name, array in found.items():
        np.testing.assert_array_equal(array, right[name])


def test_clients_of_embeddings_take_turns(session: Any) -> None:
    """A request of one text does not wait for all texts of another."""
    begun, gate = threading.Event(), threading.Event()
    embed, order = session.embed, []

    def slow(prompts: Any) -> Any:
        order.append(len(prompts[0].prompt))
        begun.set()
        assert gate.wait(TIMEOUT)
        return embed(prompts)

    async def run() -> None:
        queue = PromptQueue(session, max_waiting=8)
        clients = [asyncio.create_task(queue.embed([prepared([3, 4]) for _ in range(9)]))]
        await asyncio.to_thread(begun.wait, TIMEOUT)
        clients.append(asyncio.create_task(queue.embed([prepared([3, 4, 5])])))
        await asyncio.sleep(0.1)
        gate.set()
        await asyncio.gather(*clients)
        assert order.index(3) <= 2
        queue.close()
        with pytest.raises(ApiError, match="shutting down"):
            await queue.embed([prepared([3])])

    def prepared(ids: list[int]) -> Any:
        return session.request(ids)
        yield

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "embed", slow)
        asyncio.run(run())
