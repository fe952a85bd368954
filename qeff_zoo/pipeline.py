# SPDX-License-Identifier: Apache-2.0
"""The whole flow: checkpoint -> plan -> graph -> weights -> package -> validation -> store."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from qeff_zoo import targets
from qeff_zoo.checkpoint.draft_heads import HEADS
from qeff_zoo.checkpoint.files import Place
from qeff_zoo.checkpoint.opening import Checkpoint, open_checkpoint
from qeff_zoo.checkpoint.sources import with_speculator
from qeff_zoo.disk.sharing import share_all
from qeff_zoo.errors import CompileError, ParityError
from qeff_zoo.export import companions, graphs
from qeff_zoo.graph.bound_graph import BoundGraph
from qeff_zoo.graph.numerics import DeviceNumerics
from qeff_zoo.hub.trust_check import is_as_good_as_ours
from qeff_zoo.package import Package, prepared, proof, write_manifest
from qeff_zoo.package.programs import key_of
from qeff_zoo.plan import manifest_entries
from qeff_zoo.plan import resolve as plans
from qeff_zoo.plan.package_plan import Plan
from qeff_zoo.plan.programs import ProgramPlan
from qeff_zoo.plan.request import Request
from qeff_zoo.plan.source_tree import has_uncommitted_changes
from qeff_zoo.registry import require_packages
from qeff_zoo.store import Store
from qeff_zoo.store.copies import copy_out, existing_copy, new_folder
from qeff_zoo.targets.base import Target
from qeff_zoo.tasks import TEXT_GENERATION, find
from qeff_zoo.terminal.progress import Reporter, Silent, Stopwatch, peak_rss_bytes
from qeff_zoo.weights import writing as weights
from qeff_zoo.weights.layout import FileLayout, plan_file

if TYPE_CHECKING:
    from qeff_zoo.runtime.program import Program
    from qeff_zoo.validation.records import Record


@dataclass(frozen=True, kw_only=True)
class Built:
    """What a build gave.

    Args:
        package: In the store, or where `output` said.
        hit: Whether it was there already.
        seconds: Wall time by stage.
        peak_rss_bytes: Of this process, mapped files included.
    """

    package: Package
    hit: bool
    seconds: Mapping[str, float]
    peak_rss_bytes: int


def make_plan(
    model: str,
    request: Request,
    *,
    store: Store | None = None,
    **place: Unpack[Place],
) -> tuple[Checkpoint, Plan]:
    """Open a checkpoint and make every choice, before anything large is downloaded."""
    from qeff_zoo.checkpoint.sources import with_adapters

    checkpoint = with_adapters(open_checkpoint(model, **place), request.adapter)
    checkpoint = with_speculator(checkpoint, request.speculator)
    # What is refused is refused before the weights are hashed, which takes long for a large model.
    plans.check(checkpoint, request)
    digest = checkpoint.weights_digest((store or Store()).file_digest)
    plan = plans.resolve(checkpoint, request, digest)
    for text in plan.warnings:
        warnings.warn(text, stacklevel=3)
    return checkpoint, plan


def commands_of(plan: Plan) -> list[list[str]]:
    """Return the commands that compile a plan's programs; none where nothing but this package does."""
    target = targets.find(plan.target)
    return [
        words
        for program in plan.programs
        for words in target.commands(program, program_name(plan, program))
    ]


def build(
    model: str,
    request: Request = Request(),
    *,
    validate: bool = True,
    level: str | None = None,
    output: Path | None = None,
    store: Store | None = None,
    reporter: Reporter | None = None,
    **place: Unpack[Place],
) -> Built:
    """Turn a checkpoint into a validated package.

    Args:
        model: Hub id, folder or GGUF file.
        request: What is asked for beyond the recipe.
        validate: Compare with Hugging Face before the package is promoted; without, it says "none".
        level: What the comparison is called: "tiny" for a recipe's tiny model, with weights made up; None for what it
            proves: "predicted" where this machine cannot run the package, else what the target's packages prove.
        output: Also copy the package here.
        store: Where to keep it; None for the one `QEFF_HOME` names.
        reporter: Shows progress.
        **place: See `open_checkpoint`.

    Raises:
        ZooError: See `qeff_zoo.errors`; nothing half-written is left that a later build takes for done.
    """
    store, watch = store or Store(), Stopwatch(reporter or Silent())
    with watch.stage("plan"):
        checkpoint, plan = make_plan(model, request, store=store, **place)
        if output is not None:
            existing_copy(output, plan.build_key)  # refuses an occupied folder before the work
        package = store.lookup(plan.build_key)
    hit = package is not None and _will_do(package, store, validate=validate)
    if package is None or not hit:
        package = _build(checkpoint, plan, store, watch, level, validate=validate)
    if checkpoint.model_id is None or checkpoint.gguf:
        store.remember_source(plan.build_key, checkpoint.folder / checkpoint.gguf)
    for number, one in enumerate(checkpoint.merged, 1):
        if not one.adapter.repository:
            store.remember_source(plan.build_key, one.adapter.folder, number)
    if (heads := checkpoint.speculator) and not (heads.repository or heads.layer):
        store.remember_source(plan.build_key, heads.folder, HEADS)
    if output is not None:
        package = copy_out(package, output)
    return Built(package=package, hit=hit, seconds=watch.seconds, peak_rss_bytes=peak_rss_bytes())


