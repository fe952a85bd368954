# SPDX-License-Identifier: Apache-2.0
"""transformers' and trl's trainers, with what a run here adds: checkpoints that are whole, and a loss per token."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from datasets import Dataset
from safetensors import SafetensorError
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from transformers import (
    DataCollatorWithPadding,
    PrinterCallback,
    Trainer,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer import TRAINER_STATE_NAME, TRAINING_ARGS_NAME
from transformers.trainer_utils import EvalLoopOutput, EvalPrediction
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from qeff_zoo.errors import TrainingError
from qeff_zoo.finetuning.config import CLASSIFICATION, CUDA, QAIC, Config
from qeff_zoo.finetuning.devices import Device
from qeff_zoo.finetuning.run_folder import RunFolder, perplexity

from . import rows

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

STEP = "step"
_WRITING = (OSError, RuntimeError, SafetensorError)


class _Run(Trainer):
    """A trainer whose checkpoints count once they are whole.

    Attributes:
        config: Config of the run.
        folder: Folder of the run.
    """

    config: Config
    folder: RunFolder

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        step = self.state.global_step
        try:
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                best = self.state.best_global_step
                self.folder.complete(step, self.config.save_total_limit, best)
        except _WRITING as error:
            self._give_up(step, error)
        self.accelerator.wait_for_everyone()

    def _give_up(self, step: int, error: Exception) -> NoReturn:
        """Keep the last complete state, and report it."""
        self.folder.sweep()
        whole = self.folder.checkpoints()
        left = f"{whole[-1].name!r} is whole" if whole else "there is none before it"
        raise TrainingError(
            f"Cannot write the checkpoint of step {step} into {str(self.folder.path)!r}: {error}. Expected room for "
            f"it; {left}. Make room, and go on with --resume last."
        ) from error

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Also know QEfficient's: after each epoch the rate is multiplied by `gamma`."""
        if self.config.lr_scheduler_type != STEP or self.lr_scheduler is not None:
            return super().create_scheduler(num_training_steps, optimizer)
        assert self.optimizer is not None
        count = len(self.train_dataset)  # type: ignore[arg-type]
        batches = math.ceil(count / (self.args.train_batch_size * self.args.world_size))
        epoch = math.ceil(batches / self.args.gradient_accumulation_steps)
        gamma = self.config.gamma
        self.lr_scheduler = LambdaLR(
            optimizer or self.optimizer, lambda step: float(gamma ** (step // epoch))
        )
        self._created_lr_scheduler = True
        return self.lr_scheduler


class Generation(_Run, SFTTrainer):
    """Trainer of causal language models. Its validation loss is a mean over tokens, however they are batched."""

    _sums: Tensor

    def _send_telemetry(self) -> None:
        """Report no run to trl's makers."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the loss; while validating, also sum it up."""
        loss = super().compute_loss(  # type: ignore[no-untyped-call]
            model, inputs, return_outputs, num_items_in_batch
        )
        if not model.training:
            tokens = (inputs["labels"][:, 1:] != -100).sum()
            mean = loss[0] if return_outputs else loss
            self._sums += torch.stack((mean.detach().double() * tokens, tokens.double())).cpu()
        return loss

    def evaluation_loop(self, *arguments: Any, **options: Any) -> EvalLoopOutput:
        """Validate; the loss is that of a token, and the perplexity follows from it."""
        self._sums = torch.zeros(2, dtype=torch.float64)
        output = super().evaluation_loop(*arguments, **options)
        sums = self._sums
        if self.args.world_size > 1:
            sums = self.accelerator.reduce(sums.to(self.args.device, torch.float32), "sum").cpu()
        total, tokens = sums.tolist()
        loss = total / max(tokens, 1)
        assert output.metrics is not None
        output.metrics.update(eval_loss=loss, eval_perplexity=perplexity(loss))
        return output

    def create_model_card(self, *arguments: Any, **options: Any) -> None:
        """Write none: peft writes that of an adapter."""


class Classification(_Run):
    """Learns to label texts."""


def accuracy(predictions: EvalPrediction) -> dict[str, float]:
    """Return the share of right labels."""
    logits = (
        predictions.predictions[0]
        if isinstance(predictions.predictions, tuple)
        else predictions.predictions
    )
    return {"accuracy": float(np.mean(logits.argmax(-1) == predictions.label_ids))}


def arguments(config: Config, device: Device, *, resumed: bool) -> TrainingArguments:
    """Convert a configuration to transformers' arguments.

    Args:
        config: Config of the run.
        device: Device of the training.
        resumed: Whether it was begun before.
    """
    stopping = config.early_stopping_patience is not None
    facts: dict[str, Any] = {
        "output_dir": config.output_dir,
        "num_train_epochs": config.num_train_epochs,
        "max_steps": config.max_steps or -1,
        "per_device_train_batch_size": config.per_device_train_batch_size,
        "per_device_eval_batch_size": config.per_device_eval_batch_size,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "activation_checkpointing": config.gradient_checkpointing,
        "activation_checkpointing_kwargs": {"use_reentrant": False},
        "max_grad_norm": config.max_grad_norm,
        "fp16": device.kind == CUDA and device.autocast == torch.float16,
        "bf16": device.kind != QAIC and device.autocast == torch.bfloat16,
        "use_cpu": device.kind != CUDA,  # a card is taken afterwards, see devices.place
        "seed": config.seed,
        "data_seed": config.seed,
        "eval_strategy": config.eval_strategy,
        "eval_steps": config.eval_steps,
        "eval_on_start": config.eval_strategy != "no" and not resumed,
        # The best one is kept, so there must be one wherever a loss is known.
        "save_strategy": config.eval_strategy if stopping else config.save_strategy,
        "save_steps": config.eval_steps if stopping else config.save_steps,
        "save_total_limit": None,  # older ones go when this one is whole, see RunFolder.complete
        "load_best_model_at_end": stopping,
        "metric_for_best_model": "eval_loss" if stopping else None,
        "restore_callback_states_from_checkpoint": True,  # how long a loss has not been better
        "logging_steps": config.logging_steps,
        "logging_nan_inf_filter": False,
        "train_sampling_strategy": "group_by_length" if config.group_by_length else "random",
        "dataloader_num_workers": config.dataloader_num_workers,
        "dataloader_pin_memory": device.kind == CUDA,
        "ddp_backend": config.ddp_backend,
        "ddp_timeout": config.ddp_timeout,
        "ddp_find_unused_parameters": False if device.processes > 1 else None,
        "learning_rate": config.learning_rate,
        "weight_decay": config.weight_decay,
        "optim": config.optim,
        "warmup_steps": config.warmup_ratio,  # below 1 it is a share
        "report_to": "none",
        "disable_tqdm": True,
    }
    if config.lr_scheduler_type != STEP:
        facts["lr_scheduler_type"] = config.lr_scheduler_type
    try:
        if config.task_mode == CLASSIFICATION:
            return TrainingArguments(**facts)
        return SFTConfig(
            **facts,
            max_length=config.max_length,
            packing=config.packing,
            eval_packing=False,
            dataset_kwargs={"skip_prepare_dataset": not config.packing},
        )
    except ValueError as error:
        raise TrainingError(
            f"Cannot train so: {' '.join(str(error).split())}. Expected choices that transformers' TrainingArguments "
            "take. Change the one it names."
        ) from error


def trainer_of(
    config: Config,
    folder: RunFolder,
    arguments: TrainingArguments,
    model: "PreTrainedModel | PeftModel",
    tokenizer: "PreTrainedTokenizerBase",
    data: tuple[Dataset, Dataset | None],
) -> Trainer:
    """Return the trainer of a run, with no callbacks of ours yet.

    Args:
        config: Config of the run.
        folder: Folder of the run.
        arguments: Training arguments.
        model: To train.
        tokenizer: Tokenizer of the model.
        data: To train on, and to validate on.
    """
    facts: dict[str, Any] = {
        "model": model,
        "args": arguments,
        "train_dataset": data[0],
        "eval_dataset": data[1],
        "processing_class": tokenizer,
    }
    trainer: _Run
    if config.collator:
        facts["data_collator"] = rows.function(config.collator)(tokenizer)
    if config.task_mode == CLASSIFICATION:
        facts.setdefault("data_collator", DataCollatorWithPadding(tokenizer))
        trainer = Classification(**facts, compute_metrics=accuracy)
    else:
        trainer = Generation(**facts)
    trainer.config, trainer.folder = config, folder
    trainer.remove_callback(PrinterCallback)
    return trainer


def train(trainer: Trainer, checkpoint: Path | None) -> None:
    """Train, from a checkpoint on if there is one.

    Args:
        trainer: See `trainer_of`.
        checkpoint: A complete checkpoint to continue from. If training had ended with it, its model is the result:
            transformers would do another step.
    """
    if checkpoint is None:
        trainer.train()
        return
    state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
    if not state.stateful_callbacks["TrainerControl"]["args"]["should_training_stop"]:
        trainer.train(resume_from_checkpoint=str(checkpoint))
        return
    trainer.state = state
    trainer._load_from_checkpoint(str(checkpoint))
    if trainer.args.load_best_model_at_end and state.best_global_step:
        state.best_model_checkpoint = str(
            checkpoint.with_name(f"checkpoint-{state.best_global_step}")
        )
        trainer._load_best_model()


def write_model(trainer: Trainer, path: Path) -> None:
    """Write the trained model, or its adapter, with the tokenizer.

    Raises:
        TrainingError: There is no room.
    """
    try:
        trainer.save_model(str(path))
        (path / TRAINING_ARGS_NAME).unlink(missing_ok=True)  # a pickle, of paths on this machine
    except _WRITING as error:
        raise TrainingError(
            f"Cannot write {str(path)!r}: {error}. Expected room for it; the checkpoints are whole. Make room, and go "
            "on with --resume last."
        ) from error
