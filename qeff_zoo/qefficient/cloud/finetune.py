# SPDX-License-Identifier: Apache-2.0
"""`qeff-cloud-finetune`: a model and a data set in, the folder of the trained adapter or model out."""

import argparse
import importlib.util
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from qeff_zoo.cli.finetuning import train
from qeff_zoo.errors import PlanError
from qeff_zoo.finetuning.config import CPU, DEVICES, FORMATS, QAIC, TASK_MODES
from qeff_zoo.finetuning.run_folder import is_of_run

from . import flags

_CUSTOM = "custom"
#: Where QEfficient looks for a data set; the others are on the Hub, and named by --data here.
_FILES = {"alpaca": "dataset/alpaca_data.json", "grammar": "datasets_grammar/grammar_train.csv"}
_ADAPTER = "adapter"
_HELD_OUT = 0.05  # of a data set without a file to validate on


def main(argv: Sequence[str] | str | None = None, **given: Any) -> int:
    """Run the command and return its exit code.

    Args:
        argv: Command line; None for that of the process. In QEfficient's Python function, the model's name.
        **given: Arguments of QEfficient's Python function, which have the names of the flags.

    Raises:
        ZooError: The function fails.
    """
    return flags.run(lambda arguments, _: _finetune(arguments), _parser(), argv, given)


def _finetune(arguments: argparse.Namespace) -> None:
    from qeff_zoo.finetuning.config_files import entries_of, read

    if problems := _problems(arguments):
        raise PlanError(problems)
    device = (arguments.device or _device()).partition(":")[0]
    given = {**_choices(arguments, device), **_data(arguments), **_going_on(arguments)}
    if arguments.peft_config_file:
        given |= dict(entries_of(Path(arguments.peft_config_file)))
    arguments.resume = given.pop("resume", None)
    train(read(None, given), arguments)
    _name_as_qefficient(Path(arguments.output_dir), arguments.num_epochs)


def _name_as_qefficient(output_dir: Path, epochs: int) -> None:
    """Give the adapter of a run the name of QEfficient's folder after the last epoch, too."""
    folder = output_dir / f"complete_epoch_{epochs}"
    if (output_dir / _ADAPTER).is_dir() and not folder.exists():
        folder.symlink_to(_ADAPTER)


