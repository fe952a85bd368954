# SPDX-License-Identifier: Apache-2.0
"""Options of a training run: one frozen value, whose fields are flags and entries of a YAML file.

A field is named as transformers, trl or peft name it, where they do. Needs neither torch nor PyYAML.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

GENERATION, CLASSIFICATION = TASK_MODES = ("generation", "seq_classification")
CPU, CUDA, QAIC = DEVICES = ("cpu", "cuda", "qaic")
#: How the numbers of a forward pass are held; "auto" is float16 or bfloat16 on a device, and float32 on the CPU.
AUTOCAST = ("auto", "float16", "bfloat16", "none")
WHEN = ("epoch", "steps", "no")
#: Data sets whose columns and prompts are known.
FORMATS = ("alpaca", "grammar", "gsm8k", "imdb")
LAST = "last"


def option(section: str, text: str, default: Any = None, *, allowed: tuple[str, ...] = ()) -> Any:
    """Declare a field.

    Args:
        section: Section of the YAML file.
        text: Description for people.
        default: When it is left out.
        allowed: All values, if they are few.
    """
    facts = {"section": section, "help": text, "allowed": allowed}
    if isinstance(default, dict):
        return field(default_factory=lambda: MappingProxyType(default), metadata=facts)
    return field(default=default, metadata=facts)


@dataclass(frozen=True, kw_only=True)
class Config:
    """A training run.

    Raises:
        PlanError: Raised by `check`: every value that cannot be used.
    """

    model_name: str = option("model", "Hub id or folder of an unquantized checkpoint", "")
    revision: str | None = option("model", "branch, tag or commit of a Hub model")
    tokenizer_name: str | None = option("model", "folder of a tokenizer (default: the model's)")
    task_mode: str = option(
        "model",
        "training task: text generation or sequence classification",
        GENERATION,
        allowed=TASK_MODES,
    )
    use_peft: bool = option(
        "model", "train a LoRA adapter; otherwise all weights are trained", True
    )
    lora_r: int = option("peft_config", "LoRA rank", 8)
    lora_alpha: int = option("peft_config", "LoRA alpha: the update is scaled by alpha / rank", 16)
    lora_dropout: float = option("peft_config", "dropout probability of the LoRA layers", 0.1)
    target_modules: tuple[str, ...] = option(
        "peft_config",
        "comma-separated suffixes of the linear layers with an adapter; all-linear selects all except the output "
        "layer",
        ("all-linear",),
    )
    peft_options: Mapping[str, Any] = option(
        "peft_config",
        "further fields of peft's LoraConfig, as JSON: use_rslora, use_dora, rank_pattern, …",
        {},
    )
    from_peft_checkpoint: str | None = option("model", "folder of an adapter to continue training")

    data: str = option(
        "dataset", "JSON, JSONL, CSV or Parquet file, or FILE.py:FUNCTION, whose code is run", ""
    )
    validation_data: str | None = option("dataset", "validation data, in the same forms")
    data_options: Mapping[str, Any] = option(
        "dataset",
        "arguments of FILE.py:FUNCTION, as JSON, as for QEfficient's custom data sets",
        {},
    )
    collator: str | None = option(
        "dataset", "FILE.py:FUNCTION that takes the tokenizer and returns a data collator"
    )
    data_format: str | None = option("dataset", "format of the columns", allowed=FORMATS)
    prompt_template: str | None = option(
        "dataset", "template of the prompt, with column names in braces"
    )
    completion_template: str | None = option(
        "dataset", "template of the completion, with column names in braces"
    )
    text_column: str = option("dataset", "column of plain text", "text")
    label_column: str = option("dataset", "column of labels", "label")
    messages_column: str = option("dataset", "column of chats", "messages")
    split_ratio: float = option(
        "dataset", "share of the rows for training, if there is no validation file", 0.8
    )
    data_seed: int = option("dataset", "seed of the choice of validation rows", 42)
    max_samples: int | None = option("dataset", "maximum number of training rows")
    max_eval_samples: int | None = option("dataset", "maximum number of validation rows")
    max_length: int = option(
        "dataset",
        "maximum tokens of a row; longer rows are truncated; 0 for the model's maximum",
        512,
    )
    packing: bool = option("dataset", "pack several rows into one of maximum length", False)
    completion_only_loss: bool = option(
        "dataset", "compute the loss on completions only, not on prompts", True
    )

    output_dir: str = option("training", "output folder of the run", "")
    num_train_epochs: float = option("training", "number of epochs", 1.0)
    max_steps: int = option("training", "maximum number of optimizer steps; 0 for all", 0)
    per_device_train_batch_size: int = option("training", "training batch size per device", 1)
    per_device_eval_batch_size: int = option("training", "validation batch size per device", 1)
    gradient_accumulation_steps: int = option("training", "batches per optimizer step", 1)
    gradient_checkpointing: bool = option(
        "training", "recompute activations instead of storing them: slower, with less memory", False
    )
    max_grad_norm: float = option(
        "training", "maximum norm of gradients, for clipping; 0 for no clipping", 1.0
    )
    autocast: str = option("training", "data type of the forward pass", "auto", allowed=AUTOCAST)
    device: str = option(
        "training",
        "training device; auto selects a GPU if there is one",
        "auto",
        allowed=("auto", *DEVICES),
    )
    seed: int = option("training", "random seed of adapters, dropout and the order of rows", 42)
    eval_strategy: str = option("training", "when to validate", "epoch", allowed=WHEN)
    eval_steps: int = option("training", "steps between validations, for eval_strategy steps", 100)
    save_strategy: str = option("training", "when to write a checkpoint", "epoch", allowed=WHEN)
    save_steps: int = option("training", "steps between checkpoints, for save_strategy steps", 1000)
    save_total_limit: int = option(
        "training", "maximum number of checkpoints; the oldest are deleted first", 5
    )
    logging_steps: int = option("training", "steps between log lines", 1)
    group_by_length: bool = option("training", "batch rows of similar length together", False)
    dataloader_num_workers: int = option("training", "worker processes of the data loader", 0)
    ddp_backend: str | None = option(
        "training",
        "communication backend under torchrun (default: nccl; gloo on the CPU; qccl on qaic)",
    )
    ddp_timeout: int = option("training", "timeout of distributed operations, in seconds", 1800)
    merge: bool = option("training", "also write the model with the adapter merged", False)

    learning_rate: float = option("optimizers", "peak learning rate", 5e-5)
    weight_decay: float = option("optimizers", "weight decay of matrices", 0.01)
    optim: str = option("optimizers", "name of an optimizer of transformers", "adamw_torch")

    lr_scheduler_type: str = option(
        "scheduler",
        "scheduler of transformers, or step: multiplication by gamma after each epoch",
        "cosine",
    )
    warmup_ratio: float = option("scheduler", "share of the steps for warm-up", 0.1)
    gamma: float = option("scheduler", "factor of lr_scheduler_type step", 0.85)

    early_stopping_patience: int | None = option(
        "callbacks",
        "number of validations without a better loss before training stops with the best checkpoint",
    )
    early_stopping_threshold: float = option(
        "callbacks", "minimum improvement of the loss, in nats", 0.0
    )
    convergence_counter: int | None = option(
        "callbacks",
        "number of logged steps with a loss of at most convergence_loss before training stops",
    )
    convergence_loss: float = option("callbacks", "loss for convergence_counter, in nats", 1e-4)
    tensorboard: bool = option("callbacks", "also log for TensorBoard", False)
    plot: str | None = option("callbacks", "image file of a loss plot, such as loss.png")

    def problems(self) -> list[str]:
        """Return the problems of single values, and of combinations: a full sentence each."""
        problems = [
            f"There is no {name}; expected {text}. Give {flag(name)}."
            for name, text in (
                ("model_name", "a model to train"),
                ("data", "data to train on"),
                ("output_dir", "a folder for the run"),
            )
            if not getattr(self, name)
        ]
        for one in fields(self):
            value, allowed = getattr(self, one.name), one.metadata["allowed"]
            if allowed and value is not None and value not in allowed:
                problems.append(
                    f"{one.name} is {value!r}; expected one of {', '.join(allowed)}. Change {flag(one.name)}."
                )
        problems += [
            f"{name} is {getattr(self, name)!r}; expected {text}. Change {flag(name)}."
            for name, (right, text) in _RANGES.items()
            if (value := getattr(self, name)) is not None and not right(value)
        ]
        return problems + self._conflicts()

    def _conflicts(self) -> list[str]:
        problems = []
        if self.early_stopping_patience is not None and self.eval_strategy == "no":
            problems.append(
                "early_stopping_patience was given, and eval_strategy is 'no'; expected a validation loss to stop by. "
                "Change --eval-strategy."
            )
        if self.task_mode == CLASSIFICATION and self.packing:
            problems.append(
                "packing was given with task_mode 'seq_classification'; expected rows of their own, each with a label. "
                "Leave out --packing."
            )
        if self.merge and not self.use_peft:
            problems.append(
                "merge was given without an adapter; expected use_peft. Leave out --merge: the model is written whole."
            )
        if self.data_format and (self.prompt_template or self.completion_template):
            problems.append(
                f"data_format {self.data_format!r} was given with a template; expected one of the two. Leave out "
                "--data-format."
            )
        if self.prompt_template and not self.completion_template:
            problems.append(
                "prompt_template was given without completion_template; expected the answer's too. Give "
                "--completion-template."
            )
        return problems


_RANGES: Mapping[str, tuple[Any, str]] = {
    **dict.fromkeys(
        (
            "lora_r", "per_device_train_batch_size", "per_device_eval_batch_size",
            "gradient_accumulation_steps", "eval_steps", "save_steps", "save_total_limit", "logging_steps",
            "early_stopping_patience", "convergence_counter", "max_samples", "max_eval_samples", "ddp_timeout",
        ),
        (lambda value: value >= 1, "1 or more"),
    ),
    **dict.fromkeys(
        (
            "max_steps", "max_length", "max_grad_norm", "dataloader_num_workers", "weight_decay", "seed",
            "early_stopping_threshold",
        ),
        (lambda value: value >= 0, "0 or more"),
    ),
    **dict.fromkeys(
        ("num_train_epochs", "learning_rate", "gamma", "lora_alpha"),
        (lambda value: 0 < value < float("inf"), "more than 0"),
    ),
    **dict.fromkeys(("lora_dropout", "warmup_ratio"), (lambda value: 0 <= value < 1, "0 to below 1")),
    "split_ratio": (lambda value: 0 < value <= 1, "more than 0, and 1 at most"),
}  # fmt: skip


def flag(name: str) -> str:
    """Return the flag of a field."""
    return f"--{name.replace('_', '-')}"


def is_code(data: str) -> bool:
    """Whether data are named by a function, `FILE.py:FUNCTION`."""
    file, colon, function = data.rpartition(":")
    return bool(colon) and Path(file).suffix == ".py" and function.isidentifier()
