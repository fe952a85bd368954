# SPDX-License-Identifier: Apache-2.0
"""Prompts with images are embedded as by transformers' base model, and the task is chosen by the checkpoint's files."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import parity
import pytest
import torch
from test_media_recipes import session_of

from qeff_zoo.checkpoint.opening import open_checkpoint
from qeff_zoo.errors import GenerationError
from qeff_zoo.plan.request import Request
from qeff_zoo.registry import find_recipe
from qeff_zoo.tasks import IMAGE_TEXT_EMBEDDING, find, for_task, selection
from qeff_zoo.tasks.multimodal.samples import noise

RECIPE = for_task(find_recipe("qwen3_vl"), IMAGE_TEXT_EMBEDDING)
TASK = find(IMAGE_TEXT_EMBEDDING)


@pytest.fixture(scope="module")
def subject() -> parity.Subject:
    return parity.Subject(parity.Case(recipe=RECIPE, tiny=RECIPE.tiny[0]).config, RECIPE)


@pytest.fixture(scope="module")
def session(subject: parity.Subject) -> Any:
    return session_of(parity.Case(recipe=RECIPE, tiny=RECIPE.tiny[0]), subject)


def expected(subject: parity.Subject, session: Any, tokens: list[int], images: list[Any]) -> Any:
    """Return the normalized last state of transformers' model."""
    ids = torch.tensor([tokens])
    given = {"input_ids": ids, "mm_token_type_ids": (ids == session.placeholder).long()}
    for name in ("pixel_values", "image_grid_thw") if images else ():
        given[name] = torch.from_numpy(np.concatenate([one[name] for one in images]))
    with torch.no_grad():
        state = subject.hf(**given).last_hidden_state[0, -1]
    return (state / state.norm()).numpy()


def test_embeddings_are_those_of_transformers(subject: parity.Subject, session: Any) -> None:
    """Of texts and images, in several calls, after one another in the same states."""
    random = np.random.default_rng(0)
    images = [[noise(session, size, random) for size in ((2, 3), (3, 1))], [], []]
    mark = session.marker
    prompts = [[3, mark, 4, 5, mark, 6, 7], [*range(3, 23)], [9]]
    found = session.embed(prompts, images=images)
    assert found.shape == (3, subject.hf.config.text_config.hidden_size)
    for prompt, shown, embedding in zip(prompts, images, found, strict=True):
        tokens = session.request(prompt, images=shown, generation_len=1).prompt
        right = expected(subject, session, [*tokens], shown)
        np.testing.assert_allclose(embedding, right, atol=2e-5)
    alone = session.embed([prompts[0]], images=[[images[0][0], images[0][0]]])
    assert np.abs(alone - found[:1]).max() > 1e-3, "an image does not show"


def test_images_belong_to_prompts(session: Any) -> None:
    with pytest.raises(GenerationError, match="images for 2 prompts, and 1 prompts; expected a"):
        session.embed([[3, 4]], images=[[], []])
    with pytest.raises(GenerationError, match="Token id 999 is not of this model"):
        session.embed([[999]])


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
