# SPDX-License-Identifier: Apache-2.0
"""model_type -> recipe: by file name, lazily, with the user's folders first; what is broken is loud."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from qeff_zoo import registry
from qeff_zoo.errors import UnsupportedModelError
from qeff_zoo.recipe import Recipe
from qeff_zoo.registry import (
    RECIPES_ENV,
    file_name,
    find_recipe,
    list_model_types,
    list_recipes,
    recipes_setting,
)

SHIPPED = [
    *("bert", "falcon", "gemma2", "gemma3_text", "gpt2", "llama", "mistral", "mixtral"),
    *("qwen2", "qwen3"),
]
DERIVED = """
from dataclasses import fields, replace

from {module} import RECIPE as OTHER

RECIPE = replace(OTHER, model_type="{model_type}", special="{special}")
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Give a function that writes recipes into a folder, and name the folders in the environment."""
    monkeypatch.delenv(RECIPES_ENV, raising=False)
    folders: list[Path] = []

    def write_recipe(name: str, text: str, folder: str = "mine") -> Path:
        path = tmp_path / folder
        path.mkdir(exist_ok=True)
        (path / f"{name}.py").write_text(text)
        if path not in folders:
            folders.append(path)
            monkeypatch.setenv(RECIPES_ENV, os.pathsep.join(map(str, folders)))
        return path / f"{name}.py"

    return write_recipe


def derived(model_type: str, module: str = ".llama", special: str = "Mine.") -> str:
    return DERIVED.format(module=module, model_type=model_type, special=special)


# --- ours ----------------------------------------------------------------------------------------


def test_shipped_recipes_are_there() -> None:
    assert set(SHIPPED) <= set(list_model_types())
    assert list_model_types() == sorted(set(list_model_types()))


def test_recipes_come_in_the_order_of_their_names() -> None:
    recipes = list_recipes()
    assert [file_name(recipe.model_type) for recipe in recipes] == list_model_types()
    assert all(isinstance(recipe, Recipe) for recipe in recipes)


def test_recipes_that_set_a_field_are_found_by_their_text() -> None:
    default = {field.name: field.default for field in fields(Recipe)}
    for name in ("alias", "detected_by"):
        expected = [each for each in list_recipes() if getattr(each, name) != default[name]]
        assert recipes_setting(name) == expected != []


@pytest.mark.parametrize(
    ("model_type", "name"), [("gpt-neox", "gpt_neox"), ("a.b-c", "a_b_c"), ("llama", "llama")]
)
def test_file_name(model_type: str, name: str) -> None:
    assert file_name(model_type) == name


def test_listing_imports_no_recipe_and_recipes_import_no_framework() -> None:
    code = """