class TrainConfig(SimpleNamespace):
    """Arguments of `main`, by QEfficient's names and with its defaults.

    Args:
        **given: Values that differ from the defaults.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**{**vars(_parser().parse_args([])), **given})


def _device() -> str:
    """Return a card if torch supports cards, else the CPU."""
    if importlib.util.find_spec("torch_qaic") is not None:
        return QAIC
    print("qeff-zoo: There is no torch_qaic here: training on the CPU.", file=sys.stderr)
    return CPU


def _problems(arguments: argparse.Namespace) -> list[str]:
    """Return what QEfficient takes and is not done here, a sentence each."""
    problems = [
        f"--{name} was given; expected none: {reason}. Leave it out."
        for name, reason in (
            (
                "enable_pp",
                "a model is trained on one device, or whole on each of several (torchrun)",
            ),
            ("use_profiler", "torch_qaic's profiler is not used"),
            ("opByOpVerifier", "torch_qaic's verifier is not used"),
        )
        if getattr(arguments, name)
    ]
    if not arguments.save_model:
        problems.append(
            "--save_model is false; expected true: what was trained is written in any case. Leave it out."
        )
    if not arguments.grad_scaler and arguments.use_autocast:
        problems.append(
            "--grad_scaler is false; expected true: gradients are scaled wherever float16 needs it. Leave it out."
        )
    if arguments.enable_ddp and "WORLD_SIZE" not in os.environ:
        problems.append(
            "--enable_ddp was given to one process; expected several. Begin the command with "
            "`torchrun --nproc-per-node N -m qeff_zoo.qefficient.cloud.finetune`."
        )
    if (arguments.dataset == _CUSTOM) != bool(arguments.custom_dataset_config):
        problems.append(
            f"--dataset is {arguments.dataset!r} and --custom_dataset_config {arguments.custom_dataset_config!r}; "
            "expected the file with custom_dataset alone. Give both, or neither."
        )
    return problems


def _choices(arguments: argparse.Namespace, device: str) -> dict[str, Any]:
    """Translate all but the data."""
    rounded = "bfloat16" if device == CPU else "auto"
    steps = math.ceil(arguments.max_train_step / arguments.gradient_accumulation_steps)
    return {
        "model_name": arguments.model_name,
        "tokenizer_name": arguments.tokenizer_name,
        "task_mode": arguments.task_mode,
        "use_peft": arguments.use_peft,
        "lora_r": 8,
        "lora_alpha": 32,
        "lora_dropout": 0.05,
        "target_modules": ("q_proj", "v_proj"),
        "max_length": arguments.context_length or 0,
        "packing": arguments.batching_strategy == "packing",
        "output_dir": arguments.output_dir,
        "num_train_epochs": arguments.num_epochs,
        "max_steps": steps,
        "per_device_train_batch_size": arguments.train_batch_size,
        "per_device_eval_batch_size": arguments.val_batch_size,
        "max_eval_samples": arguments.max_eval_step * arguments.val_batch_size or None,
        "gradient_accumulation_steps": arguments.gradient_accumulation_steps,
        "gradient_checkpointing": arguments.gradient_checkpointing,
        "max_grad_norm": 0,
        "autocast": rounded if arguments.use_autocast else "none",
        "device": device,
        "seed": arguments.seed,
        "eval_strategy": "epoch" if arguments.run_validation else "no",
        "save_strategy": "steps",
        "save_steps": arguments.intermediate_step_save,
        "group_by_length": arguments.enable_ddp and arguments.enable_sorting_for_ddp,
        "dataloader_num_workers": arguments.num_workers_dataloader,
        "learning_rate": arguments.lr,
        "weight_decay": arguments.weight_decay,
        "lr_scheduler_type": "step",
        "gamma": arguments.gamma,
        "convergence_counter": arguments.convergence_counter,
        "convergence_loss": arguments.convergence_loss,
    }


def _data(arguments: argparse.Namespace) -> dict[str, Any]:
    """Translate the data set."""
    if arguments.dataset != _CUSTOM:
        return {
            "data_format": arguments.dataset,
            "data": arguments.data or _FILES.get(arguments.dataset),
            "validation_data": arguments.validation_data,
            "split_ratio": 1 - _HELD_OUT,
        }
    path = arguments.custom_dataset_config
    try:
        options = json.loads(Path(path).read_bytes())
        function = options.pop("preproc_file")
    except (OSError, ValueError, KeyError, AttributeError, RecursionError) as error:
        raise PlanError(
            [
                f"Cannot read {path!r}: {error}. Expected a JSON object with 'preproc_file', as FILE.py:FUNCTION. "
                "Correct it, or the path."
            ]
        ) from error
    collator = options.pop("collate_file", None)
    return {
        "data": function,
        "validation_data": function if arguments.run_validation else None,
        "data_options": {"train_split": "train", "test_split": "validation", **options},
        "collator": collator,
    }


def _going_on(arguments: argparse.Namespace) -> dict[str, Any]:
    """Resume the run that a checkpoint is of, or begin another one with its adapter."""
    path = arguments.from_peft_checkpoint
    if not path:
        return {}
    folder = Path(path)
    if is_of_run(folder) and folder.parent.resolve() == Path(arguments.output_dir).resolve():
        return {"resume": folder.name}
    return {"from_peft_checkpoint": path}


def _switch(text: str) -> bool:
    if text.lower() in ("yes", "true", "t", "y", "1"):
        return True
    if text.lower() in ("no", "false", "f", "n", "0"):
        return False
    raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")


def _dataset(text: str) -> str:
    name = text.removesuffix("_dataset")
    if name not in (*FORMATS, _CUSTOM):
        names = ", ".join(f"{one}_dataset" for one in (*FORMATS, _CUSTOM))
        raise argparse.ArgumentTypeError(f"{text!r} is none of {names}")
    return name


def _device_name(text: str) -> str:
    if text.partition(":")[0] not in DEVICES:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(DEVICES)}")
    return text


def _parser() -> argparse.ArgumentParser:
    parser = flags.command("finetune", "Train an adapter of a model, or all its weights.")
    _add_model(parser)
    _add_data(parser)
    numbers: tuple[tuple[str, Any, str], ...] = (
        ("val_batch_size", 1, "rows that a device validates at a time"),
        ("gradient_accumulation_steps", 4, "batches of a step"),
        ("num_epochs", 1, "times that all rows are seen"),
        ("max_train_step", 0, "batches at most; 0 for all"),
        ("max_eval_step", 0, "batches to validate on at most; 0 for all"),
        ("num_workers_dataloader", 1, "processes that read rows"),
        ("lr", 3e-4, "learning rate"),
        ("weight_decay", 0.0, "of matrices"),
        ("gamma", 0.85, "the learning rate is multiplied by it after each epoch"),
        ("seed", 42, "of adapters, dropout and the order of rows"),
        ("intermediate_step_save", 1000, "steps between checkpoints"),
        ("convergence_counter", 5, "stop after so many steps with a small loss"),
        ("convergence_loss", 1e-4, "what a small loss is"),
        ("num_pp_stages", 1, "has no meaning without --enable_pp"),
    )
    text = "rows that a device takes at a time (default: 1)"
    flags.add(
        parser,
        "train_batch_size",
        "batch_size_training",
        type=int,
        default=1,
        metavar="N",
        help=text,
    )
    for name, default, text in numbers:
        kind = type(default)
        shown = f"{text} (default: {default:g})"
        flags.add(parser, name, type=kind, default=default, metavar="N", help=shown)
    switches = (
        ("run_validation", True, "measure the loss on rows that are not trained on"),
        ("use_autocast", True, "compute the forward pass in 16 bits"),
        ("grad_scaler", True, "scale gradients where float16 needs it"),
        ("save_model", True, "write what was trained"),
        ("save_metrics", True, "write the log, as always here"),
        ("enable_sorting_for_ddp", True, "rows of like length into one batch, with --enable_ddp"),
        ("dump_logs", True, "write the log, as always here"),
    )
    for name, switch, text in switches:
        facts: dict[str, Any] = {"type": _switch, "nargs": "?", "const": True, "default": switch}
        flags.add(parser, name, **facts, metavar="BOOL", help=f"{text} (default: {switch})")
    for name, text in (
        ("gradient_checkpointing", "compute activations twice, and do not keep them"),
        ("enable_ddp", "one of several processes, begun by torchrun"),
        ("enable_pp", "refused: a model is not cut over devices"),
        ("use_profiler", "refused"),
        ("opByOpVerifier", "refused"),
    ):
        flags.add(parser, name, action="store_true", help=text)
    flags.add(parser, "log_level", metavar="LEVEL", help="without a meaning here")
    text = "where to train: qaic, cpu or cuda (default: qaic where torch_qaic is, else cpu)"
    flags.add(parser, "device", type=_device_name, metavar="NAME", help=text)
    flags.add(parser, "quiet", "q", action="store_true", help="show no progress")
    return parser


def _add_model(parser: argparse.ArgumentParser) -> None:
    text = "Hub id or folder of a checkpoint (default: meta-llama/Llama-3.2-1B)"
    flags.add(parser, "model_name", default="meta-llama/Llama-3.2-1B", help=text)
    flags.add(parser, "tokenizer_name", help="folder of another tokenizer than the model's")
    text = "learn to continue text, or to label it (default: generation)"
    flags.add(parser, "task_mode", choices=TASK_MODES, default=TASK_MODES[0], help=text)
    facts: dict[str, Any] = {"type": _switch, "nargs": "?", "const": True, "default": True}
    text = "train an adapter; without it, every weight (default: True)"
    flags.add(parser, "use_peft", **facts, metavar="BOOL", help=text)
    flags.add(parser, "peft_method", choices=("lora",), default="lora", help="kind of the adapter")
    text = "YAML or JSON file of peft's LoraConfig"
    flags.add(parser, "peft_config_file", metavar="FILE", help=text)
    text = "an adapter to go on from; of a checkpoint in --output_dir, the run is resumed"
    flags.add(parser, "from_peft_checkpoint", metavar="DIR", help=text)
    text = "folder of the run (default: training_results)"
    flags.add(parser, "output_dir", default="training_results", metavar="DIR", help=text)


def _add_data(parser: argparse.ArgumentParser) -> None:
    text = "one of alpaca_dataset, grammar_dataset, gsm8k_dataset, imdb_dataset, custom_dataset"
    flags.add(parser, "dataset", type=_dataset, default=FORMATS[0], metavar="NAME", help=text)
    text = f"its file (default: {', '.join(_FILES.values())})"
    flags.add(parser, "data", metavar="FILE", help=text)
    text = f"file to validate on (default: {_HELD_OUT:.0%}, drawn from --data)".replace("%", "%%")
    flags.add(parser, "validation_data", metavar="FILE", help=text)
    text = "of custom_dataset: JSON that names the function which gives the rows, FILE.py:FUNCTION, and is given to it"
    flags.add(parser, "custom_dataset_config", metavar="FILE", help=text)
    text = "tokens of a row at most (default: as many as the model reads)"
    flags.add(parser, "context_length", type=int, metavar="N", help=text)
    text = "packing puts several rows into one (default: padding)"
    kinds = ("padding", "packing")
    flags.add(parser, "batching_strategy", choices=kinds, default=kinds[0], help=text)


flags.sign(main, _parser())

if __name__ == "__main__":
    sys.exit(main())