def _will_do(package: Package, store: Store, *, validate: bool) -> bool:
    """Tell whether a package of the store saves a build: one of others does where they are trusted."""
    proved = package.validated != "none" or not validate
    as_good = proved and is_as_good_as_ours(package, store)
    return as_good and (not package.dirty or has_uncommitted_changes())


def _build(
    checkpoint: Checkpoint,
    plan: Plan,
    store: Store,
    watch: Stopwatch,
    level: str | None,
    *,
    validate: bool,
) -> Package:
    target = targets.find(plan.target)
    target.require_compiler()
    require_packages(plan.recipe)
    runs_here = all(target.runs_here(program) for program in plan.programs)
    _require_whole(checkpoint)

    from qeff_zoo.graph import external_data
    from qeff_zoo.validation import ladder as validation
    from qeff_zoo.validation import package_runner

    with store.stage("build") as folder:
        companions.package(checkpoint, folder, find(plan.recipe.task))
        traced = _trace(checkpoint, plan, store, watch)
        made, layout, written = _lower(checkpoint, plan, traced, folder, watch)
        record = None
        if validate and not runs_here:
            record = _predict(checkpoint, plan, made, layout, folder, watch, level)
            if not record.passed:
                kept = store.failed(folder, plan.build_key)
                raise _disagreement(checkpoint, record.failures, kept)
        with watch.stage("compile"):
            try:
                entries = [
                    _compile(target, plan, one, f"sha256:{written.sha256}", layout, folder, store)
                    for one in made
                ]
            except CompileError as error:
                kept = store.failed(folder, plan.build_key)
                raise CompileError(f"{error}\nAll that it read is in {str(kept)!r}.") from error
        with watch.stage("package"):
            manifest = _manifest(checkpoint, plan, traced, entries, watch)
            target.write_sidecars(folder, manifest)
            digests = {external_data.WEIGHTS: (written.nbytes, written.sha256)}
            if not target.needs_weights:
                (folder / external_data.WEIGHTS).unlink()
                digests = {}
            if record and prepared.is_known(plan.resolved.toolchain):
                manifest |= {**record.in_manifest(), "validated": record.level}
            package = write_manifest(folder, manifest, digests)
        if not (validate and runs_here):
            if runs_here:
                package_runner.call_once(package)
            return store.promote(folder, plan.build_key)
        with watch.stage("validate", unit="step") as advance:
            record = validation.validate(
                package, checkpoint, level=level or target.level, progress=advance
            )
            record.save_evidence(folder)
            proved = record.level if record.passed else "none"
            write_manifest(
                folder, {**manifest, **record.in_manifest(), "validated": proved}, digests
            )
        if not record.passed:
            raise _disagreement(checkpoint, record.failures, store.failed(folder, plan.build_key))
        for text in proof.warnings(record.costs, checkpoint.name):
            warnings.warn(text, stacklevel=3)
        return store.promote(folder, plan.build_key)


def _predict(
    checkpoint: Checkpoint,
    plan: Plan,
    made: Sequence[manifest_entries.Made],
    layout: FileLayout,
    folder: Path,
    watch: Stopwatch,
    level: str | None,
) -> "Record":
    """Compare what a program is compiled from with Hugging Face, in its device's numerics, and keep the evidence.

    Nothing is claimed by that of what a compiler makes of it, but by who knows that it was made of exactly this.
    """
    from qeff_zoo.validation import ladder as validation

    target = targets.find(plan.target)
    entries = [{**manifest_entries.program_entry(plan, one, ""), "path": ""} for one in made]
    entries = [{**entry, "program_key": key_of(entry)} for entry in entries]
    manifest = manifest_entries.manifest(checkpoint, plan, entries, 0, watch)
    package = Package(folder, {**manifest, "files": [{"size": layout.nbytes}]})
    lowered = {one.plan.role: one.lowered for one in made}
    numerics = {entry["role"]: DeviceNumerics.of_program(entry) for entry in entries}

    def opens(numerics: Mapping[str, DeviceNumerics], role: str, **choices: Any) -> "Program":
        program = package.program(role)
        return target.predict(
            lowered[role], layout, folder, program, numerics=numerics[role], **choices
        )

    exact = {
        role: replace(one, activations="float32", states=None) for role, one in numerics.items()
    }
    with watch.stage("predict", unit="step") as advance:
        record = validation.validate(
            package,
            checkpoint,
            level=level or "predicted",
            progress=advance,
            opening=partial(opens, numerics),
            exact=partial(opens, exact) if plan.recipe.task == TEXT_GENERATION else None,
        )
    record.save_evidence(folder)
    return record


