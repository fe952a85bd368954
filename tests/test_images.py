# SPDX-License-Identifier: Apache-2.0
"""Pictures and text in, text out: two programs of one package, compared with Hugging Face, and at work."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qeff_zoo import pipeline
from qeff_zoo.choices import Request
from qeff_zoo.errors import PlanError
from qeff_zoo.package import Package
from qeff_zoo.registry import find_recipe
from qeff_zoo.runtime import open_session
from qeff_zoo.runtime.image_text_to_text import ImageTextToTextSession
from qeff_zoo.store import Store
from qeff_zoo.validation import ladder, tiny_models

#: A picture of one size and continuous batching; patches of pictures of any size and 3 axes of RoPE.
CASES = {"llava": {"full_batch_size": 3}, "qwen2_5_vl": {"batch_size": 2}}


@pytest.fixture(scope="module", params=CASES)
def built(request: Any, tmp_path_factory: Any) -> tuple[Package, Path]:
    name, folder = request.param, tmp_path_factory.mktemp(request.param)
    recipe = find_recipe(name)
    checkpoint = tiny_models.make(recipe, recipe.tiny[0], folder / "checkpoint")
    asked = Request(prefill_seq_len=8, ctx_len=48, **CASES[name])
    done = pipeline.build(str(checkpoint), asked, validate=False, store=Store(folder / "store"))
    return done.package, checkpoint


@pytest.fixture
def session(built: tuple[Package, Path]) -> ImageTextToTextSession:
    found = open_session(built[0], threads=1)
    assert isinstance(found, ImageTextToTextSession)
    return found


def picture(session: ImageTextToTextSession, seed: int) -> dict[str, Any]:
    shape = [one for one in session.vision.program.inputs["pixel_values"].shape if one != "patches"]
    grid = {}
    if session.vision.tower:
        grid, shape = {"image_grid_thw": np.array([[1, 4, 6]])}, [24, *shape]
    return {"pixel_values": np.random.default_rng(seed).standard_normal(shape, np.float32), **grid}


def asked(session: ImageTextToTextSession, *pictures: dict[str, Any]) -> Any:
    tokens = [3, *[session.placeholder, 4] * len(pictures), *range(10, 22)]
    return session.request(tokens, images=pictures, generation_len=6)


def test_a_package_has_two_programs_and_one_file_of_weights(built: tuple[Package, Path]) -> None:
    package, _ = built
    assert [program.role for program in package.programs] == ["language", "vision"]
    assert sum(file["role"] == "weights" for file in package.manifest["files"]) == 1


def test_it_agrees_with_hugging_face(built: tuple[Package, Path]) -> None:
    """Prefill, chunks that cut a picture, padded batches, pictures in some rows only, decoding."""
    record = ladder.validate(*built, level="tiny", threads=1)
    assert record.passed, record.failures
    assert record.reported["greedy"]["matched"] == record.reported["greedy"]["generated"]


def test_rows_of_features_that_are_swapped_are_noticed(
    built: tuple[Package, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = ImageTextToTextSession.sights

    def swapped(self: Any, tokens: Any, pictures: Any) -> Any:
        seen = right(self, tokens, pictures)
        if seen is None:
            return None
        turned = {name: rows[::-1] for name, rows in seen.features.items()}
        return replace(seen, features=turned)

    monkeypatch.setattr(ImageTextToTextSession, "sights", swapped)
    assert not ladder.validate(*built, level="tiny", threads=1).passed


def test_nobodys_picture_is_used_for_somebody_else(session: ImageTextToTextSession) -> None:
    """Placeholders of all pictures are the same tokens; what is kept of one prompt must know its pixels."""
    one, other = picture(session, 1), picture(session, 2)
    alone = session.generate([asked(session, one)])[0].token_ids
    assert (
        session.generate([asked(session, one)])[0].reused_tokens > 0
    )  # else this test proves nothing
    fresh = session.generate([asked(session, other)])[0]
    assert fresh.reused_tokens == 0
    assert fresh.token_ids != alone
    together = session.generate([asked(session, one), asked(session, other)])
    assert [answer.token_ids for answer in together] == [alone, fresh.token_ids]


def test_a_picture_is_read_once(session: ImageTextToTextSession) -> None:
    before = session.vision.read
    for _ in range(3):
        session.vision.look(picture(session, 5))
    assert session.vision.read == before + 1
    session.vision.look(picture(session, 6))
    assert session.vision.read == before + 2


def test_text_alone_is_answered_too(session: ImageTextToTextSession) -> None:
    answers = session.generate([[3, 4, 5], [6]], generation_len=4)
    assert [len(answer.token_ids) for answer in answers] == [4, 4]


@pytest.mark.parametrize("target", ["openvino", "qaic", "qnn-htp"])
def test_targets_of_one_program_refuse(built: tuple[Package, Path], target: str) -> None:
    with pytest.raises(PlanError, match="has programs 'language' and 'vision'"):
        pipeline.build(str(built[1]), Request(target=target), validate=False)
