# SPDX-License-Identifier: Apache-2.0
"""Prompts with images are embedded as by transformers' processor and base model; the files choose the task."""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import parity
import published_processors as published
import pytest
import torch
from PIL import Image
from test_media_recipes import session_of

import qeff_zoo
from qeff_zoo.checkpoint import processors
from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.errors import GenerationError
from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import Tiny
from qeff_zoo.registry import find_recipe
from qeff_zoo.tasks import IMAGE_TEXT_EMBEDDING, find, for_task, selection
from qeff_zoo.tasks.multimodal.verbs import EmbedWithMedia

RECIPE = for_task(find_recipe("qwen3_vl"), IMAGE_TEXT_EMBEDDING)
TASK = find(IMAGE_TEXT_EMBEDDING)
GUIDE = (Path(__file__).parent.parent / "docs" / "embeddings.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def subject() -> parity.Subject:
    """Give transformers' base model of the published configuration, made small, with its processor's files."""
    facts = published.read("qwen3_vl")
    found = parity.Subject(published.scaled(facts), RECIPE)
    published.write(facts, found.folder / "checkpoint")
    processors.write(found.folder / "checkpoint", found.folder / "checkpoint")
    return found


@pytest.fixture(scope="module")
def session(subject: parity.Subject) -> Any:
    facts = published.read("qwen3_vl")
    settings = facts["preprocessor_config"]
    tiny = Tiny(config=published.scaled(facts), ctx_len=256, image_processor=settings)
    return session_of(parity.Case(recipe=RECIPE, tiny=tiny), subject)


def photo(seed: int) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (70, 90, 3), np.uint8)
    return Image.fromarray(pixels)


def expected(subject: parity.Subject, text: str, images: list[Any], instruction: str) -> Any:
    """Return the normalized last state of transformers' model for what its processor returns."""
    theirs = processors.load(subject.folder / "checkpoint")
    content = [{"type": "image", "image": one} for one in images]
    content += [{"type": "text", "text": text}] if text else []
    system = {"role": "system", "content": [{"type": "text", "text": instruction}]}
    given = theirs.apply_chat_template(
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
