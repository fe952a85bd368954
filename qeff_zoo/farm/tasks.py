# SPDX-License-Identifier: Apache-2.0
"""Steps of a build, run in a worker process that is used for many of them.

In: a step. Out: its `Result`. Each step may run twice: it begins with what the store or the remote has of it.
"""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from qeff_zoo.errors import CheckpointError, ZooError
from qeff_zoo.farm.estimates import BUILD, PUBLISH, TRACE, VALIDATE
from qeff_zoo.farm.planning import STALE, Cell
from qeff_zoo.farm.schedule import REVALIDATE, Result, Step
from qeff_zoo.package import Package
from qeff_zoo.store import Store
from qeff_zoo.terminal.progress import Reporter, Silent, out_of_memory, peak_rss_bytes

if TYPE_CHECKING:
    from qeff_zoo.hub.entries import Entry
    from qeff_zoo.hub.index import Index, Sign

_LONGEST = 900  # characters of a notice


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of all steps of a run.

    Args:
        private: Whether new repositories are private.
        sign_with: PEM file of the key that signs indexes; None for none.
        threads: CPU threads of a step.
    """

    private: bool = False
    sign_with: Path | None = None
    threads: int = 1


class AbsentPackage(Exception):  # noqa: N818 -- another machine built the package, and it is gone
    """The machine lacks the package of a step."""


def run_step(step: Step, options: Options, reporter: Reporter | None = None) -> Result:
    """Run a step; an error that a user can act on becomes a result.

    Args:
        step: The step.
        options: Options of the run.
        reporter: Shows progress.
    """
    begun = time.perf_counter()
    _reset_peak()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            result = _STEPS[step.name](step, options, reporter or Silent())
        except AbsentPackage:
            result = Result(
                failure="AbsentPackage", reason="The machine that built it is gone.", absent=True
            )
        except ZooError as error:
            result = Result(failure=type(error).__name__, reason=str(error))
        except (MemoryError, OSError, RuntimeError) as error:
            short = out_of_memory(error, f"in the step {step.name!r}")
            if short is None:
                raise
            result = Result(failure=type(short).__name__, reason=str(short))
    texts = (str(one.message) for one in caught if issubclass(one.category, UserWarning))
    return replace(
        result,
        seconds=round(time.perf_counter() - begun, 3),
        memory=peak_rss_bytes(),
        warnings=tuple(dict.fromkeys(texts)),
    )


def _reset_peak() -> None:
    """Forget the peak of the process's memory, which earlier steps reached."""
    with suppress(OSError):  # other systems than Linux
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _source(cell: Cell) -> dict[str, Any]:
    """Return the arguments that open a cell's checkpoint, at the planned commit."""
    location = dict(cell.wanted.source.place)
    if cell.revision:
        location["revision"] = cell.revision
    return {"model": cell.wanted.source.model, "request": cell.wanted.request, **location}


def _trace(step: Step, options: Options, reporter: Reporter) -> Result:
    from qeff_zoo import pipeline

    pipeline.trace(**_source(step.cell), reporter=reporter)
    return Result()


def _build(step: Step, options: Options, reporter: Reporter) -> Result:
    """Build; a package that runs here is validated by a step of its own."""
    from qeff_zoo import pipeline

    cell = step.cell
    built = pipeline.build(**_source(cell), validate=not cell.runs_here, reporter=reporter)
    if built.package.build_key != cell.build_key:
        raise CheckpointError(
            f"{cell.wanted.source.name!r} gives the package {built.package.build_key[:12]}, but "
            f"{cell.build_key[:12]} was planned. Expected the checkpoint and software of the plan. Run the farm again."
        )
    return Result()


def _package(key: str) -> Package:
    package = Store().lookup(key)
    if package is None:
        raise AbsentPackage
    return package


def _validate(step: Step, options: Options, reporter: Reporter) -> Result:
    from qeff_zoo.pipeline.checks import source_of
    from qeff_zoo.pipeline.proving import prove
    from qeff_zoo.validation.judgement.freshness import versions_of
    from qeff_zoo.validation.reference.preloaded import shared

    package = _package(step.cell.build_key)
    if package.validated == "none":
        package = prove(
            package,
            source_of(package, None),
            Store(),
            threads=options.threads,
            server=shared(),
            reporter=reporter,
        )
    return Result(versions=versions_of(package.manifest["spec"]))


