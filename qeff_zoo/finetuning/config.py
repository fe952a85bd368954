# SPDX-License-Identifier: Apache-2.0
"""What may be chosen of a training run: one frozen value, whose fields are flags and entries of a YAML file.

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
        PlanError: By `check`: every value that cannot be used.
    """

    model_name: str = option("model", "Hub id or folder of a checkpoint of floats", "")
    revision: str | None = option("model", "branch, tag or commit of a Hub model")
    tokenizer_name: str | None = option("model", "folder of another tokenizer than the model's")
    task_mode: str = option(
        "model", "learn to continue text, or to label it", GENERATION, allowed=TASK_MODES
    )
    use_peft: bool = option("model", "train an adapter (LoRA); without it, every weight", True)
    lora_r: int = option("peft_config", "rank of the adapter", 8)
    lora_alpha: int = option("peft_config", "its product is scaled by alpha / rank", 16)
    lora_dropout: float = option("peft_config", "share of its inputs that are dropped", 0.1)
    target_modules: tuple[str, ...] = option(
        "peft_config",
        "linear layers that get one, by the ends of their names, with commas between; all-linear is every one "
        "but the output matrix",
        ("all-linear",),
    )
    peft_options: Mapping[str, Any] = option(
        "peft_config",
        "more of peft's LoraConfig, as JSON: use_rslora, use_dora, rank_pattern, …",
        {},
    )
    from_peft_checkpoint: str | None = option("model", "folder of an adapter to go on from")

    data: str = option(
        "dataset", "JSON, JSONL, CSV or Parquet file, or FILE.py:FUNCTION, which is then run", ""
    )
    validation_data: str | None = option("dataset", "the same, to validate on")
    data_options: Mapping[str, Any] = option(
        "dataset", "given to FILE.py:FUNCTION as QEfficient's custom data sets are, as JSON", {}
    )
    collator: str | None = option(
        "dataset", "FILE.py:FUNCTION that is given the tokenizer, and returns what makes batches"
    )
    data_format: str | None = option("dataset", "what the columns mean", allowed=FORMATS)
    prompt_template: str | None = option("dataset", "the prompt, with columns in braces")
    completion_template: str | None = option("dataset", "the answer, with columns in braces")
    text_column: str = option("dataset", "column of plain text", "text")
    label_column: str = option("dataset", "column of labels", "label")
    messages_column: str = option("dataset", "column of chats", "messages")
    split_ratio: float = option(
        "dataset", "share of the rows to train on, where there is no validation file", 0.8
    )
    data_seed: int = option("dataset", "draws the rows to validate on", 42)
    max_samples: int | None = option("dataset", "rows to train on at most")
    max_eval_samples: int | None = option("dataset", "rows to validate on at most")
    max_length: int = option(
        "dataset",
        "tokens of a row at most; what is longer is cut; 0 for as many as the model reads",
        512,
    )
    packing: bool = option("dataset", "put several rows into one of full length", False)
    completion_only_loss: bool = option("dataset", "learn answers alone, not prompts", True)

    output_dir: str = option("training", "folder of the run", "")
    num_train_epochs: float = option("training", "times that all rows are seen", 1.0)
    max_steps: int = option("training", "steps of the optimizer at most; 0 for all", 0)
    per_device_train_batch_size: int = option("training", "rows that a device takes at a time", 1)
    per_device_eval_batch_size: int = option("training", "the same, when it validates", 1)
    gradient_accumulation_steps: int = option("training", "batches of a step", 1)
    gradient_checkpointing: bool = option(
        "training", "compute activations twice, and do not keep them: slower, in less memory", False
    )
    max_grad_norm: float = option(
        "training", "gradients are scaled down to this norm; 0 for never", 1.0
    )
    autocast: str = option("training", "numbers of the forward pass", "auto", allowed=AUTOCAST)
    device: str = option(
        "training",
        "where to train; auto is a GPU if there is one",
        "auto",
        allowed=("auto", *DEVICES),
    )
    seed: int = option("training", "of adapters, dropout and the order of rows", 42)
    eval_strategy: str = option("training", "when to validate", "epoch", allowed=WHEN)
    eval_steps: int = option("training", "steps between, with eval_strategy steps", 100)
    save_strategy: str = option("training", "when to write a checkpoint", "epoch", allowed=WHEN)
    save_steps: int = option("training", "steps between, with save_strategy steps", 1000)
    save_total_limit: int = option("training", "checkpoints to keep; the oldest go first", 5)
    logging_steps: int = option("training", "steps between two lines of the log", 1)
    group_by_length: bool = option("training", "rows of like length into one batch", False)
    dataloader_num_workers: int = option("training", "processes that read rows", 0)
    ddp_backend: str | None = option(
        "training", "of torchrun (default: nccl, gloo on the CPU, qccl on qaic)"
    )
    ddp_timeout: int = option("training", "seconds that a process waits for the others", 1800)
    merge: bool = option("training", "also write the model with its adapter merged in", False)

    learning_rate: float = option("optimizers", "at its highest", 5e-5)
    weight_decay: float = option("optimizers", "of matrices", 0.01)
    optim: str = option("optimizers", "one of transformers' optimizers", "adamw_torch")

    lr_scheduler_type: str = option(
        "scheduler", "one of transformers', or step: times gamma after each epoch", "cosine"
    )
    warmup_ratio: float = option("scheduler", "share of the steps until the highest rate", 0.1)
    gamma: float = option("scheduler", "of lr_scheduler_type step", 0.85)

    early_stopping_patience: int | None = option(
        "callbacks", "stop after so many validations without a better loss, and keep the best"
    )
    early_stopping_threshold: float = option("callbacks", "what counts as better, nats", 0.0)
    convergence_counter: int | None = option(
        "callbacks", "stop after so many logged steps with a loss of convergence_loss or less"
    )
    convergence_loss: float = option("callbacks", "see convergence_counter, nats", 1e-4)
    tensorboard: bool = option("callbacks", "also log for TensorBoard", False)
    plot: str | None = option("callbacks", "image to draw the loss into, such as loss.png")

    def problems(self) -> list[str]:
        """Return what is wrong with single values, and with some together: a full sentence each."""
        found = [
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
                found.append(
                    f"{one.name} is {value!r}; expected one of {', '.join(allowed)}. Change {flag(one.name)}."
                )
        found += [
            f"{name} is {getattr(self, name)!r}; expected {text}. Change {flag(name)}."
            for name, (right, text) in _RANGES.items()
            if (value := getattr(self, name)) is not None and not right(value)
        ]
        return found + self._conflicts()

    def _conflicts(self) -> list[str]:
        found = []
        if self.early_stopping_patience is not None and self.eval_strategy == "no":
            found.append(
                "early_stopping_patience was given, and eval_strategy is 'no'; expected a validation loss to stop by. "
                "Change --eval-strategy."
            )
        if self.task_mode == CLASSIFICATION and self.packing:
            found.append(
                "packing was given with task_mode 'seq_classification'; expected rows of their own, each with a label. "
                "Leave out --packing."
            )
        if self.merge and not self.use_peft:
            found.append(
                "merge was given without an adapter; expected use_peft. Leave out --merge: the model is written whole."
            )
        if self.data_format and (self.prompt_template or self.completion_template):
            found.append(
                f"data_format {self.data_format!r} was given with a template; expected one of the two. Leave out "
                "--data-format."
            )
        if self.prompt_template and not self.completion_template:
            found.append(
                "prompt_template was given without completion_template; expected the answer's too. Give "
                "--completion-template."
            )
        return found


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
