# SPDX-License-Identifier: Apache-2.0
"""Training in several processes and on a card, stopping early, and what is drawn and logged beside."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import warm
from fixtures_builds import TIMEOUT
from fixtures_finetuning import CHATS, choices, trained, write
from safetensors.torch import load_file
from torch.testing import assert_close

from qeff_zoo.errors import TrainingError
from qeff_zoo.finetuning import devices
from qeff_zoo.finetuning.config import Config
from qeff_zoo.finetuning.config_files import as_yaml
from qeff_zoo.finetuning.run_folder import RunFolder

pytestmark = pytest.mark.together("finetuning")
WEIGHTS = Path("adapter") / "adapter_model.safetensors"


def log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_two_processes_train_as_one_does_on_batches_of_both(tmp_path: Path) -> None:
    data = write(tmp_path / "chats.jsonl", CHATS)
    alike = {"lora_dropout": 0, "max_steps": 4, "save_steps": 2}
    config = choices(
        data, tmp_path / "two", **alike, per_device_train_batch_size=2, per_device_eval_batch_size=2
    )
    (tmp_path / "config.yaml").write_text(as_yaml(config))
    done = subprocess.run(
        [warm.PYTHON.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone",
         "-m", "qeff_zoo", "finetune", str(tmp_path / "config.yaml"), "--device", "cpu"],
        capture_output=True, text=True, timeout=TIMEOUT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == [str(tmp_path / "two" / "adapter")]
    one = trained(choices(data, tmp_path / "one", **alike))
    names = ("step", "loss", "eval_loss")
    found, expected = (
        [[entry.get(name, 0) for name in names] for entry in log(tmp_path / folder)]
        for folder in ("two", "one")
    )
    assert found == [pytest.approx(entry, rel=1e-4) for entry in expected]
    assert_close(
        load_file(tmp_path / "two" / WEIGHTS), load_file(one.folder / WEIGHTS), rtol=1e-3, atol=1e-4
    )
    assert json.loads((tmp_path / "two" / "run.json").read_text())["processes"] == 2
    checkpoints = RunFolder(tmp_path / "two").checkpoints()
    assert [path.name for path in checkpoints] == ["checkpoint-2", "checkpoint-4"]
    assert {path.name for path in checkpoints[0].glob("rng_*")} == {
        "rng_state_0.pth",
        "rng_state_1.pth",
    }


def test_a_run_stops_when_validation_gets_worse_and_keeps_the_best(tmp_path: Path) -> None:
    data = write(tmp_path / "chats.jsonl", CHATS)
    config = choices(
        data, tmp_path / "run", max_steps=12, learning_rate=0.3, lr_scheduler_type="constant_with_warmup",
        warmup_ratio=0.5, eval_strategy="steps", eval_steps=1, early_stopping_patience=2, save_total_limit=1,
        plot=str(tmp_path / "loss.png"), tensorboard=True,
    )  # fmt: skip
    found = trained(config)
    losses = {one["step"]: one["eval_loss"] for one in log(found.folder) if "eval_loss" in one}
    best = min(list(losses)[1:], key=lambda step: losses[step])
    assert found.steps == best + 2 < 12
    assert found.last["step"] == best
    kept = found.folder / f"checkpoint-{best}"
    assert (kept / WEIGHTS.name).read_bytes() == (found.folder / WEIGHTS).read_bytes()
    names = [path.name for path in RunFolder(found.folder).checkpoints()]
    assert names == [f"checkpoint-{best}", f"checkpoint-{best + 2}"]
    weights = (found.folder / WEIGHTS).read_bytes()
    shutil.rmtree(found.path)
    again = trained(config, "last")  # training had ended
    assert (again.steps, again.last) == (found.steps, found.last)
    assert (found.folder / WEIGHTS).read_bytes() == weights
    (found.folder / f"checkpoint-{best + 2}" / "complete.json").unlink()
    again = trained(config, "last")  # the best one, from where its patience runs out again
    assert (again.steps, again.last) == (found.steps, found.last)
    assert (found.folder / WEIGHTS).read_bytes() == weights
    assert (tmp_path / "loss.png").read_bytes()[1:4] == b"PNG"
    assert list((found.folder / "tensorboard").glob("events.*"))


def test_a_run_stops_when_its_loss_is_small(tmp_path: Path) -> None:
    data = write(tmp_path / "chats.jsonl", CHATS)
    config = choices(
        data, tmp_path / "run", convergence_counter=2, convergence_loss=1e9, save_strategy="no", eval_strategy="no"
    )  # fmt: skip
    assert trained(config).steps == 2


CARD = """
import sys, types, torch

torch.utils.rename_privateuse1_backend("qaic")
scaler = object()
card = types.ModuleType("qaic")
card.is_available = lambda: True
card.set_device = lambda device: None
card.amp = types.SimpleNamespace(GradScaler=lambda: scaler)
torch._register_device_module("qaic", card)
sys.modules["torch_qaic"] = types.ModuleType("torch_qaic")

from accelerate import Accelerator
from qeff_zoo.finetuning import devices, trainers
from qeff_zoo.finetuning.config import Config

config = Config(model_name="m", data="d", output_dir=sys.argv[1], device="qaic")
found = devices.find(config)
assert (found.kind, found.autocast) == ("qaic", torch.float16), found
arguments = trainers.arguments(config, found, resumed=False)
devices.place(arguments, found, None)
assert arguments.device == torch.device("qaic", 0), arguments.device
trainer = types.SimpleNamespace(accelerator=Accelerator())
assert trainer.accelerator.device == torch.device("qaic", 0), trainer.accelerator.device
devices.round_on_card(trainer, found)
assert trainer.accelerator.mixed_precision == "fp16"
assert trainer.accelerator.scaler is scaler
"""


def test_a_card_is_where_a_run_is_placed(tmp_path: Path) -> None:
    done = subprocess.run(
        [warm.PYTHON.executable, "-c", CARD, str(tmp_path)],
        capture_output=True, text=True, timeout=TIMEOUT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize(
    ("processes", "cards", "message"),
    [
        (1, 0, "torch .* sees no GPU"),
        (1, 2, "on 2 GPUs in one process. Expected a process for each"),
        (2, 1, "in 2 processes on 1 GPU: expected one for each.*nproc-per-node 1"),
    ],
)
def test_each_process_has_a_gpu_of_its_own(
    processes: int, cards: int, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = Config(model_name="m", data="d", output_dir=str(tmp_path), device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cards > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    with pytest.raises(TrainingError, match=message):
        devices.find(config)
