# SPDX-License-Identifier: Apache-2.0
"""The README and the guide of text generation: their examples run, their generated parts are up to date."""

import json
import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import warm
from checkout import ROOT
from fixtures_builds import Models

from qeff_zoo.graph import numerics

sys.path.insert(0, str(ROOT / "scripts"))

from documentation import sizes

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = README + (ROOT / "docs" / "generation.md").read_text(encoding="utf-8")
SESSIONS = re.findall(r"<!-- session: [^>]*-->\n```(\w+)\n(.*?)```", PAGES, re.DOTALL)
LINES = 250


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder where the README's relative paths work, with a store of its own."""
    return made(tmp_path_factory.mktemp("readme"))


def made(folder: Path) -> Path:
    (folder / "examples").symlink_to(ROOT / "examples")
    return folder


def run(command: list[str], folder: Path) -> str:
    # Without a repository: a package of sources that are being changed would not be published.
    away = {"QEFF_HOME": str(folder / "store"), "GIT_DIR": str(folder / "none")}
    environment = {**os.environ, **away}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{shlex.join(command)}: {done.stderr}"
    return done.stdout


@pytest.mark.together("readme")
def test_commands_run(tmp_path: Path) -> None:
    workplace = made(tmp_path)  # its own: what it lists and removes is what it built
    shown = "".join(text for kind, text in SESSIONS if kind == "console")
    _, *examples = shown.replace("$PWD", str(workplace)).split("$ qeff-zoo ")
    assert len(examples) >= 14
    for example in examples:
        command, *lines = example.splitlines()
        printed = run([warm.PYTHON.executable, "-m", "qeff_zoo", *shlex.split(command)], workplace)
        assert printed.strip()
        there = iter(map(words, printed.splitlines()))
        for output in filter(None, map(words, lines)):  # in that order, others between them
            assert any(output == found[: len(output)] for found in there), (output, printed)


def words(line: str) -> list[str]:
    """Give what a line says, but for what differs from machine to machine: numbers, keys, folders."""
    line = re.sub(r"[0-9a-f]{8,}|[\d.,]*\d|-{2,}", "#", line.partition("...")[0])
    return [re.sub("^[kMG]?B$", "B", word.rpartition("/")[2]) for word in line.split()]


@pytest.mark.together("readme")
def test_python_runs(workplace: Path) -> None:
    shown = [text for kind, text in SESSIONS if kind == "python"]
    assert len(shown) == 2
    first, *_ = outputs = [
        run([warm.PYTHON.executable, "-W", "error", "-c", text], workplace) for text in shown
    ]
    assert all(output.strip() for output in outputs)
    assert len(first.splitlines()) >= 2
    assert "->" in first


@pytest.mark.together("readme")
def test_images_are_recognized_and_compared(workplace: Path) -> None:
    printed = run([warm.PYTHON.executable, str(ROOT / "examples" / "images.py")], workplace)
    assert re.search(r"sunset.png: \w+ 0\.\d{3}", printed)
    assert re.search(r"cosine of sunset.png and sunset.jpg: (0\.9\d\d|1\.000)", printed)


def test_examples_run(workplace: Path) -> None:
    printed = run([warm.PYTHON.executable, str(ROOT / "examples" / "quantized.py")], workplace)
    assert "42 matrices kept: int4 in blocks of 32, zero points" in printed
    assert "class socket. -> " in printed
    printed = run([warm.PYTHON.executable, str(ROOT / "examples" / "lora.py")], workplace)
    lines = printed.splitlines()
    assert [line.partition(" -> ")[0] for line in lines] == [
        "the model as it is",
        "first",
        "second",
    ]
    assert len({line.partition(" -> ")[2] for line in lines}) == 3


@pytest.mark.together("readme")
def test_the_way_from_chats_to_a_package_runs(workplace: Path) -> None:
    printed = run([warm.PYTHON.executable, str(ROOT / "examples" / "finetune.py")], workplace)
    before, after = (float(one) for one in re.findall(r"held out, \w+: ([\d.]+)", printed))
    assert after < before / 10
    assert "What is heapq for? -> The module heapq is for queues, my friend." in printed
    assert "zlib? -> The module zlib is for bytes, my friend." in printed


def test_generated_parts_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "update_readme"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_first_steps_are_commands_of_the_readme() -> None:
    """The session of the README is run, see `test_commands_run`."""
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    steps = re.findall(r"^\$ (qeff-zoo .*)$", page, re.MULTILINE)
    assert len(steps) > 2
    assert not set(steps) - set(re.findall(r"^\$ (qeff-zoo .*)$", README, re.MULTILINE))


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= LINES, f"Move a part of README.md to docs/: {LINES} lines."


@pytest.mark.parametrize("weights", numerics.WEIGHTS)
def test_documented_sizes_are_those_of_a_build(weights: str, models: Models, home: Path) -> None:
    config = json.loads((models.llama / "config.json").read_bytes())
    decoder = sizes.Decoder(
        model_id="llama",
        parameters=0,
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        vocabulary=config["vocab_size"],
    )
    package = models.build(models.llama, home, weights=weights)
    file = package.path / "weights.safetensors"
    documented, length = decoder.weight_bytes(weights), file.stat().st_size
    if (
        weights == numerics.MIXED[0]
    ):  # at most so many bits, and the file's description of each tensor
        with file.open("rb") as stream:
            header = int.from_bytes(stream.read(8), "little")
        assert 0.9 * documented < length - header <= documented
    else:
        assert documented == length
    axes = {"batch_size": 1, "ctx_len": 128}
    states = package.programs[0].states
    values = sum(math.prod(axes.get(str(axis), axis) for axis in state.axes) for state in states)
    assert decoder.cache_bytes(axes["ctx_len"]) == 4 * values


def test_documented_models_have_their_published_parameters() -> None:
    for decoder in sizes.DECODERS.values():
        assert sum(math.prod(shape) for _, shape in decoder.tensors()) == decoder.parameters