def _publish(step: Step, options: Options, reporter: Reporter) -> Result:
    from qeff_zoo.hub.publish import publish
    from qeff_zoo.hub.publish.plan import plan_publication

    cell = step.cell
    package, remote = _package(cell.package_key), str(cell.remote)
    publication = plan_publication(package, remote, private=options.private, reporter=reporter)
    change = _superseding(cell, publication.entry) if cell.state == STALE else None
    return Result(url=publish(publication, reporter=reporter, sign=_signer(options), change=change))


def _superseding(cell: Cell, entry: "Entry") -> Callable[["Index"], "Index"]:
    """Return the change of an index that marks a cell's earlier package as superseded by a new one."""
    from qeff_zoo.hub.entries import Notice

    reason = " ".join(f"Built again with other software: {cell.why}".split())[:_LONGEST]

    def change(index: "Index") -> "Index":
        leaf = index.leaf_of(entry.model)
        for other in leaf.entries:
            if cell.older_key16 == other.key16 and other.path not in leaf.notices:
                notice = Notice("superseded", reason, entry.path)
                index = index.with_notice(other.path, notice, entry.model)
        return index

    return change


def _revalidate(step: Step, options: Options, reporter: Reporter) -> Result:
    """Validate an earlier package again; a package that fails gets a notice in the remote's index."""
    from qeff_zoo.hub import pull
    from qeff_zoo.pipeline.proving import validate_again
    from qeff_zoo.validation.judgement.freshness import versions_now
    from qeff_zoo.validation.reference.preloaded import shared

    cell = step.cell
    if cell.older_path:
        key = cell.older_path.removeprefix("packages/")
        package = pull.pull(cell.wanted.source.name, key=key, remote=cell.remote).package
    else:
        package = _package(cell.older_key)
    record = validate_again(
        package, Store(), threads=options.threads, server=shared(), reporter=reporter
    )
    if cell.remote:
        _publish_outcome(cell.remote, package, record.failures, versions_now(package), options)
    if record.passed:
        return Result(versions=versions_now(package))
    return Result(failure="ParityError", reason="; ".join(record.failures))


def _publish_outcome(
    url: str,
    package: Package,
    failures: Sequence[str],
    versions: Mapping[str, str],
    options: Options,
) -> None:
    """Change an entry of a remote's index: its tested versions, or the notice that the package is known to be bad."""
    from qeff_zoo.hub.entries import Notice, model_of, package_path
    from qeff_zoo.hub.index import Index
    from qeff_zoo.hub.publish.card import card_upload
    from qeff_zoo.hub.remotes import destination
    from qeff_zoo.validation.judgement.freshness import EVIDENCE, described

    path, model = package_path(package.manifest), model_of(package.manifest)
    remote = destination(url)
    content = described(versions)
    reason = " ".join(f"With {content}: {'; '.join(failures)}".split())[:_LONGEST]

    def update(index: Index) -> Index:
        for entry in index.of_model(model):
            if entry.path == path and failures:
                return index.with_notice(path, Notice("known_bad", reason), model)
            if entry.path == path:
                tested = {name: versions.get(name, it) for name, it in entry.tested.items()}
                return index.with_entry(replace(entry, tested={**tested, EVIDENCE: content}))
        return index

    done = "known_bad" if failures else "Validate again"
    remote.commit(card_upload(remote), update, f"{done}: {path}", sign=_signer(options))


def _signer(options: Options) -> "Sign | None":
    """Return the signer of indexes; None for indexes that are not signed."""
    from qeff_zoo.hub.trust import index_signer

    return index_signer(options.sign_with) if options.sign_with else None


_STEPS: Mapping[str, Callable[[Step, Options, Reporter], Result]] = MappingProxyType(
    {TRACE: _trace, BUILD: _build, VALIDATE: _validate, PUBLISH: _publish, REVALIDATE: _revalidate}
)