import sys
from qeff_zoo import registry
names = registry.list_model_types()
assert not [name for name in sys.modules if name.startswith("qeff_zoo.recipes.")]
registry.find_recipe("mistral")
loaded = {name for name in sys.modules if name.startswith("qeff_zoo.recipes.")}
assert loaded == {"qeff_zoo.recipes.mistral", "qeff_zoo.recipes.llama"}, loaded
registry.list_recipes()
heavy = {"torch", "transformers", "onnx", "onnx_ir", "onnxruntime", "numpy", "huggingface_hub"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    environment = {key: value for key, value in os.environ.items() if key != RECIPES_ENV}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


# --- none ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model_type", "near"),
    [
        ("lama", "'llama'"),
        ("llama3", "'llama'"),
        ("mixtrall", "'mixtral'"),
        ("qwen-3", "'qwen3'"),
        ("gemma-2", "'gemma2'"),
        ("Bert", "'bert'"),
    ],
)
def test_a_near_miss_is_named(model_type: str, near: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        find_recipe(model_type)
    message = str(caught.value)
    assert message.startswith(f"No recipe for model_type {model_type!r}. Did you mean ")
    assert near in message
    assert "`qeff-zoo list`" in message
    assert f"recipes/{file_name(model_type)}.py" in message


def test_nothing_near_is_no_guess() -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        find_recipe("xyzzy")
    assert "Did you mean" not in str(caught.value)
    assert f"the {len(list_model_types())} supported types" in str(caught.value)


@pytest.mark.parametrize("model_type", ["__init__", "_hidden", "", "llama/", "../llama", "a b"])
def test_a_model_type_that_is_no_name_has_no_recipe(model_type: str) -> None:
    with pytest.raises(UnsupportedModelError, match="No recipe for model_type"):
        find_recipe(model_type)


def test_a_model_type_never_leads_out_of_the_folders(write: Write) -> None:
    """It comes from a checkpoint's config.json; a path there would run a file beside the checkpoint."""
    write("mine", derived("mine"))
    with tempfile.TemporaryDirectory(prefix="evil") as folder:
        (Path(folder) / "evil.py").write_text("raise SystemExit('ran')\n")
        with pytest.raises(UnsupportedModelError, match="No recipe for model_type"):
            find_recipe(f"{folder}/evil")


# --- the user's ----------------------------------------------------------------------------------


def test_a_users_recipe_is_listed_and_found(write: Write) -> None:
    write("my_model", derived("my-model"))
    assert "my_model" in list_model_types()
    assert set(SHIPPED) < set(list_model_types())
    recipe = find_recipe("my-model")
    assert (recipe.model_type, recipe.special) == ("my-model", "Mine.")
    assert recipe.transforms == find_recipe("llama").transforms
    assert recipe in list_recipes()


def test_a_users_recipe_comes_before_ours(write: Write) -> None:
    shipped = find_recipe("mistral")
    write("mistral", derived("mistral"))
    assert find_recipe("mistral").special == "Mine."
    assert list_model_types().count("mistral") == 1
    # It is not in anybody's way: what ours derive from stays ours.
    assert find_recipe("mixtral").transforms[0] == shipped.transforms[0]


def test_a_users_recipe_may_derive_from_the_one_it_replaces(write: Write) -> None:
    write("llama", derived("llama", special="Ours, changed."))
    recipe = find_recipe("llama")
    assert recipe.special == "Ours, changed."
    assert recipe.architectures[0] == "LlamaForCausalLM"
    assert find_recipe("mistral").special != "Ours, changed."


def test_users_recipes_may_derive_from_one_another(write: Write) -> None:
    write("base_model", derived("base_model", special="Base."))
    write("my_model", derived("my_model", module=".base_model", special="Derived."))
    assert find_recipe("my_model").special == "Derived."
    assert find_recipe("base_model").special == "Base."


def test_the_first_folder_wins(write: Write) -> None:
    write("twice", derived("twice", special="First."), folder="first")
    write("twice", derived("twice", special="Second."), folder="second")
    assert find_recipe("twice").special == "First."


def test_a_users_recipe_leaves_our_modules_alone(write: Write) -> None:
    find_recipe("mistral")
    before = {key: module for key, module in sys.modules.items() if "qeff_zoo.recipes" in key}
    write("mistral", derived("mistral"))
    find_recipe("mistral")
    after = {key: module for key, module in sys.modules.items() if "qeff_zoo.recipes" in key}
    assert {key: after[key] for key in before} == before
    assert find_recipe("mistral") is find_recipe("mistral")


def test_private_files_and_folders_are_no_recipes(write: Write, tmp_path: Path) -> None:
    write("_parts", "raise RuntimeError")
    write("notes", derived("notes")).with_suffix(".md").write_text("# Notes")
    (tmp_path / "mine" / "__pycache__").mkdir()
    assert set(list_model_types()) == {*SHIPPED, "notes"} | set(list_model_types()) - {"_parts"}
    assert "_parts" not in list_model_types()
    with pytest.raises(UnsupportedModelError):
        find_recipe("_parts")


def test_folders_that_are_missing_or_empty_are_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(RECIPES_ENV, os.pathsep.join(["", str(tmp_path / "missing"), ""]))
    assert find_recipe("llama").model_type == "llama"
    assert "llama" in list_model_types()


def test_home_is_expanded(monkeypatch: pytest.MonkeyPatch, write: Write, tmp_path: Path) -> None:
    write("mine", derived("mine"), folder="recipes")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(RECIPES_ENV, "~/recipes")
    assert find_recipe("mine").special == "Mine."


# --- broken --------------------------------------------------------------------------------------

BROKEN = {
    "syntax": ("RECIPE = (", SyntaxError),
    "import": ("import there_is_no_such_module", ModuleNotFoundError),
    "sibling": ("from .there_is_none import RECIPE", ImportError),
    "name": ("from .llama import THERE_IS_NONE", ImportError),
    "raises": ("raise ZeroDivisionError('on import')", ZeroDivisionError),
    "misspelt field": (
        "from dataclasses import fields, replace\nfrom .llama import RECIPE as L\n"
        "RECIPE = replace(L, model_type='broken', shape={})",
        TypeError,
    ),
    "no recipe": ("recipe = 1", TypeError),
    "no value": ("RECIPE = None", TypeError),
    "another type": ("from .llama import RECIPE", TypeError),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_recipe_is_loud(write: Write, how: str) -> None:
    """Not "unsupported": it is there, and its author wants to know what is wrong with it."""
    text, error = BROKEN[how]
    write("broken", text)
    for _ in range(2):  # the second time as well
        with pytest.raises(error):
            find_recipe("broken")
    with pytest.raises(error):
        list_recipes()
    assert "broken" in list_model_types()
    assert find_recipe("llama").model_type == "llama"


def test_a_file_without_a_recipe_is_refused_with_advice(write: Write) -> None:
    file = write("broken", "from .llama import RECIPE")
    with pytest.raises(TypeError) as caught:
        find_recipe("broken")
    message = str(caught.value)
    assert str(file) in message
    assert "must define RECIPE" in message
    assert "'llama'" in message


def test_module_has_no_list_of_models() -> None:
    """The file name is the registry."""
    text = Path(registry.__file__).read_text(encoding="utf-8")
    assert not any(f'"{name}"' in text for name in SHIPPED)