def _require_whole(checkpoint: Checkpoint) -> None:
    """Refuse a damaged file before torch is imported; one that is to be downloaded is looked at after that."""
    if checkpoint.is_at_hand:
        _ = checkpoint.tensors


def _trace(checkpoint: Checkpoint, plan: Plan, store: Store, watch: Stopwatch) -> list[BoundGraph]:
    changes = graphs.changes_of(plan, checkpoint)  # what cannot be merged is refused here
    checkpoint.fetch()
    _ = checkpoint.tensors  # refuses a damaged file before the graph is traced
    checkpoint.require_finite_scales()
    with watch.stage("graph"):
        return [
            graphs.obtain(plan, program, checkpoint, store, changes) for program in plan.programs
        ]


def _lower(
    checkpoint: Checkpoint,
    plan: Plan,
    traced: Sequence[BoundGraph],
    folder: Path,
    watch: Stopwatch,
) -> tuple[list[manifest_entries.Made], FileLayout, weights.Written]:
    """Lower the graphs of a plan; write their weights to a folder."""
    from qeff_zoo.graph import external_data

    target = targets.find(plan.target)
    with watch.stage("lower"):
        made = [
            manifest_entries.Made(plan=program, graph=graph, lowered=target.lower(graph, program))
            for program, graph in zip(plan.programs, traced, strict=True)
        ]
        slots = external_data.together(one.lowered.slots for one in made)
        layout = plan_file(slots, checkpoint.tensors)
        Store.require_space(folder, layout.nbytes, "the package's weights")
    with watch.stage("weights", layout.nbytes) as advance:
        written = weights.write(layout, checkpoint, folder / external_data.WEIGHTS, advance)
    return made, layout, written


def _manifest(
    checkpoint: Checkpoint,
    plan: Plan,
    traced: Sequence[BoundGraph],
    entries: Sequence[Mapping[str, Any]],
    watch: Stopwatch,
) -> dict[str, Any]:
    """Describe a package that nobody has validated."""
    read = len({name for graph in traced for name in graph.bindings})
    return manifest_entries.manifest(checkpoint, plan, entries, read, watch)


def _compile(
    target: Target,
    plan: Plan,
    made: manifest_entries.Made,
    tensors: str,
    layout: FileLayout,
    folder: Path,
    store: Store,
) -> dict[str, Any]:
    """Compile a program, or take the one that another package of the store compiled from the same."""
    entry = manifest_entries.program_entry(plan, made, tensors)
    there = store.program(key_of(entry))
    if there is not None:
        package, program = there
        share_all(package.path / program.path, folder / program.path)
        return {**entry, "path": program.path}
    path = target.compile(made.lowered, layout, folder, program_name(plan, made.plan), made.plan)
    return {**entry, "path": path.relative_to(folder).as_posix()}


def program_name(plan: Plan, program: ProgramPlan) -> str:
    """Return what a program's file or folder is called, without what its name ends with."""
    return Path(graphs.GRAPH).stem if len(plan.programs) == 1 else program.role


def _disagreement(checkpoint: Checkpoint, failures: list[str], kept: Path | None) -> ParityError:
    where = f"It was not promoted; the evidence is in {str(kept)!r}" if kept else "It was not kept"
    return ParityError(
        f"The package of {checkpoint.name!r} disagrees with Hugging Face: {'; '.join(failures)}. {where}. Check the "
        "recipe, or build with --no-validate to look into it."
    )


