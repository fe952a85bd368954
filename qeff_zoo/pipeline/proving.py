# SPDX-License-Identifier: Apache-2.0
"""Validation of a package apart from its build: the first, and later ones with other software.

In: a package and its checkpoint. Out: the package with evidence, in its place; or an outcome noted in the store.
"""

import warnings
from typing import TYPE_CHECKING

from qeff_zoo import targets
from qeff_zoo.checkpoint.opening import Checkpoint
from qeff_zoo.disk.cloning import share
from qeff_zoo.errors import PackageError, ParityError
from qeff_zoo.package import Package, proof, write_manifest
from qeff_zoo.store import Store
from qeff_zoo.terminal.progress import Reporter, Silent, Stopwatch
from qeff_zoo.validation.judgement.freshness import DISAGREES, VERSIONS, versions_now

if TYPE_CHECKING:
    from qeff_zoo.validation.judgement.records import Record
    from qeff_zoo.validation.reference.preloaded import Server


def prove(
    package: Package,
    checkpoint: Checkpoint,
    store: Store,
    *,
    threads: int | None = None,
    server: "Server | None" = None,
    reporter: Reporter | None = None,
) -> Package:
    """Validate a package that was built without validation, and replace it by one with the evidence.

    Args:
        package: Package of the store that this machine can run.
        checkpoint: Checkpoint of the package.
        store: Store of the package.
        threads: CPU threads; None for one per physical core.
        server: Server that forks the reference; None for a new Python.
        reporter: Progress reporter.

    Raises:
        PackageError: The package is damaged.
        ParityError: The package disagrees with Hugging Face; a copy with the evidence is kept among failed builds.
    """
    record = _record(package, checkpoint, threads, server, reporter)
    known = {
        one["path"]: (one["size"], one["digest"].removeprefix("sha256:"))
        for one in package.manifest["files"]
    }
    derived = ("files", "tree", "costs", "validation", "validated")
    manifest = {name: it for name, it in package.manifest.items() if name not in derived}
    with store.stage("validate") as folder:
        for name in known:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            share(package.path / name, folder / name)
        record.save_evidence(folder)
        evidence = {**record.in_manifest(), "validated": record.level if record.passed else "none"}
        write_manifest(folder, {**manifest, **evidence}, known)
        if record.passed:
            for text in proof.warnings(record.costs, package.name):
                warnings.warn(text, stacklevel=2)
            return store.promote(folder, package.build_key)
        kept = store.failed(folder, package.build_key)
    raise ParityError(
        f"The package of {package.name!r} disagrees with Hugging Face: {'; '.join(record.failures)}. The evidence is "
        f"in {str(kept)!r}. Check the recipe."
    )


def validate_again(
    package: Package,
    store: Store,
    *,
    threads: int | None = None,
    server: "Server | None" = None,
    reporter: Reporter | None = None,
) -> "Record":
    """Validate a package with the software of this machine, and note the outcome in the store; no file changes.

    Args:
        package: Validated package.
        store: Store of the outcome.
        threads: CPU threads; None for one per physical core.
        server: Server that forks the reference; None for a new Python.
        reporter: Progress reporter.

    Raises:
        PackageError: The package is damaged.
        CheckpointError: The checkpoint is missing.
    """
    record = _record(package, None, threads, server, reporter)
    outcome = {VERSIONS: versions_now(package), DISAGREES: "; ".join(record.failures)}
    store.note_outcome(package.build_key, outcome)
    return record


def _record(
    package: Package,
    checkpoint: Checkpoint | None,
    threads: int | None,
    server: "Server | None",
    reporter: Reporter | None,
) -> "Record":
    """Compare an undamaged package with its checkpoint: the one that its manifest names, if None is passed."""
    from qeff_zoo.pipeline import checks
    from qeff_zoo.validation import ladder

    if damage := package.verify():
        raise PackageError(
            f"Cannot validate {str(package.path)!r}: {'; '.join(damage)}. Expected the files of its manifest. Build "
            "or pull it again."
        )
    source = checkpoint or checks.source_of(package, None)
    level = targets.find(package.target).level
    with Stopwatch(reporter or Silent()).timed("validate") as reporter:
        return ladder.validate(
            package, source, level=level, threads=threads, reporter=reporter, server=server
        )
