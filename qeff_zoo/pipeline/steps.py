# SPDX-License-Identifier: Apache-2.0
"""Steps of a build as separate calls, for builds that are spread over processes: graphs first, evidence last.

In: the model and options of a build, as `pipeline.build` takes them. Out: what the step leaves in the store.
"""

import warnings
from typing import TYPE_CHECKING, Unpack

from qeff_zoo import targets
from qeff_zoo.checkpoint.files import Place
from qeff_zoo.checkpoint.opening import Checkpoint
from qeff_zoo.disk.cloning import share
from qeff_zoo.errors import PackageError, ParityError
from qeff_zoo.package import Package, proof, write_manifest
from qeff_zoo.pipeline import begin
from qeff_zoo.plan.request import Request
from qeff_zoo.store import Store
from qeff_zoo.terminal.progress import Reporter, Silent, Stopwatch

if TYPE_CHECKING:
    from qeff_zoo.validation.reference.preloaded import Server


def trace(
    model: str,
    request: Request,
    *,
    store: Store | None = None,
    reporter: Reporter | None = None,
    **place: Unpack[Place],
) -> None:
    """Trace the graphs of a package into the store, unless it has them.

    Args:
        model: Hub id, folder or GGUF file.
        request: Options of the build.
        store: Store of the graphs; None for the one in `QEFF_HOME`.
        reporter: Progress reporter.
        **place: Arguments of `open_checkpoint`.
    """
    assembly = begin(model, request, store, reporter, **place)
    assembly.require_tools()
    assembly.require_whole_files()
    assembly.trace()


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
        checkpoint: Its checkpoint.
        store: Store of the package.
        threads: CPU threads; None for one per physical core.
        server: Server that forks the reference; None for a new Python.
        reporter: Progress reporter.

    Raises:
        PackageError: The package is damaged.
        ParityError: The package disagrees with Hugging Face; a copy with the evidence is kept among failed builds.
    """
    from qeff_zoo.validation import ladder

    if damage := package.verify():
        raise PackageError(
            f"Cannot validate {str(package.path)!r}: {'; '.join(damage)}. Expected the files of its manifest. Build "
            "it again."
        )
    level = targets.find(package.target).level
    with Stopwatch(reporter or Silent()).stage("validate", unit="step") as advance:
        record = ladder.validate(
            package, checkpoint, level=level, threads=threads, progress=advance, server=server
        )
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
        evidence = {**record.in_manifest(), "validated": level if record.passed else "none"}
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
