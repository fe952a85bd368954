#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Damage a package in many ways, and show which damage validation notices: the test of the test.

    python scripts/package_faults.py PACKAGE CHECKPOINT [--json FILE] [--only WORD] [--title NAME]

PACKAGE is a decoder for target `ort` with integer weights. Its graph or a file is damaged in a copy, or the calls that
the runtime makes. The reference is asked once. A fault of a graph or of calls costs the stages of the package until
one notices it; a fault of a file costs one comparison. Each fault must change something, and an error of a damaged
package is no notice. Exits with 1 if a fault is not noticed.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx_ir as ir
from package_damage import calls, files, graphs

from qeff_zoo.checkpoint.opening import Checkpoint
from qeff_zoo.package import Package
from qeff_zoo.pipeline.checks import source_of
from qeff_zoo.runtime.sizes import DecoderSizes
from qeff_zoo.validation import ladder
from qeff_zoo.validation.content import stored_weights
from qeff_zoo.validation.judgement.parity import Check
from qeff_zoo.validation.reference import stored_weights as reference_weights
from qeff_zoo.validation.reference.answers import Reference
from qeff_zoo.validation.reference.loading import load_model
from qeff_zoo.validation.trial.package_runner import Trial, try_package

_LEVEL = "tiny"
#: Stages of few tokens, in turn; those that are left run if these notice nothing.
_SHORT = (("prefill",), ("padded_batch", "decode", "every_slot"))
_MOST = 1e9  # in place of infinity, which JSON lacks
_ERROR = "max_relative_error"


