# SPDX-License-Identifier: Apache-2.0
"""Where a run trains: on the CPU, or on a device that torch has."""

import os
from dataclasses import dataclass

import torch
from transformers import Trainer, TrainingArguments

from qeff_zoo.errors import TrainingError
from qeff_zoo.finetuning.config import CPU, CUDA, QAIC, Config


@dataclass(frozen=True)
class Device:
    """Where a run trains.

    Args:
        kind: One of `qeff_zoo.finetuning.config.DEVICES`.
        autocast: Type of the forward pass; None for float32.
        processes: Number of processes that train together, one device each.
    """

    kind: str
    autocast: torch.dtype | None
    processes: int


def find(config: Config) -> Device:
    """Return where to train.

    Raises:
        TrainingError: There is no such device.
    """
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    kind = config.device
    if kind == "auto":
        kind = CUDA if torch.cuda.is_available() else CPU
    if kind == CUDA:
        _require_cuda(processes)
    if kind == QAIC:
        _require_qaic()
    return Device(kind, _autocast(config.autocast, kind), processes)


def place(arguments: TrainingArguments, device: Device, backend: str | None) -> None:
    """Place a run on its device. accelerate does not support qaic: it treats the run as one on the CPU until here.

    Args:
        arguments: Arguments for the CPU.
        device: Device to train on instead.
        backend: Backend of several processes; None for the SDK's own.
    """
    if device.kind != QAIC:
        return
    if device.processes > 1 and not torch.distributed.is_initialized():
        torch.distributed.init_process_group(backend or "qccl")
    found = torch.device(QAIC, int(os.environ.get("LOCAL_RANK", "0")))
    torch.qaic.set_device(found)  # type: ignore[attr-defined]
    state = arguments.distributed_state
    assert state is not None
    state.device = found
    vars(arguments)["_setup_devices"] = found  # transformers keeps what it found once


def round_on_card(trainer: Trainer, device: Device) -> None:
    """Make accelerate round and scale on a card as on its own devices."""
    if device.kind != QAIC or device.autocast is None:
        return
    accelerator = trainer.accelerator
    accelerator.native_amp = True
    if device.autocast == torch.float16:
        accelerator.state._mixed_precision = "fp16"
        accelerator.scaler = torch.qaic.amp.GradScaler()  # type: ignore[attr-defined]
    else:
        accelerator.state._mixed_precision = "bf16"


def _require_cuda(processes: int) -> None:
    if not torch.cuda.is_available():
        raise TrainingError(
            f"Cannot train on 'cuda': torch {torch.__version__} sees no GPU. Expected one, its driver, and a torch for "
            "CUDA. Install those, or change --device."
        )
    here, cards = int(os.environ.get("LOCAL_WORLD_SIZE", processes)), torch.cuda.device_count()
    if processes == 1 and cards > 1:
        raise TrainingError(
            f"Cannot train on {cards} GPUs in one process. Expected a process for each. Begin the command with "
            "`torchrun --nproc-per-node N -m`, or set CUDA_VISIBLE_DEVICES=0."
        )
    if here > cards:
        raise TrainingError(
            f"Cannot train in {here} processes on {cards} GPU{'s'[: cards != 1]}: expected one for each. Begin with "
            f"`torchrun --nproc-per-node {cards}`, or change --device to cpu."
        )


def _require_qaic() -> None:
    try:
        import torch_qaic  # noqa: F401 -- registers the device
    except ModuleNotFoundError as error:
        if error.name != "torch_qaic":
            raise
        raise TrainingError(
            "Cannot train on 'qaic': there is no torch_qaic here. Expected the Cloud AI SDK's package for torch, which "
            "is made for one version of it. Install that of your SDK, or leave --device out: then the CPU trains."
        ) from error
    if not torch.qaic.is_available():  # type: ignore[attr-defined]
        raise TrainingError(
            "Cannot train on 'qaic': torch_qaic sees no card. Expected one that `qaic-util -q` lists as ready. Check "
            "the card and its driver, or change --device."
        )


def _autocast(wanted: str, kind: str) -> torch.dtype | None:
    if wanted == "none" or (wanted == "auto" and kind == CPU):
        return None
    if wanted == "auto":
        bfloat16 = kind == CUDA and torch.cuda.is_bf16_supported()
        return torch.bfloat16 if bfloat16 else torch.float16
    if wanted == "float16" and kind == CPU:
        raise TrainingError(
            "Cannot train in 'float16' on the CPU: gradients need scaling there that only devices have. Expected "
            "bfloat16 or float32. Change --autocast to bfloat16 or none."
        )
    return torch.float16 if wanted == "float16" else torch.bfloat16
