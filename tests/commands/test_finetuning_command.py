# SPDX-License-Identifier: Apache-2.0
"""QEfficient's fine-tuning command: its flags and defaults, its custom data sets, and classifiers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from checkout import ROOT
from peft import PeftModel
from runnable_package import checkpoint
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from qeff_zoo.finetuning import finetune as work
from qeff_zoo.finetuning.config import Config
from qeff_zoo.qefficient.cloud import finetune as command

LLAMA = str(ROOT / "examples" / "tiny-llama")

pytestmark = pytest.mark.together("finetuning")


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Config, str | None]]:
    """Collect what the command asks for, and train nothing."""
    found: list[tuple[Config, str | None]] = []
    monkeypatch.setattr(
        work, "finetune", lambda config, *, resume, reporter: found.append((config, resume))
    )
    return found


def run(*argv: str) -> int:
    return command.main([*argv, "--quiet"])


def test_defaults_are_those_of_qefficient(requested: list[tuple[Config, str | None]]) -> None:
    assert run("--device", "cpu") == 0
    ((found, resume),) = requested
    assert resume is None
    expected = {
        "model_name": "meta-llama/Llama-3.2-1B", "data": "dataset/alpaca_data.json", "data_format": "alpaca",
        "lora_r": 8, "lora_alpha": 32, "lora_dropout": 0.05, "target_modules": ("q_proj", "v_proj"),
        "per_device_train_batch_size": 1, "per_device_eval_batch_size": 1, "gradient_accumulation_steps": 4,
        "gradient_checkpointing": False, "autocast": "bfloat16", "num_train_epochs": 1.0, "max_steps": 0,
        "learning_rate": 3e-4, "weight_decay": 0.0, "lr_scheduler_type": "step", "gamma": 0.85, "seed": 42,
        "output_dir": "training_results", "save_steps": 1000, "convergence_counter": 5, "convergence_loss": 1e-4,
        "max_length": 0, "packing": False, "eval_strategy": "epoch", "max_eval_samples": None, "use_peft": True,
    }  # fmt: skip
    assert {name: getattr(found, name) for name in expected} == expected


def test_flags_are_translated(requested: list[tuple[Config, str | None]], tmp_path: Path) -> None:
    lora = tmp_path / "lora.json"
    options = {"r": 32, "lora_alpha": 64, "target_modules": ["o_proj"], "bias": "none"}
    fixed = {"task_type": "CAUSAL_LM", "inference_mode": False}
    lora.write_text(json.dumps({**options, **fixed, "lora_dropout": 0.0}))
    argv = (
        "--dataset", "gsm8k_dataset", "--data", "train.jsonl", "--validation-data", "test.jsonl", "--max_train_step",
        "10", "--max-eval-step", "3", "--val_batch_size", "2", "--run_validation", "false", "--use-autocast", "no",
        "--peft_config_file", str(lora), "--batching_strategy", "packing", "--context-length", "64", "--device",
        "cpu", "--gradient-checkpointing",
    )  # fmt: skip
    assert run(*argv) == 0
    ((found, _),) = requested
    assert (found.max_steps, found.max_eval_samples, found.eval_strategy) == (3, 6, "no")
    assert (found.lora_r, found.lora_alpha, found.target_modules) == (32, 64, ("o_proj",))
    assert (found.lora_dropout, dict(found.peft_options)) == (0.0, {"bias": "none"})
    assert (found.data_format, found.validation_data) == ("gsm8k", "test.jsonl")
    assert (found.autocast, found.packing, found.max_length) == ("none", True, 64)
    assert found.gradient_checkpointing


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["--enable_pp"], "a model is trained on one device"),
        (["--save_model", "false"], "what was trained is written in any case"),
        (["--grad-scaler", "false"], "gradients are scaled"),
        (["--enable_ddp"], "torchrun --nproc-per-node N"),
        (["--dataset", "custom_dataset"], "expected the file with custom_dataset alone"),
        (["--dataset", "gsm8k_dataset", "--device", "cpu"], "There is no data"),
        (["--use_profiler", "--opByOpVerifier"], "verifier is not used"),
    ],
)
def test_unsupported_finetuning_option_is_refused_by_name(
    argv: list[str],
    problem: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert run(*argv) == 1
    assert problem in capsys.readouterr().err


OWN = """
from transformers import DataCollatorForSeq2Seq


