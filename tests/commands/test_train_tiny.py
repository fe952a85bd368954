# SPDX-License-Identifier: Apache-2.0
"""`scripts/train_tiny.py` trains, and the checkpoint it left in `examples/tiny-llama` is as good as its card says."""

import importlib.util
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import warm
from checkout import ROOT
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

CHECKPOINT = ROOT / "examples" / "tiny-llama"


@pytest.fixture(scope="module")
def train_tiny() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_tiny", ROOT / "scripts" / "train_tiny.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["train_tiny"] = module
    spec.loader.exec_module(module)
    return module


def card_value(name: str) -> float:
    card = (CHECKPOINT / "README.md").read_text()
    found = re.search(rf"^\| {name} \| ([\d.]+)", card, re.MULTILINE)
    assert found, f"The model card states no {name}."
    return float(found[1])


def test_a_few_steps_lower_the_loss_and_leave_a_checkpoint(tmp_path: Path) -> None:
    size = "--layers 2 --hidden 96 --vocab-size 384 --threads 1"
    training = "--documents 60 --steps 8 --tokens 1024 --seed 1"
    command = [warm.PYTHON.executable, ROOT / "scripts" / "train_tiny.py", "--output", tmp_path]
    done = subprocess.run(
        [*command, *size.split(), *training.split()], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["last_loss"] < report["first_loss"] - 0.5
    assert report["held_out_perplexity"] == pytest.approx(math.exp(report["held_out_loss"]))
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert model.config.num_hidden_layers == 2
    assert f"{report['held_out_perplexity']:.2f}" in (tmp_path / "README.md").read_text()


def test_held_out_scenes_are_not_trained_on(train_tiny: ModuleType) -> None:
    corpus = train_tiny.collect(400)
    paragraphs = [p for p in corpus.held_out.split("\n\n") if len(p) > 80]
    trained = "\n".join(corpus.train)
    assert paragraphs
    assert not [p for p in paragraphs if p in trained]


def test_the_committed_checkpoint_is_as_accurate_as_in_its_card(train_tiny: ModuleType) -> None:
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    loss = train_tiny.held_out_loss(model, tokenizer, (CHECKPOINT / "held_out.txt").read_text())
    assert math.exp(loss) == pytest.approx(card_value("held-out perplexity"), rel=0.01)
    assert math.exp(loss) < 25


def test_the_committed_checkpoint_is_small_and_complete() -> None:
    files = {path.name: path.stat().st_size for path in CHECKPOINT.iterdir()}
    assert sum(files.values()) <= 8_000_000
    assert files.keys() == {
        "README.md",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "held_out.txt",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    config = json.loads((CHECKPOINT / "config.json").read_text())
    assert config["num_key_value_heads"] < config["num_attention_heads"]
    assert config["tie_word_embeddings"] is True


def test_the_committed_tokenizer_begins_texts_and_writes_chats() -> None:
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    text = "def naïve(x):\n\treturn '€' * x"
    ids = tokenizer.encode(text)
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.decode(ids[1:]) == text
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat == "<|begin|><|user|>Hi<|end_of_turn|><|assistant|>"
    generation = GenerationConfig.from_pretrained(CHECKPOINT)
    assert generation.eos_token_id == [
        tokenizer.eos_token_id,
        tokenizer.convert_tokens_to_ids("<|end_of_turn|>"),
    ]
