# SPDX-License-Identifier: Apache-2.0
"""One file adds an architecture: a recipe in a folder of the user's passes what CONTRIBUTING.md asks for."""

import importlib
import shutil
import sys
from pathlib import Path

import parity
import pytest
import test_recipes
from derived_facts import field_that_shows
from parity import Case, Subject

from qeff_zoo import cli
from qeff_zoo.errors import UnsupportedModelError
from qeff_zoo.registry import RECIPES_ENV, find_recipe

NEW = "starcoder2"


@pytest.fixture
def _contributed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ship all recipes but one, and put the file of that one into a folder of the user's."""
    package = importlib.import_module("qeff_zoo.recipes")
    source = Path(package.__path__[0])
    ignored = shutil.ignore_patterns(f"{NEW}.py", "__pycache__")
    shutil.copytree(source, tmp_path / "shipped", ignore=ignored)
    monkeypatch.setattr(package, "__path__", [str(tmp_path / "shipped")])
    monkeypatch.delitem(sys.modules, f"qeff_zoo.recipes.{NEW}", raising=False)
    (tmp_path / "mine").mkdir()
    monkeypatch.setenv(RECIPES_ENV, str(tmp_path / "mine"))
    with pytest.raises(UnsupportedModelError, match=NEW):
        find_recipe(NEW)
    shutil.copy(source / f"{NEW}.py", tmp_path / "mine")


@pytest.mark.usefixtures("_contributed")
def test_recipe_file_alone_adds_an_architecture(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = find_recipe(NEW)
    test_recipes.test_recipe_is_well_formed(NEW)
    test_recipes.test_shapes_fit_the_task(NEW)
    test_recipes.test_counts_read_fields_of_the_config_class(NEW)
    test_recipes.test_some_tiny_has_a_window_if_the_model_can(NEW)
    assert field_that_shows(recipe)  # so that tests/helpers/facts.py needs no row
    for tiny in recipe.tiny:
        subject = Subject(Case(recipe=recipe, tiny=tiny).aligned, recipe)
        parity.assert_close(subject, "torch", "padded_batch", parity.PLAIN)
    assert cli.main(["show", NEW]) == 0
    assert recipe.special in capsys.readouterr().out


@pytest.mark.full
@pytest.mark.usefixtures("_contributed")
def test_recipe_file_alone_is_validated(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["validate", NEW]) == 0
    assert f"{NEW}: agrees with Hugging Face" in capsys.readouterr().out