@dataclass(frozen=True, kw_only=True)
class Result:
    """Outcome of one fault.

    Args:
        fault: In words.
        kind: "graph", "calls", "weights" or "text"; "" for no fault.
        noticed: Whether a check failed.
        times: Largest error of the stages that ran, or of the stored weights, in units of what is allowed, or another
            measure beyond its threshold; None if something exact differs.
        by: Stages, or exact comparisons, that noticed it.
    """

    fault: str
    kind: str
    noticed: bool
    times: float | None
    by: list[str]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault that can be applied.

    Args:
        words: The fault.
        kind: See `Result`.
        applied: Applies it for a while: yields the damaged package and the number of changes so far.
    """

    words: str
    kind: str
    applied: Callable[[], Any]


# --- applying them ----------------------------------------------------------------------------------


def faults_of(package: Package) -> list[Fault]:
    """Return all faults that fit a package."""
    config = json.loads((package.path / "config.json").read_bytes())
    config = config.get("text_config", config)
    (program,) = package.programs
    names = set(ir.load(package.path / program.path).graph.initializers)
    stored, _ = files.header_of(package.path / files.WEIGHTS)
    slots = DecoderSizes.read(program.specializations).rows > 4
    of_calls = {**calls.CALL_FAULTS, **(calls.SLOT_FAULTS if slots else {})}
    damages: dict[str, Mapping[str, files.FileDamage]] = {
        "graph": {
            words: _of_graph(program.path, damage)
            for words, damage in graphs.graph_faults(config, names).items()
        },
        "weights": files.weight_faults(stored, config),
        "text": files.text_faults(package.path),
    }
    found = [
        Fault(words=words, kind=kind, applied=partial(damaged, package, damage))
        for kind, every in damages.items()
        for words, damage in every.items()
    ]
    return found + [
        Fault(words=words, kind="calls", applied=partial(called, package, change))
        for words, change in of_calls.items()
    ]


def _of_graph(path: str, damage: graphs.Damage) -> files.FileDamage:
    def damaged(folder: Path) -> None:
        model = ir.load(folder / path)
        damage(model.graph)
        (folder / path).unlink()
        ir.save(model, folder / path)

    return damaged


@contextmanager
def damaged(
    package: Package, damage: files.FileDamage
) -> Iterator[tuple[Package, Callable[[], int]]]:
    """Damage a copy of a package, whose other files are links to those of the right one."""
    with tempfile.TemporaryDirectory(dir=package.path.parent) as parent:
        folder = Path(parent) / "package"
        shutil.copytree(package.path, folder, copy_function=os.link)
        damage(folder)
        changes = sum(
            not (folder / path.relative_to(package.path)).is_file()
            or (folder / path.relative_to(package.path)).read_bytes() != path.read_bytes()
            for path in package.path.rglob("*")
            if path.is_file()
        )
        yield Package(folder, package.manifest), lambda: changes


@contextmanager
def called(package: Package, change: calls.Change) -> Iterator[tuple[Package, Callable[[], int]]]:
    """Change the calls of a package; its files are the right ones."""
    with calls.changed_calls(change) as applied:
        yield package, lambda: applied.count


# --- judging them -----------------------------------------------------------------------------------


class Trials:
    """A right package, what the reference answers, and trials of damaged ones.

    Args:
        package: The right package.
        checkpoint: Its checkpoint.
        threads: CPU threads.
    """

    def __init__(self, package: Package, checkpoint: Checkpoint | Path, threads: int = 1) -> None:
        self.package, self._threads = package, threads
        with Reference(threads) as process:
            self._trial = self._try(package, None)
            self.reference = ladder.run_reference(
                process, package, checkpoint, self._trial, progress=silent
            )
        located = (
            {"checkpoint": str(checkpoint)} if isinstance(checkpoint, Path) else checkpoint.located
        )
        self._request = {**located, "numerics": ladder.rounding_of(package).as_dict()}
        self._model: Any = None

    def right(self) -> Result:
        """Judge the right package."""
        checks = ladder.judge_answers(self.package, self._trial, self.reference, _LEVEL)
        checks += ladder.judge_files(self.package, self._trial, self.reference, _LEVEL)
        return _result("nothing", "", checks)

    def result(self, fault: Fault) -> Result:
        """Try a fault.

        Raises:
            ValueError: It changes nothing.
        """
        with fault.applied() as (wrong, changes):
            checks = self.judge(fault.kind)(wrong)
            if not changes():
                raise ValueError(f"The fault {fault.words!r} changes nothing.")
        return _result(fault.words, fault.kind, checks)

    def judge(self, kind: str) -> Callable[[Package], list[Check]]:
        """Return what judges a package with a kind of fault."""
        return {"weights": self._weights, "text": self._files}.get(kind, self._answers)

    def _answers(self, wrong: Package) -> list[Check]:
        """Run stages until one notices the damage, the short ones first."""
        rest = tuple(key for key in self._trial.keys if not any(key in group for group in _SHORT))
        checks: list[Check] = []
        for stages in (*_SHORT, rest):
            trial = self._try(wrong, stages)
            checks += ladder.judge_answers(wrong, trial, self.reference, _LEVEL)
            if not all(check["passed"] for check in checks):
                break
        return checks

    def _files(self, wrong: Package) -> list[Check]:
        return ladder.judge_files(wrong, self._trial, self.reference, _LEVEL)

    def _weights(self, wrong: Package) -> list[Check]:
        if self._model is None:
            self._model = load_model(self._request, self.package.task, None)
        request = {**self._request, **stored_weights.request_of(wrong)}
        found = reference_weights.answer(request, self._model, None)
        reference = replace(self.reference, about={**self.reference.about, "stored": found})
        checks = ladder.judge_files(self.package, self._trial, reference, _LEVEL)
        return [check for check in checks if check["stage"] == "weights"]

    def _try(self, package: Package, stages: Sequence[str] | None) -> Trial:
        return try_package(
            package, self._threads, silent, ladder.unrounded(package), stages, continues=False
        )


def silent(_: int) -> None:
    """Show no progress."""


def _result(fault: str, kind: str, checks: list[Check]) -> Result:
    failed = [check for check in checks if not check["passed"]]
    metric = "max_stored_error" if kind == "weights" else _ERROR
    measured = [check for check in checks if check["metric"] == metric]
    if failed and all(check["passed"] for check in measured):  # another measure noticed it
        limited = [check for check in failed if check["op"] == "<=" and check["threshold"]]
        measured = [*limited, *measured]
    times = [_MOST if one["value"] is None else one["value"] / one["threshold"] for one in measured]
    exact = (
        [failure["metric"] for failure in failed if failure["op"] != "<="] if kind == "text" else []
    )
    return Result(
        fault=fault,
        kind=kind,
        noticed=bool(failed),
        times=None if kind == "text" else float(max(times)),
        by=exact or sorted({failure["stage"] for failure in failed}),
    )


def results(
    package: Package, checkpoint: Checkpoint | Path, only: str = "", threads: int = 1
) -> Iterator[Result]:
    """Try every fault; yield what came of it, first of no fault at all."""
    trials = Trials(package, checkpoint, threads)
    yield trials.right()
    for fault in faults_of(package):
        if only in fault.words:
            yield trials.result(fault)


def main(arguments: list[str]) -> int:
    """Try the faults that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", type=Path)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--only", default="", metavar="WORD", help="faults with this word alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="add the results to this file")
    parser.add_argument("--title", help="name of the results there (default: the package's)")
    given = parser.parse_args(arguments)
    found = []
    package = Package.open(given.package)
    for result in results(package, source_of(package, str(given.checkpoint)), given.only):
        found.append(result)
        noticed = "noticed" if result.noticed else "-"
        times = "" if result.times is None else f"{result.times:10.4g} times what is allowed"
        print(f"{result.fault:50} {noticed:8} {times} {', '.join(result.by)}", flush=True)
        if given.json:
            write(given.json, given.title or package.name, found)
    return int(found[0].noticed or not all(one.noticed for one in found[1:]))


def write(path: Path, title: str, found: Sequence[Result]) -> None:
    """Add the results of a package to a file.

    Args:
        path: The file, of JSON; it may be absent.
        title: Name of the package there.
        found: The results, that of the right package first.
    """
    known = json.loads(path.read_bytes()) if path.is_file() else {}
    entries = [vars(one) for one in found]
    path.write_text(json.dumps({**known, title: entries}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
