# SPDX-License-Identifier: Apache-2.0
"""The folder of a run: what made it, its log, and its checkpoints, each of which counts once it is whole.

A checkpoint is written by transformers, file by file. When all of them are on the disk, `complete.json` is written
beside them with their sizes; without it, or if a file is another size, a folder is no checkpoint.
"""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from qeff_zoo.disk.regular import read_regular, read_text
from qeff_zoo.disk.staging import remove, settle, write_durably
from qeff_zoo.errors import TrainingError
from qeff_zoo.finetuning.config import LAST

_COMPLETE, _RUN, _LOG, _CONFIG = "complete.json", "run.json", "log.jsonl", "config.yaml"
_CHECKPOINT = "checkpoint-"
_LOCK, _SCRATCH = ".lock", ".tokens"  # what a killed run may leave before it has begun
#: Of a configuration, what does not change a single number of what is trained.
_FREE = frozenset({"output_dir", "plot", "tensorboard", "save_total_limit", "merge"})


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run.

    Args:
        path: Path of the folder.
    """

    path: Path

    @property
    def log(self) -> Path:
        """One line of JSON for each step that was logged, and for each validation."""
        return self.path / _LOG

    @property
    def scratch(self) -> Path:
        """The tokens of the data, while a run is under way."""
        return self.path / _SCRATCH

    def checkpoint(self, step: int) -> Path:
        """Return where the checkpoint of a step is."""
        return self.path / f"{_CHECKPOINT}{step}"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from training into the folder.

        Raises:
            TrainingError: Another one does.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(self.path / _LOCK, timeout=0):
                yield
        except Timeout as error:
            raise TrainingError(
                f"Another process trains into {str(self.path)!r}. Expected a folder for each run. Wait for it, or "
                "change --output-dir."
            ) from error

    def tidy(self) -> None:
        """Remove what is left of a run that could not begin."""
        if self._holds_nothing():
            remove(self.path)

    def _holds_nothing(self) -> bool:
        """Whether a folder is absent, or has only what a run writes before it begins."""
        names = {path.name for path in self.path.iterdir()} if self.path.is_dir() else set()
        return names <= {_LOCK, _SCRATCH}

    # --- what made it ---

    def begin(self, made_by: Mapping[str, Any], config: str) -> None:
        """Note what makes the run, and begin an empty log."""
        write_durably(self.path / _CONFIG, config.encode())
        self.note(made_by)
        write_durably(self.log, b"")

    def note(self, made_by: Mapping[str, Any]) -> None:
        """Write down what makes the run, and what came of it."""
        text = json.dumps(made_by, indent=2, ensure_ascii=False)
        write_durably(self.path / _RUN, f"{text}\n".encode())

    def made_by(self) -> dict[str, Any] | None:
        """Return what made the run; None for a folder without one."""
        path = self.path / _RUN
        try:
            content = json.loads(read_regular(path))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise TrainingError(
                f"Cannot read {str(path)!r}: {error}. Expected what made the run. Change --output-dir."
            ) from error
        return dict(content)

    def require_new(self) -> None:
        """Refuse a folder that holds something.

        Raises:
            TrainingError: The folder has content.
        """
        whole = self.checkpoints()
        begun = self.made_by() or {}
        if begun and not whole and "result" not in begun:
            return  # it was killed before it had anything to go on from
        if self._holds_nothing():
            return
        raise TrainingError(
            f"{str(self.path)!r} is not empty"
            + (f"; its last checkpoint is {whole[-1].name!r}" if whole else "")
            + ". Expected a new folder, or a run to resume. "
            + ("Give --resume last, or change --output-dir." if whole else "Change --output-dir.")
        )

    def require_same(self, made_by: Mapping[str, Any]) -> None:
        """Refuse to resume a run with what would make another one.

        Raises:
            TrainingError: A choice, a digest or a version differs.
        """
        before = self.made_by() or {}
        different = [
            f"{name} was {old!r} and is {new!r}" for name, old, new in _differences(before, made_by)
        ]
        if different:
            raise TrainingError(
                f"Cannot resume {str(self.path)!r}: {'; '.join(different[:5])}. Expected what made it. Give the same "
                f"configuration, {str(self.path / _CONFIG)!r}, or another --output-dir with --from-peft-checkpoint."
            )

    # --- checkpoints ---

    def checkpoints(self) -> list[Path]:
        """Return all that are whole, by step."""
        steps = {}
        for path in self.path.glob(f"{_CHECKPOINT}*"):
            with suppress(ValueError):
                steps[int(path.name.removeprefix(_CHECKPOINT))] = path
        return [path for _, path in sorted(steps.items()) if is_whole(path)]

    def find(self, name: str) -> Path:
        """Return a checkpoint.

        Args:
            name: "last", its name or its path.

        Raises:
            TrainingError: There is none, or it is not whole.
        """
        whole = self.checkpoints()
        if name == LAST and whole:
            return whole[-1]
        path = next((one for one in (self.path / name, Path(name)) if one.is_dir()), None)
        if path and is_whole(path):
            return path
        there = ", ".join(one.name for one in whole) or "none"
        what = "was never finished" if path else "is not there"
        raise TrainingError(
            f"Cannot resume from {name!r} of {str(self.path)!r}: it {what}. Expected a whole checkpoint; there are: "
            f"{there}. Change --resume" + ("." if whole else ", or leave it out to begin anew.")
        )

    def complete(self, step: int, most: int, best: int | None) -> None:
        """Let a checkpoint count, and remove the oldest.

        Args:
            step: Step of the newest checkpoint.
            most: To keep.
            best: Step of another that is kept in any case.
        """
        folder = self.checkpoint(step)
        settle(folder)
        sizes = {
            path.relative_to(folder).as_posix(): path.stat().st_size
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        write_durably(folder / _COMPLETE, json.dumps(sizes, indent=2).encode())
        whole = self.checkpoints()
        kept = {self.checkpoint(step), *([self.checkpoint(best)] if best else [])}
        for path in [one for one in whole if one not in kept][: max(len(whole) - most, 0)]:
            (path / _COMPLETE).unlink()  # so that it never counts while half of it is gone
            remove(path)

    def sweep(self, after: int | None = None) -> None:
        """Remove folders that are no checkpoints, and those of steps that will be done again.

        Args:
            after: The step that is resumed from; None to leave those that are whole.
        """
        whole = self.checkpoints()
        for path in self.path.glob(f"{_CHECKPOINT}*"):
            step = path.name.removeprefix(_CHECKPOINT)
            if path not in whole or (after is not None and int(step) > after):
                (path / _COMPLETE).unlink(missing_ok=True)
                remove(path)

    # --- the log ---

    def record(self, entry: Mapping[str, Any]) -> None:
        """Append an entry to the log."""
        with self.log.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(dict(entry))}\n")

    def entries(self) -> list[dict[str, Any]]:
        """Return the log; a line that a kill cut short is none."""
        entries = []
        if self.log.is_file():
            for line in read_text(self.log).splitlines():
                with suppress(ValueError, RecursionError):
                    entries.append(json.loads(line))
        return entries

    def forget(self, after: int) -> None:
        """Drop the log entries of steps that will run again."""
        kept = [entry for entry in self.entries() if entry["step"] <= after]
        write_durably(self.log, "".join(f"{json.dumps(entry)}\n" for entry in kept).encode())


def is_whole(folder: Path) -> bool:
    """Whether all files of a checkpoint are present, with the sizes at its completion."""
    try:
        sizes = json.loads(read_regular(folder / _COMPLETE))
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


def is_of_run(folder: Path) -> bool:
    """Whether a folder is a checkpoint of a run, complete or not."""
    return folder.name.startswith(_CHECKPOINT) and (folder.parent / _RUN).is_file()


def perplexity(loss: float) -> float:
    """Return the perplexity of a mean loss in nats; infinite on overflow."""
    return math.exp(loss) if loss < 700 else math.inf


def _differences(
    before: Mapping[str, Any], now: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    for part in ("model", "data", "config", "device", "processes"):
        old, new = before.get(part), now.get(part)
        if not isinstance(old, Mapping) or not isinstance(new, Mapping):
            if old != new:
                yield part, old, new
            continue
        for name in sorted({*old, *new} - _FREE):
            if old.get(name) != new.get(name):
                yield name, old.get(name), new.get(name)
