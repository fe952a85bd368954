# SPDX-License-Identifier: Apache-2.0
"""`scripts/test --changed [REF]` tests the recipes that a change touches, and never too few; samples have all kinds."""

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import selection
from checkout import HELPERS, ROOT

SOURCES = {
    "llama": "RECIPE = 1\n",
    "mistral": "from .llama import RECIPE as LLAMA\n",
    "mixtral": "from dataclasses import replace\n\nfrom .mistral import RECIPE as MISTRAL\n",
    "bert": "from qeff_zoo.recipe import Recipe\n",
}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ([], set()),
        (["recipes/mixtral.py"], {"mixtral"}),
        (["recipes/mistral.py"], {"mistral", "mixtral"}),
        (["recipes/llama.py", "README.md"], {"llama", "mistral", "mixtral"}),
        (["recipes/gone.py"], {"gone"}),
        (["qeff_zoo/unsupported.json", "validated_models/declared.json", "mkdocs.yml"], set()),
        (["recipes/bert.py", "qeff_zoo/export/ops.py"], None),
        (["recipes/__init__.py"], None),
        (["tests/helpers/parity.py"], None),
        (["constraints.txt"], None),
    ],
)
def test_a_change_touches_what_derives_from_it(
    changed: list[str], expected: set[str] | None
) -> None:
    assert selection.affected(changed, SOURCES) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("qwen3", "qwen3"),
        ("qwen3-base", "qwen3"),
        ("qwen3_moe-base", "qwen3_moe"),
        ("xlm-roberta-base", "xlm_roberta"),
        ("org/Qwen3", "qwen3"),
        ("int8", None),
        (3, None),
    ],
)
def test_a_parameter_names_a_recipe(value: object, expected: str | None) -> None:
    recipes = {"qwen3", "qwen3_moe", "roberta", "xlm_roberta"}
    assert selection.recipe_named(value, recipes, {"org/Qwen3": "qwen3"}) == expected


