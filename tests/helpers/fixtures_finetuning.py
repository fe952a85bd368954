# SPDX-License-Identifier: Apache-2.0
"""What several tests of finetuning and others use."""

import json
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT

from qeff_zoo.finetuning.config import Config
from qeff_zoo.finetuning.config_files import read
from qeff_zoo.finetuning.finetune import Finetuned, finetune

LLAMA = ROOT / "examples" / "tiny-llama"


STEPS, HALF = 6, 3


def chat(*turns: str) -> dict[str, Any]:
    """Write a chat: what the user says, and what the model answers, in turns."""
    roles = ("user", "assistant")
    return {
        "messages": [
            {"role": roles[number % 2], "content": turn} for number, turn in enumerate(turns)
        ]
    }


CHATS = [
    chat(f"What is thing {number}?", f"A class that implements thing number {number}.")
    for number in range(40)
]


def write(path: Path, found: list[dict[str, Any]]) -> str:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in found))
    return str(path)


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("data") / "chats.jsonl", CHATS)


def choices(data: str, output_dir: Path, **others: Any) -> Config:
    """Choose a run of seconds."""
    facts: dict[str, Any] = {
        "model_name": str(LLAMA), "data": data, "output_dir": str(output_dir), "max_steps": STEPS,
        "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4, "learning_rate": 3e-3, "max_length": 128,
        "save_strategy": "steps", "save_steps": HALF,
    }  # fmt: skip
    return read(None, {**facts, **others})


def trained(config: Config, resume: str | None = None) -> Finetuned:
    found = finetune(config, resume=resume)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def run(chats: str, tmp_path_factory: pytest.TempPathFactory) -> Finetuned:
    return trained(choices(chats, tmp_path_factory.mktemp("runs") / "run", merge=True))