def rows(dataset_config, tokenizer, split, context_length=None):
    assert (dataset_config.style, context_length) == ("short", 64)
    found = []
    for number in range({"train": 8, "test": 4}[split]):
        given = tokenizer.encode(f"Say {number}: ")
        learnt = tokenizer.encode(f"it is {number}", add_special_tokens=False) + [tokenizer.eos_token_id]
        ids = given + learnt
        found.append({
            "input_ids": ids, "attention_mask": [1] * len(ids), "labels": [-100] * len(given) + learnt,
        })
    return found


def collate(tokenizer):
    return DataCollatorForSeq2Seq(tokenizer)
"""


def test_a_custom_data_set_is_trained_on_and_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    config = {
        "train_split": "train", "test_split": "test", "style": "short",
        "preproc_file": f"{tmp_path / 'own.py'}:rows", "collate_file": f"{tmp_path / 'own.py'}:collate",
    }  # fmt: skip
    (tmp_path / "own.json").write_text(json.dumps(config))
    output = tmp_path / "run"
    argv = (
        "--model_name", LLAMA, "--dataset", "custom_dataset", "--custom_dataset_config", str(tmp_path / "own.json"),
        "--context_length", "64", "--device", "cpu", "--use_autocast", "false", "--gradient_accumulation_steps", "2",
        "--intermediate_step_save", "2", "--num_workers_dataloader", "0", "--output_dir", str(output),
    )  # fmt: skip
    assert run(*argv) == 0
    out = capsys.readouterr().out
    assert out.strip() == str(output / "adapter")
    made_by = json.loads((output / "run.json").read_text())
    assert (made_by["data"]["train"]["rows"], made_by["data"]["validation"]["rows"]) == (8, 4)
    rates = [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]
    assert {rate["learning_rate"] for rate in rates if "learning_rate" in rate} == {3e-4}
    weights = (output / "adapter" / "adapter_model.safetensors").read_bytes()

    assert run(*argv, "--from_peft_checkpoint", str(output / "checkpoint-2")) == 0
    assert (output / "adapter" / "adapter_model.safetensors").read_bytes() == weights

    other = tmp_path / "other"
    again = (*argv, "--from_peft_checkpoint", str(output / "adapter"), "--output_dir", str(other))
    assert run(*again) == 0
    losses = [
        json.loads((folder / "run.json").read_text())["result"]["first"]["eval_loss"]
        for folder in (output, other)
    ]
    assert losses[1] < losses[0]  # it begins where the first one ended


@pytest.mark.parametrize("model_type", ["bert", "llama"])
def test_a_classifier_learns_labels(
    model_type: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = LLAMA
    if model_type == "bert":
        model = str(checkpoint(tmp_path / "bert", model_type, task="text-classification"))
    texts = [
        (f"{'good' if number % 2 else 'bad'} film {number}", number % 2) for number in range(48)
    ]
    data = tmp_path / "imdb.csv"
    data.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in texts))
    argv = (
        "--model_name", model, "--dataset", "imdb_dataset", "--data", str(data), "--validation_data", str(data),
        "--task_mode", "seq_classification", "--device", "cpu", "--use_autocast", "false", "--train_batch_size", "8",
        "--val_batch_size", "48", "--gradient_accumulation_steps", "1", "--lr", "2e-2", "--num_epochs", "4",
        "--num_workers_dataloader", "0", "--output_dir", str(tmp_path / "run"), "--context_length", "32",
    )  # fmt: skip
    if model_type == "bert":
        lora = tmp_path / "lora.yaml"
        lora.write_text("target_modules: [query, value]\n")
        argv = (*argv, "--peft_config_file", str(lora))
    assert run(*argv) == 0
    assert "accuracy" in capsys.readouterr().err
    found = json.loads((tmp_path / "run" / "run.json").read_text())
    assert found["data"]["labels"] == ["0", "1"]
    assert found["result"]["last"]["eval_accuracy"] >= 0.95
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run" / "adapter")
    base: Any = AutoModelForSequenceClassification.from_pretrained(
        model, num_labels=2, ignore_mismatched_sizes=True
    )
    base.config.pad_token_id = tokenizer.pad_token_id
    adapted = PeftModel.from_pretrained(base, tmp_path / "run" / "adapter").eval()
    read = tokenizer([text for text, _ in texts], padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = adapted(**{name: read[name] for name in ("input_ids", "attention_mask")}).logits
    right = (logits.argmax(-1) == torch.tensor([label for _, label in texts])).double().mean()
    assert float(right) == found["result"]["last"]["eval_accuracy"]
