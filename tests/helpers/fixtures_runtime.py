# SPDX-License-Identifier: Apache-2.0
"""Pytest plugin: packages of a tiny Llama in several shapes, open, and what transformers says to the same prompts."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import pytest
from fixtures_builds import Models

import qeff_zoo
from qeff_zoo.graph.states import states_of
from qeff_zoo.package import Package
from qeff_zoo.runtime.engine.speculation.costs import Costs
from qeff_zoo.targets.ort.session import OrtProgram, open_graph

if TYPE_CHECKING:
    from qeff_zoo.runtime import TextGenerationSession

PROMPTS = [
    "the quick",
    "or",
    "brown fox jumps over that",
    "lazy dog 你好",
    "words that are there twice",
    "a",
    "thrice the text",
]
LENGTH = 9
SYMBOLS = {"batch_size": "1", "seq_len": "8", "ctx_len": "48"}
SHAPES = {
    "one row": {"batch_size": 1, "prefill_seq_len": 8, "ctx_len": 48},
    "rows": {"batch_size": 3, "prefill_seq_len": 8, "ctx_len": 48},
    "slots": {"full_batch_size": 2, "prefill_seq_len": 8, "ctx_len": 48},
    "token by token": {"batch_size": 2, "prefill_seq_len": 1, "ctx_len": 48},
    "drafts": {
        "full_batch_size": 2,
        "prefill_seq_len": 8,
        "ctx_len": 48,
        "num_speculative_tokens": (3, 5),
    },
}


@pytest.fixture(scope="session")
def built(models: Models, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Package]:
    """Give a package of each shape, by its name, and one of an encoder."""
    from runnable_package import package

    home = tmp_path_factory.mktemp("runtime")
    models.trace(models.llama, home)
    models.trace(models.llama, home, full_batch_size=2)
    models.trace(models.llama, home, full_batch_size=2, num_speculative_tokens=(3,))
    models.trace(models.bert, home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QEFF_HOME", str(home))
        packages = {name: package(models.llama, **shape) for name, shape in SHAPES.items()}
        packages["encoder"] = package(models.bert, seq_lens=(16, 40), batch_size=3)
    return packages


@pytest.fixture(scope="session")
def sessions(built: dict[str, Package]) -> "dict[str, TextGenerationSession]":
    """Give an open session of each shape, by its name."""
    return {name: qeff_zoo.load(built[name], threads=1) for name in SHAPES}  # type: ignore[misc]


@pytest.fixture(scope="session")
def expected(models: Models) -> list[list[int]]:
    """What transformers generates without an EOS, one prompt at a time and without a cache."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(models.llama).eval()
    tokenizer = AutoTokenizer.from_pretrained(models.llama)
    answers = []
    for prompt in PROMPTS:
        tokens = tokenizer(prompt)["input_ids"]
        for _ in range(LENGTH):
            with torch.no_grad():
                tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
        answers.append(tokens[-LENGTH:])
    return answers


@pytest.fixture
def folder(built: dict[str, Package], tmp_path: Path) -> Path:
    """Give a package's folder that may be changed."""
    return Path(shutil.copytree(built["one row"].path, tmp_path / "package"))


def specializations(**symbols: str) -> list[dict[str, Any]]:
    """Return those of the package of one row, with other symbols."""
    decode = {**SYMBOLS, **symbols, "seq_len": "1"}
    return [
        {"name": "Prefill", "symbols": {**SYMBOLS, **symbols}},
        {"name": "Decode", "symbols": decode},
    ]


def reopen(folder: Path, **symbols: str) -> "TextGenerationSession":
    """Open a folder as the package of one row, with other symbols."""
    from qeff_zoo.runtime import TextGenerationSession

    return TextGenerationSession(folder, program_of(folder, **symbols))


def program_of(folder: Path, **symbols: str) -> OrtProgram:
    """Open the graph of a folder, with sizes of one's own."""
    session = open_graph(folder / "graph.onnx", threads=1)
    states = states_of(ir.load(folder / "graph.onnx").graph.inputs)
    return OrtProgram(session, states, specializations(**symbols))


@pytest.fixture(scope="session")
def made(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Make packages with what drafts, by its kind; see `speculators.maker`."""
    import speculators

    return speculators.maker(models.llama, tmp_path_factory.mktemp("drafting"))


@pytest.fixture
def free_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let drafters draft all that a call can check: on this machine none may pay, and then nothing is proved."""
    monkeypatch.setattr(Costs, "best", lambda self, chance, most, rows=1: most)