@pytest.mark.parametrize(
    ("module", "parameters", "needed"),
    [
        ("test_recipes", ["mixtral-base", "fp32"], True),
        ("test_recipes", ["bert-base"], False),
        ("test_recipes", ["default"], True),
        ("test_full_size", ["mistralai/Mixtral-8x7B-v0.1"], True),
        ("test_full_size", ["bigcode/starcoder2-3b"], False),
        ("test_cli", ["llama"], True),
    ],
    ids=str,
)
def test_selected_tests_of_a_change(module: str, parameters: list[str], needed: bool) -> None:
    assert selection.is_needed(module, parameters, {"mixtral"}, ROOT) == needed


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def test_changed_files_come_from_git(tmp_path: Path) -> None:
    git(tmp_path, "init")
    for name in ("same.py", "other.py"):
        (tmp_path / name).write_text("1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    assert selection.changed_since("HEAD", tmp_path) == []
    (tmp_path / "other.py").write_text("2\n")
    git(tmp_path, "commit", "-am", "second")
    (tmp_path / "new.py").write_text("3\n")
    assert selection.changed_since("HEAD", tmp_path) == ["new.py"]
    assert selection.changed_since("HEAD~1", tmp_path) == ["new.py", "other.py"]
    with pytest.raises(ValueError, match="Cannot tell what changed since 'nowhere'"):
        selection.changed_since("nowhere", tmp_path)


def test_an_unknown_revision_is_wrong_usage() -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--collect-only",
        "--changed=no-such-revision",
    ]
    done = subprocess.run(
        [*command, "tests/house/test_selection.py"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 4
    assert "Cannot tell what changed since 'no-such-revision'" in done.stdout + done.stderr


CROSSED = {
    f"{name}-{how}-{number}": (name, how, number)
    for name in ("llama", "gemma", "mamba")
    for how in ("portable", "fp32")
    for number in range(5)
}


def test_a_sample_has_each_value_of_each_parameter() -> None:
    drawn = selection.sample(CROSSED, 5)
    assert 6 <= len(drawn) <= 8  # one that adds several values, then one for each other value
    for axis in range(3):
        assert {CROSSED[name][axis] for name in drawn} == {
            value[axis] for value in CROSSED.values()
        }


def test_a_new_case_moves_no_other() -> None:
    cases = {f"case-{number}": (number,) for number in range(100)}
    drawn = selection.sample(cases, 4)
    assert 3 < len(drawn) < 50
    assert selection.sample({**cases, "more": (100,)}, 4) - {"more"} == drawn
    assert selection.sample(cases, 4, ["case-7", "case-8"]) == drawn | {"case-7", "case-8"}


def _drawn(folder: Path, **environment: str) -> list[str]:
    """Return the sample of a process that is started somewhere, and the line that it prints."""
    shutil.copy(ROOT / "tests" / "helpers" / "selection.py", folder)
    code = (
        "import selection; print(selection.draw_in_words());"
        "print(sorted(selection.sample({f'case-{n}': () for n in range(200)}, 10)))"
    )
    known = {name: value for name, value in os.environ.items() if name != "QEFF_ZOO_TEST_DRAW"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**known, "GIT_CEILING_DIRECTORIES": str(folder.parent), **environment},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.splitlines()


def test_the_commit_draws(tmp_path: Path) -> None:
    outside = _drawn(tmp_path)
    assert outside[0] == "samples: QEFF_ZOO_TEST_DRAW=none"
    assert outside == _drawn(tmp_path)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    found = []
    for number in range(2):
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", str(number)], check=True)
        found.append(_drawn(tmp_path))
    assert len({tuple(one) for one in (outside, *found)}) == 3
    name = found[0][0].removeprefix("samples: QEFF_ZOO_TEST_DRAW=")
    assert _drawn(tmp_path, QEFF_ZOO_TEST_DRAW=name) == found[0]
    assert _drawn(tmp_path, PATH="/nowhere") == outside  # no git


def test_every_case_is_drawn_some_day(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = {f"case-{number}": () for number in range(40)}
    left = {*cases, *CROSSED}
    for number in range(60):
        monkeypatch.setattr(selection, "draw_name", functools.partial(str, number))
        left -= selection.sample(cases, 4) | selection.sample(CROSSED, 5)
    assert left == set()


def test_a_sample_is_never_empty() -> None:
    cases: dict[str, tuple[int]] = {"alone": (0,)}
    assert selection.sample(cases, 10**9) == {"alone"}
    assert selection.sample(CROSSED, 1) == {*CROSSED}


def test_sampled_tests_run_in_part(tmp_path: Path) -> None:
    (tmp_path / "test_marked.py").write_text(
        "import pytest\n"
        "@pytest.mark.sampled(10**9)\n"
        "@pytest.mark.parametrize('number', range(8))\n"
        "def test_sampled(number): pass\n"
        "@pytest.mark.full\n"
        "def test_in_full(): pass\n"
        "def test_always(): pass\n"
    )
    in_turn = "import pytest\npytestmark = pytest.mark.turns(10**9)\n"
    for module in "ab":
        lines = [f"def test_in_turn_{module}{number}(): pass\n" for number in range(2)]
        (tmp_path / f"test_{module}.py").write_text(in_turn + "".join(lines))
    found = _collected(tmp_path)
    alone = {name for name in found if name.startswith("test_in_turn_")}
    assert len(alone) == 1
    assert sorted(found - alone) == ["test_always", "test_sampled"]
    for module in "ab":  # a module that is run by its name does not rest
        assert len(_collected(tmp_path / f"test_{module}.py")) == 1


def _collected(path: Path) -> set[str]:
    """Return the names of the tests that run of a file or folder."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "conftest", str(path)],
        cwd=ROOT / "tests",
        env={**os.environ, "QEFF_ZOO_TEST_EVERY": "0", "PYTHONPATH": str(HELPERS)},
        capture_output=True,
        text=True,
    )
    found = {*re.findall(r"::(\w+)", done.stdout)}
    assert found, done.stdout + done.stderr
    return found