def prepare(
    model: str,
    output: Path,
    *,
    request: Request = Request(),
    validate: bool = True,
    store: Store | None = None,
    reporter: Reporter | None = None,
    **place: Unpack[Place],
) -> Path:
    """Turn a checkpoint into all that a package is compiled from, where the compiler is on another machine.

    Args:
        model: Hub id, folder or GGUF file.
        output: A folder that is new or empty.
        request: What is asked for beyond the recipe.
        validate: Compare what will be compiled with Hugging Face, in the device's numerics.
        store: Where graphs are kept; None for the one `QEFF_HOME` names.
        reporter: Shows progress.
        **place: See `open_checkpoint`.

    Returns:
        The folder; see `qeff_zoo.package.prepared` for what is in it.

    Raises:
        ZooError: See `qeff_zoo.errors`; nothing half-written is left that looks prepared.
    """
    store, watch = store or Store(), Stopwatch(reporter or Silent())
    with watch.stage("plan"):
        checkpoint, plan = make_plan(model, request, store=store, **place)
    target = targets.find(plan.target)
    target.require_offline()
    _require_whole(checkpoint)
    with new_folder(output) as folder:
        companions.package(checkpoint, folder, find(plan.recipe.task))
        traced = _trace(checkpoint, plan, store, watch)

        from qeff_zoo.graph import external_data

        made, layout, written = _lower(checkpoint, plan, traced, folder, watch)
        record = None
        if validate:
            record = _predict(checkpoint, plan, made, layout, folder, watch, None)
            if not record.passed:
                raise _disagreement(checkpoint, record.failures, None)
        with watch.stage("prepare"):
            named = {program_name(plan, one.plan): (one.plan, one.lowered) for one in made}
            paths = target.prepare(named, layout, folder)
            entries = [
                {
                    **manifest_entries.program_entry(plan, one, f"sha256:{written.sha256}"),
                    "path": path.as_posix(),
                }
                for one, path in zip(made, paths, strict=True)
            ]
            manifest = _manifest(checkpoint, plan, traced, entries, watch)
            if record:
                manifest |= {**record.in_manifest(), "validated": record.level}
            prepared.write(
                folder,
                {**manifest, "build_key": plan.build_key},
                {external_data.WEIGHTS: (written.nbytes, written.sha256)},
            )
    return output


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What an export gave.

    Args:
        path: Of the graph; of several, of that which answers.
        seconds: Wall time by stage.
        peak_rss_bytes: Of this process, mapped files included.
    """

    path: Path
    seconds: Mapping[str, float]
    peak_rss_bytes: int


def export(
    model: str,
    output: Path,
    *,
    request: Request = Request(),
    graph_only: bool = False,
    reporter: Reporter | None = None,
    **place: Unpack[Place],
) -> Exported:
    """Write the portable graphs of a model's programs, and their weights beside them unless told otherwise.

    Args:
        model: Hub id, folder or GGUF file; with `graph_only` a config.json is enough.
        output: A folder that is new or empty.
        request: Of its fields, those matter that change the graph: continuous batching, pooling.
        graph_only: Leave out the weights.
        reporter: Shows progress.
        **place: See `open_checkpoint`.
    """
    from qeff_zoo.checkpoint.sources import with_adapters

    store, watch = Store(), Stopwatch(reporter or Silent())
    with watch.stage("plan"):
        checkpoint = open_checkpoint(model, need_weights=not graph_only, **place)
        checkpoint = with_adapters(checkpoint, request.adapter)
        checkpoint = with_speculator(checkpoint, request.speculator)
        plan = plans.check(checkpoint, request)
    with new_folder(output) as folder:
        if graph_only:
            with watch.stage("graph"):
                for program in plan.programs:
                    graphs.trace(folder, plan, program, checkpoint, _graph_name(plan, program))
        else:
            _export_with_weights(folder, plan, checkpoint, store, watch)
    return Exported(
        path=output / _graph_name(plan, plan.programs[0]),
        seconds=watch.seconds,
        peak_rss_bytes=peak_rss_bytes(),
    )


def _graph_name(plan: Plan, program: ProgramPlan) -> str:
    return f"{program_name(plan, program)}{Path(graphs.GRAPH).suffix}"


def _export_with_weights(
    folder: Path, plan: Plan, checkpoint: Checkpoint, store: Store, watch: Stopwatch
) -> None:
    """Write the portable graphs, and their weights in float32 as the model names them."""
    import onnx_ir as ir

    from qeff_zoo.graph import external_data

    found = _trace(checkpoint, plan, store, watch)
    slots = [external_data.as_they_are(graph.model, graph.bindings) for graph in found]
    layout = plan_file(external_data.together(slots), checkpoint.tensors)
    store.require_space(folder, layout.nbytes, "the graph's weights")
    with watch.stage("weights", layout.nbytes) as advance:
        weights.write(layout, checkpoint, folder / external_data.WEIGHTS, advance)
    for program, graph in zip(plan.programs, found, strict=True):
        external_data.place(graph.model, layout)
        ir.save(graph.model, folder / _graph_name(plan, program))
