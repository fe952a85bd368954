# SPDX-License-Identifier: Apache-2.0
"""docs/features.json, the table of QEfficient's features, says what exists: classes, commands, options, files."""

import argparse
import importlib
import json
import runpy
import shlex
from functools import cache
from typing import Any

import pytest
from checkout import ROOT

from qeff_zoo import qefficient
from qeff_zoo.cli import parser as command_line

TABLE = json.loads((ROOT / "docs" / "features.json").read_bytes())
FEATURES = TABLE["features"]
FIELDS = {"feature", "state", "python", "commands", "example", "files", "guide", "note", "absent"}
SCRIPTS = ("perplexity", "replicate_kv_heads")


def exists(name: str) -> bool:
    """Return whether there is such a class, function, command with its options, or file."""
    if " " in name or name.startswith("qeff-cloud-"):
        return understood(name)
    if "/" in name:
        return (ROOT / name).exists()
    module, _, last = name.rpartition(".")
    return hasattr(importlib.import_module(module or "qeff_zoo.qefficient"), last)


def understood(line: str) -> bool:
    """Return whether a command has all options that a line gives it."""
    program, *words = shlex.split(line)
    options = options_of(program, words[0] if words else "")
    return {word for word in words if word.startswith("-")} <= options


@cache
def options_of(program: str, first: str) -> frozenset[str]:
    if program == "qeff-zoo":
        (commands,) = (
            action.choices
            for action in command_line()._actions
            if isinstance(action, argparse._SubParsersAction)
        )
        parser = commands[first]
    elif program == "python":
        parser = runpy.run_path(str(ROOT / first))["_parser"]()
    else:
        name = program.removeprefix("qeff-cloud-")
        module = importlib.import_module(f"qeff_zoo.qefficient.cloud.{name}")
        if not hasattr(module, "_parser"):
            return frozenset()
        parser = module._parser()
    return frozenset(flag for action in parser._actions for flag in action.option_strings)


@pytest.mark.parametrize("feature", FEATURES, ids=lambda one: one["feature"])
def test_everything_that_a_row_names_exists(feature: dict[str, Any]) -> None:
    assert set(feature) <= FIELDS
    assert feature["state"] in TABLE["states"]
    for name in (
        name for kind in ("python", "commands", "files") for name in feature.get(kind, ())
    ):
        assert exists(name), name
    for folder, kind in (("examples", "example"), ("docs", "guide")):
        if kind in feature:
            assert exists(f"{folder}/{feature[kind]}")
    found = [name for name in feature.get("absent", ()) if exists(name)]
    assert not found, f"There is {found[0]} now: say so in docs/features.json."
    if feature["state"] in ("supported", "untested-on-device", "partial"):
        assert feature.get("python") or feature.get("commands")
    assert (feature["state"] == "planned") == ("absent" in feature)
    assert "note" in feature or feature["state"] not in ("partial", "replaced")


def test_everything_has_a_row() -> None:
    message = json.dumps(FEATURES)
    answers = {"CloudAI100ExecInfo", "PerfMetrics"}
    for name in {*qefficient.__all__} - answers:
        assert f'"{name}"' in message, f"{name} is in no row of docs/features.json."
    commands = [
        path.stem
        for path in (ROOT / "qeff_zoo" / "cloud").glob("[a-z]*.py")
        if path.stem != "flags"
    ]
    for name in commands:
        assert f"qeff-cloud-{name}" in message
    for name in SCRIPTS:
        assert f"scripts/{name}.py" in message
    for path in (ROOT / "examples").glob("*.py"):
        assert f'"{path.name}"' in message, f"{path.name} is in no row of docs/features.json."


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("QEFFAutoModel", True),
        ("QEFFAutoModelForNothing", False),
        ("qeff_zoo.runtime.Sampling", True),
        ("recipes/llama.py", True),
        ("recipes/lama.py", False),
        ("qeff-zoo build MODEL --ctx-len 8", True),
        ("qeff-zoo build MODEL --ctx-lenn 8", False),
        ("qeff-cloud-infer --ctx_len 8 --ctx-len 8", True),
        ("qeff-cloud-infer --ctx_lenn 8", False),
        ("qeff-cloud-finetune", True),
        ("python scripts/perplexity.py MODEL FILE --graph", True),
        ("python scripts/perplexity.py MODEL FILE --grph", False),
    ],
)
def test_the_test_itself(name: str, there: bool) -> None:
    assert exists(name) is there
