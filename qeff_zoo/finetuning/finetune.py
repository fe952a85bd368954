# SPDX-License-Identifier: Apache-2.0
"""Behind `qeff-zoo finetune`: a configuration in, the folder of a run out, with an adapter or a model in it."""

import errno
import json
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasets
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.integrations.integration_utils import TensorBoardCallback
from transformers.utils import logging

from qeff_zoo.checkpoint.opening import Checkpoint
from qeff_zoo.disk.plot_files import require_drawable
from qeff_zoo.disk.regular import read_regular
from qeff_zoo.disk.room import free_bytes
from qeff_zoo.disk.staging import publish, remove, staged_beside, write_durably
from qeff_zoo.errors import PlanError, TrainingError
from qeff_zoo.finetuning.callbacks import Converged, Log
from qeff_zoo.finetuning.config import CLASSIFICATION, Config
from qeff_zoo.finetuning.config_files import as_dict, as_yaml
from qeff_zoo.finetuning.devices import Device
from qeff_zoo.finetuning.run_folder import RunFolder
from qeff_zoo.finetuning.tokens import Reader, classes
from qeff_zoo.terminal.progress import Reporter, Silent
from qeff_zoo.versions import installed

from . import devices, models, plots, rows, trainers

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MADE_BY = "made_by.json"
ADAPTER, MODEL, MERGED = "adapter", "model", "merged"
_VERSIONS = (
    "qeff-zoo", "torch", "transformers", "trl", "peft", "datasets", "accelerate", "tokenizers", "safetensors",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Finetuned:
    """What came of a run.

    Args:
        folder: Folder of the run.
        path: The adapter's folder, or that of the model whose weights were all trained.
        merged: Folder of the model with its adapter merged; None unless requested.
        steps: Total number of optimizer steps.
        seconds: Training time since it began or resumed.
        train: Counts of the rows, see `qeff_zoo.finetuning.tokens.Counts`.
        validation: The same.
        first: Loss and perplexity on the rows to validate on before training; empty without any.
        last: The same at the end, or where the kept checkpoint was written.
    """

    folder: Path
    path: Path
    merged: Path | None
    steps: int
    seconds: float
    train: Mapping[str, Any]
    validation: Mapping[str, Any]
    first: Mapping[str, float]
    last: Mapping[str, float]

    def as_dict(self) -> dict[str, Any]:
        """Return the answer for a program."""
        paths = {name: getattr(self, name) for name in ("folder", "path", "merged")}
        folders = {name: None if path is None else str(path) for name, path in paths.items()}
        return {**vars(self), **folders}


def finetune(
    config: Config, *, resume: str | None = None, reporter: Reporter | None = None
) -> Finetuned | None:
    """Train a model, or go on training it.

    Args:
        config: Config of the run.
        resume: A checkpoint of the run's folder: "last", its name or its path; None to begin.
        reporter: Shows progress.

    Returns:
        What came of it; None in the processes of torchrun that are not the first.

    Raises:
        PlanError: Choices conflict.
        CheckpointError: The model cannot be used.
        TrainingError: The data, the device or the folder will not do.

    Example:
        >>> result = finetune(Config(model_name="org/name", data="chats.jsonl", output_dir="run"))
        >>> result.path
        PosixPath('run/adapter')
    """
    if problems := config.problems():
        raise PlanError(problems)
    device = devices.find(config)
    rows.check(config)
    if config.plot:
        require_drawable(Path(config.plot))
    checkpoint = models.open_base(config)
    config = models.with_length(config, checkpoint)
    tokenizer = models.read_tokenizer(config, checkpoint)
    run = _Run(config, device, checkpoint, tokenizer, reporter or Silent())
    with _quiet():
        return run.do(resume)


@dataclass
class _Run:
    """A run, step by step."""

    config: Config
    device: Device
    checkpoint: Checkpoint
    tokenizer: "PreTrainedTokenizerBase"
    reporter: Reporter

    def __post_init__(self) -> None:
        self.folder = RunFolder(Path(self.config.output_dir))
        self.scratch = self.folder.scratch

    def do(self, resume: str | None) -> Finetuned | None:
        """Train, as the only process in its folder; of several of torchrun, the first one holds it."""
        args = trainers.arguments(self.config, self.device, resumed=resume is not None)
        devices.place(args, self.device, self.config.ddp_backend)
        if args.process_index:
            return self._train(args, resume)
        try:
            with self.folder.held():
                try:
                    return self._train(args, resume)
                except OSError as error:
                    if error.errno not in _FULL:
                        raise
                    raise TrainingError(
                        f"Cannot write into {str(self.folder.path)!r}: {error}. Expected room for the tokens of the "
                        "data, and for what is trained. Make room, or change --output-dir."
                    ) from error
                finally:
                    remove(self.scratch)
        finally:
            self.folder.tidy()

    def _train(self, args: TrainingArguments, resume: str | None) -> Finetuned | None:
        checkpoint = self.folder.find(resume) if resume else None
        with args.main_process_first(local=False):
            if args.process_index == 0:
                self._prepare(resume)
        made_by = json.loads(read_regular(self.scratch / _MADE_BY))
        self.checkpoint.fetch()
        model = models.load(
            self.config, self.checkpoint, self.tokenizer, self.device, made_by["data"]["labels"]
        )
        self._require_room(model)
        trainer = trainers.trainer_of(
            self.config, self.folder, args, model, self.tokenizer, self._data(made_by)
        )
        devices.round_on_card(trainer, self.device)
        for callback in self._callbacks(first=args.process_index == 0):
            trainer.add_callback(callback)
        if args.process_index == 0:
            self._begin(made_by, checkpoint)
        trainer.accelerator.wait_for_everyone()
        begun = time.perf_counter()
        trainers.train(trainer, checkpoint)
        seconds = round(time.perf_counter() - begun, 3)
        trainer.accelerator.wait_for_everyone()
        return None if args.process_index else self._finish(trainer, made_by, seconds)

    # --- before ---

    def _prepare(self, resume: str | None) -> None:
        """Turn rows into tokens, and write down what makes the run."""
        if not resume:
            self.folder.require_new()
        remove(self.scratch)
        self.scratch.mkdir(parents=True)
        sources = rows.load(self.config, self.scratch / "read", self.tokenizer)
        parts = {rows.TRAIN: sources.train}
        if sources.validation:
            parts[rows.VALIDATION] = sources.validation
        labels: list[str] = []
        if self.config.task_mode == CLASSIFICATION:
            labels = classes([*parts.values()], self.config.label_column)
        reader = Reader(self.config, self.tokenizer, labels)
        counts = {
            name: reader.write(part, self._tokens(name)).as_dict() for name, part in parts.items()
        }
        remove(self.scratch / "read")
        made_by = {
            "model": {
                "name": self.checkpoint.name,
                "revision": self.checkpoint.revision,
                "weights": self.checkpoint.weights_digest(),
            },
            "data": {"files": dict(sources.digests), "labels": labels, **counts},
            "config": as_dict(self.config),
            "device": {"kind": self.device.kind, "autocast": str(self.device.autocast)},
            "processes": self.device.processes,
            "versions": {name: installed(name) for name in _VERSIONS},
        }
        if resume:
            self.folder.require_same(made_by)
        write_durably(self.scratch / _MADE_BY, json.dumps(made_by).encode())

    def _tokens(self, part: str) -> Path:
        return self.scratch / f"{part}.arrow"

    def _data(self, made_by: Mapping[str, Any]) -> tuple[datasets.Dataset, datasets.Dataset | None]:
        parts = [
            datasets.Dataset.from_file(str(self._tokens(name))) if name in made_by["data"] else None
            for name in (rows.TRAIN, rows.VALIDATION)
        ]
        assert parts[0] is not None
        return parts[0], parts[1]

    def _require_room(self, model: "PreTrainedModel | PeftModel") -> None:
        needed, free = 2 * models.checkpoint_bytes(model), free_bytes(self.folder.path)
        if needed > free:
            raise TrainingError(
                f"{str(self.folder.path)!r} has {free / 1e9:,.1f} GB free, and two checkpoints take "
                f"{needed / 1e9:,.1f} GB. Expected room for them: one is whole while the next is written. Make room, "
                "or change --output-dir."
            )

    def _callbacks(self, *, first: bool) -> list[TrainerCallback]:
        config = self.config
        callbacks: list[TrainerCallback] = [Log(self.folder, self.reporter)]
        if config.convergence_counter is not None:
            callbacks.append(Converged(config.convergence_loss, config.convergence_counter))
        if config.early_stopping_patience is not None:
            callbacks.append(
                EarlyStoppingCallback(
                    config.early_stopping_patience, config.early_stopping_threshold
                )
            )
        if config.tensorboard and first:
            from tensorboardX import SummaryWriter

            callbacks.append(
                TensorBoardCallback(SummaryWriter(str(self.folder.path / "tensorboard")))
            )
        return callbacks

    def _begin(self, made_by: Mapping[str, Any], checkpoint: Path | None) -> None:
        if checkpoint is None:
            self.folder.sweep()
            self.folder.begin(made_by, as_yaml(self.config))
            return
        step = int(json.loads(read_regular(checkpoint / "trainer_state.json"))["global_step"])
        self.folder.sweep(after=step)
        self.folder.forget(after=step)

    # --- after ---

    def _finish(self, trainer: Trainer, made_by: dict[str, Any], seconds: float) -> Finetuned:
        """Write the trained weights, and return the result."""
        path = self.folder.path / (ADAPTER if self.config.use_peft else MODEL)
        with _appearing(path) as folder:
            trainers.write_model(trainer, folder)
            models.name_base(folder, self.checkpoint)
        merged = None
        if self.config.merge:
            merged = self.folder.path / MERGED
            with _appearing(merged) as folder:
                models.merge(trainer.model, folder)
                self.tokenizer.save_pretrained(folder)
        validated = [entry for entry in self.folder.entries() if "eval_loss" in entry]
        best = trainer.state.best_global_step if trainer.args.load_best_model_at_end else None
        last = [one for one in validated if best in (None, one["step"])]
        result = Finetuned(
            folder=self.folder.path,
            path=path,
            merged=merged,
            steps=trainer.state.global_step,
            seconds=seconds,
            train=made_by["data"][rows.TRAIN],
            validation=made_by["data"].get(rows.VALIDATION, {}),
            first=validated[0] if validated else {},
            last=last[-1] if last else {},
        )
        if self.config.plot:
            title = f"{self.checkpoint.name} on {Path(self.config.data).name}"
            plots.draw(self.folder.entries(), Path(self.config.plot), title)
        self.folder.note({**made_by, "result": result.as_dict()})
        return result


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence libraries' messages and progress bars that the user cannot act on."""
    shown = logging.is_progress_bar_enabled(), datasets.are_progress_bars_disabled()
    logging.disable_progress_bar()
    datasets.disable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", ".*gradient_checkpointing.* is deprecated", FutureWarning
            )
            yield
    finally:
        if shown[0]:
            logging.enable_progress_bar()
        if not shown[1]:
            datasets.enable_progress_bars()


@contextmanager
def _appearing(path: Path) -> Iterator[Path]:
    """Yield a folder that takes its name when it is whole."""
    with staged_beside(path) as folder:
        yield folder
        publish(folder, path, path.parent, lambda: False)
