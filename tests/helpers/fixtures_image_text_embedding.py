# SPDX-License-Identifier: Apache-2.0
"""What several tests of image text embedding and others use."""

from typing import Any

import parity
import published_processors as published
import pytest
from fixtures_media_recipes import session_of

from qeff_zoo.checkpoint import processors
from qeff_zoo.contract import IMAGE_TEXT_EMBEDDING, for_task
from qeff_zoo.recipe import Tiny
from qeff_zoo.registry import find_recipe

RECIPE = for_task(find_recipe("qwen3_vl"), IMAGE_TEXT_EMBEDDING)


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
