# SPDX-License-Identifier: Apache-2.0
"""Training is trl's, as fast as by trl alone, and gradient checkpointing takes less memory: JSON on stdout.

python benchmarks/finetune.py [--repeat 3] > benchmarks/results/finetune.json
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import machine, measure
from random_llama import Size, make

SIZE = Size(256, 1024, 12, 8, 4, 8_192)
ROWS, LENGTH, BATCH, STEPS = 64, 256, 8, 4


def main() -> None:
    """Run the cases in turns, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="turns of each case")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(train(arguments.case, arguments.folder)))
        return
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder, "model"), SIZE, 0)
        rows = [{"text": "qeff zoo " * (LENGTH // 9 + 1)} for _ in range(ROWS)]
        Path(folder, "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        turns: dict[str, list[dict[str, Any]]] = {"ours": [], "trl": [], "ours, checkpointing": []}
        for _ in range(arguments.repeat):
            for case, found in turns.items():
                found.append(run(case, folder))
    medians = {
        case: {name: statistics.median(one[name] for one in found) for name in found[0]}
        for case, found in turns.items()
    }
    ours, trl, checkpointing = (medians[case] for case in turns)
    answer = {
        "machine": machine(["torch", "transformers", "trl", "peft"]),
        "settings": {"batch": BATCH, "length": LENGTH, "steps": STEPS, "repeat": arguments.repeat},
        "medians": medians,
        "ratios": {
            "cpu_seconds_ours_to_trl": ours["cpu_seconds"] / trl["cpu_seconds"],
            "loss_ours_to_trl": ours["loss"] / trl["loss"],
            "peak_checkpointing_to_without": checkpointing["peak_rss_bytes"] / ours["peak_rss_bytes"],
            "cpu_seconds_checkpointing_to_without": checkpointing["cpu_seconds"] / ours["cpu_seconds"],
        },
    }  # fmt: skip
    print(json.dumps(answer, indent=2))


def run(case: str, folder: str) -> dict[str, Any]:
    """Run one case; CPU seconds are of the training alone, memory is of the whole process."""
    command = [sys.executable, __file__, "--case", case, "--folder", folder]
    found = measure(command, {**os.environ, "OMP_NUM_THREADS": "1"})
    return {**found.answer, "peak_rss_bytes": found.peak_rss_bytes}


def train(case: str, folder: Path) -> dict[str, Any]:
    """Train, and say how long that took and what the last loss was."""
    data, model = str(folder / "rows.jsonl"), str(folder / "model")
    with tempfile.TemporaryDirectory() as output:
        return by_trl(model, data, output) if case == "trl" else by_us(case, model, data, output)


def by_us(case: str, model: str, data: str, output: str) -> dict[str, Any]:
    """Train by `qeff-zoo finetune`."""
    from qeff_zoo.finetuning import trainers
    from qeff_zoo.finetuning.config import Config
    from qeff_zoo.finetuning.finetune import finetune

    taken: list[float] = []
    original = trainers.Generation.train

    def timed(self: Any, *given: Any, **facts: Any) -> Any:
        begun = time.process_time()
        found = original(self, *given, **facts)
        taken.append(time.process_time() - begun)
        return found

    trainers.Generation.train = timed  # type: ignore[method-assign]
    config = Config(
        model_name=model, data=data, output_dir=f"{output}/run", max_steps=STEPS, max_length=LENGTH, lora_dropout=0,
        per_device_train_batch_size=BATCH, eval_strategy="no", save_strategy="no", split_ratio=1,
        gradient_checkpointing="checkpointing" in case,
    )  # fmt: skip
    found = finetune(config)
    assert found is not None
    log = (found.folder / "log.jsonl").read_text().splitlines()
    return {"cpu_seconds": taken[0], "loss": json.loads(log[-1])["loss"]}


def by_trl(model: str, data: str, output: str) -> dict[str, Any]:
    """Train as trl's example does, with the same settings."""
    import torch
    from datasets import load_dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        args=SFTConfig(
            output_dir=output, max_steps=STEPS, max_length=LENGTH, per_device_train_batch_size=BATCH, bf16=False,
            use_cpu=True, activation_checkpointing=False, learning_rate=5e-5, weight_decay=0.01, warmup_steps=0.1,
            lr_scheduler_type="cosine", save_strategy="no", logging_steps=1, report_to="none", disable_tqdm=True,
        ),
        train_dataset=load_dataset("json", data_files=data, split="train", cache_dir=output),
        processing_class=AutoTokenizer.from_pretrained(model),
        peft_config=LoraConfig(
            task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules="all-linear", lora_dropout=0
        ),
    )  # fmt: skip
    begun = time.process_time()
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {"cpu_seconds": time.process_time() - begun, "loss": losses[-1]}


if __name__ == "__main__":
    main()
