# SPDX-License-Identifier: Apache-2.0
"""The build pipeline: checkpoint -> plan -> graph -> weights -> package -> validation -> store."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from qeff_zoo import targets
from qeff_zoo.checkpoint.draft_heads import HEADS
from qeff_zoo.checkpoint.files import Place
from qeff_zoo.checkpoint.opening import Checkpoint
from qeff_zoo.checkpoint.sources import open_sources
from qeff_zoo.export.program_plan import ProgramPlan
from qeff_zoo.hub.trust.usage import is_as_good_as_ours
from qeff_zoo.package import Package
from qeff_zoo.pipeline import graphs
from qeff_zoo.pipeline.assembly import Assembly, program_name
from qeff_zoo.pipeline.source_tree import has_uncommitted_changes
from qeff_zoo.plan.package_plan import Plan
from qeff_zoo.plan.request import Request
from qeff_zoo.plan.resolve import check
from qeff_zoo.store import Store
from qeff_zoo.store.copies import copy_out, existing_copy, new_folder
from qeff_zoo.terminal.progress import Reporter, Silent, Stopwatch, peak_rss_bytes
from qeff_zoo.weights.layout import plan_file


@dataclass(frozen=True, kw_only=True)
class Built:
    """Result of a build.

    Args:
        package: Package in the store, or in the `output` folder.
        hit: Whether the store already had the package.
        seconds: Wall time by stage.
        peak_rss_bytes: Peak memory of this process, mapped files included.
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
    need_weights: bool = True,
    **place: Unpack[Place],
) -> tuple[Checkpoint, Plan]:
    """Open a checkpoint and make every decision, before any large download.

    Args:
        model: Hub id, folder or GGUF file; without `need_weights` a configuration is enough.
        request: Options of the build.
        store: Store that knows digests of files; None for the one in `QEFF_HOME`.
        need_weights: Whether a configuration alone is refused; its plan identifies no package.
        **place: Arguments of `open_checkpoint`.
    """
    checkpoint = open_sources(
        model, request.adapter, request.draft_heads, need_weights=need_weights, **place
    )
    plan = check(
        checkpoint, request
    )  # before weights are hashed, which takes long for a large model
    if not checkpoint.is_config_alone:
        checkpoint.require_weights()
        plan = plan.of_weights(checkpoint.weights_digest((store or Store()).file_digest))
    for text in plan.warnings:
        warnings.warn(text, stacklevel=4)
    return checkpoint, plan


def _begin(
    model: str,
    request: Request,
    store: Store | None,
    reporter: Reporter | None,
    **place: Unpack[Place],
) -> Assembly:
    """Plan a package and start its assembly.

    Args:
        model: Hub id, folder or GGUF file.
        request: Options of the build.
        store: Store of the package; None for the one in `QEFF_HOME`.
        reporter: Progress reporter.
        **place: Arguments of `open_checkpoint`.
    """
    store, watch = store or Store(), Stopwatch(reporter or Silent())
    with watch.stage("plan"):
        checkpoint, plan = make_plan(model, request, store=store, **place)
    return Assembly(checkpoint=checkpoint, plan=plan, store=store, watch=watch)


def commands_of(plan: Plan) -> list[list[str]]:
    """Return the compiler commands for a plan's programs; empty if qeff-zoo itself compiles them."""
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
    """Build a validated package from a checkpoint.

    Args:
        model: Hub id, folder or GGUF file.
        request: Options beyond the recipe.
        validate: Whether to compare with Hugging Face before the package is promoted; otherwise its validation level
            is "none".
        level: Name of the comparison: "tiny" for a recipe's tiny model with random weights; None for the default:
            "emulated" if this machine cannot run the package, else the level that the target's packages prove.
        output: Folder for a copy of the package.
        store: Store of the package; None for the one in `QEFF_HOME`.
        reporter: Progress reporter.
        **place: Arguments of `open_checkpoint`.

    Raises:
        ZooError: See `qeff_zoo.errors`. No later build mistakes an incomplete package for a complete one.
    """
    assembly = _begin(model, request, store, reporter, **place)
    checkpoint, plan, store = assembly.checkpoint, assembly.plan, assembly.store
    if output is not None:
        existing_copy(output, plan.build_key)  # refuses an occupied folder before the work
    package = store.lookup(plan.build_key)
    hit = package is not None and saves_a_build(package, store, validate=validate)
    if package is None or not hit:
        package = _build(assembly, level, validate=validate)
    _remember_sources(checkpoint, plan, store)
    if output is not None:
        package = copy_out(package, output)
    return Built(
        package=package,
        hit=hit,
        seconds=assembly.watch.seconds,
        peak_rss_bytes=peak_rss_bytes(),
    )


def saves_a_build(package: Package, store: Store, *, validate: bool) -> bool:
    """Return whether a package in the store replaces a build; a package from a remote does if it is trusted.

    Args:
        package: Package of the store.
        store: The store.
        validate: Whether the build would validate.
    """
    proved = package.validated != "none" or not validate
    as_good = proved and is_as_good_as_ours(package, store)
    return as_good and (not package.dirty or has_uncommitted_changes())


def _build(assembly: Assembly, level: str | None, *, validate: bool) -> Package:
    """Assemble a package and add it to the store."""
    assembly.require_tools()
    assembly.require_whole_files()
    runs_here = assembly.runs_here
    with assembly.store.stage("build") as assembly.folder:
        assembly.copy_companions()
        assembly.trace()
        assembly.choose_formats()
        assembly.lower()
        assembly.weigh()
        assembly.write_weights()
        if validate and not runs_here:
            assembly.predict(level)
            assembly.require_agreement()
        package = assembly.write_package(assembly.compile())
        if validate and runs_here:
            assembly.validate(package, level)
            assembly.require_agreement()
        elif runs_here:
            assembly.call_once(package)
        return assembly.store.promote(assembly.folder, assembly.plan.build_key)


def _remember_sources(checkpoint: Checkpoint, plan: Plan, store: Store) -> None:
    """Record the paths of a package's local sources, for later rebuilds."""
    if checkpoint.model_id is None or checkpoint.gguf:
        store.remember_source(plan.build_key, checkpoint.folder / checkpoint.gguf)
    for number, merged in enumerate(checkpoint.merged, 1):
        if not merged.adapter.repository:
            store.remember_source(plan.build_key, merged.adapter.folder, number)
    if (heads := checkpoint.speculator) and not (heads.repository or heads.layer):
        store.remember_source(plan.build_key, heads.folder, HEADS)


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
    assembly = _begin(model, request, store, reporter, **place)
    assembly.require_tools()
    assembly.require_whole_files()
    assembly.trace()


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
    """Write everything that a compiler on another machine reads.

    Args:
        model: Hub id, folder or GGUF file.
        output: A new or empty folder.
        request: Options beyond the recipe.
        validate: Whether to compare the lowered programs with Hugging Face, in the device's numerics.
        store: Store of the graphs; None for the one in `QEFF_HOME`.
        reporter: Progress reporter.
        **place: Arguments of `open_checkpoint`.

    Returns:
        The folder; see `qeff_zoo.package.prepared` for its contents.

    Raises:
        ZooError: See `qeff_zoo.errors`. An incomplete folder is never taken for a prepared one.
    """
    assembly = _begin(model, request, store, reporter, **place)
    assembly.target.require_offline()
    assembly.require_whole_files()
    with new_folder(output) as assembly.folder:
        assembly.copy_companions()
        assembly.trace()
        assembly.choose_formats()
        assembly.lower()
        assembly.weigh()
        assembly.write_weights()
        if validate:
            assembly.predict(None)
            assembly.require_agreement(keep=False)
        assembly.write_prepared()
    return output


@dataclass(frozen=True, kw_only=True)
class Exported:
    """Result of an export.

    Args:
        path: Path of the graph; with several graphs, of the one that returns the results.
        seconds: Wall time by stage.
        peak_rss_bytes: Peak memory of this process, mapped files included.
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
    """Write the portable graphs of a model's programs, and their weights unless `graph_only` is set.

    Args:
        model: Hub id, folder or GGUF file; with `graph_only` a config.json is enough.
        output: A new or empty folder.
        request: Options of the build; only those that change the graph apply, such as continuous batching and pooling.
        graph_only: Whether to omit the weights.
        reporter: Progress reporter.
        **place: Arguments of `open_checkpoint`.
    """
    watch = Stopwatch(reporter or Silent())
    with watch.stage("plan"):
        checkpoint = open_sources(
            model, request.adapter, request.draft_heads, need_weights=not graph_only, **place
        )
        plan = check(checkpoint, request)
    assembly = Assembly(checkpoint=checkpoint, plan=plan, store=Store(), watch=watch)
    with new_folder(output) as assembly.folder:
        if graph_only:
            with watch.stage("graph"):
                for program in plan.programs:
                    name = _graph_name(plan, program)
                    graphs.trace(assembly.folder, plan, program, checkpoint, name)
        else:
            _export_with_weights(assembly)
    return Exported(
        path=output / _graph_name(plan, plan.programs[0]),
        seconds=watch.seconds,
        peak_rss_bytes=peak_rss_bytes(),
    )


def _graph_name(plan: Plan, program: ProgramPlan) -> str:
    return f"{program_name(plan, program)}{Path(graphs.GRAPH).suffix}"


def _export_with_weights(assembly: Assembly) -> None:
    """Write the portable graphs, and their weights in float32 by the model's tensor names."""
    import onnx_ir as ir

    from qeff_zoo.weights import placement

    assembly.trace()
    slots = [placement.as_they_are(graph.model, graph.bindings) for graph in assembly.graphs]
    assembly.layout = plan_file(placement.together(slots), assembly.checkpoint.tensors)
    assembly.write_weights("graph")
    for program, graph in zip(assembly.plan.programs, assembly.graphs, strict=True):
        placement.place(graph.model, assembly.layout)
        ir.save(graph.model, assembly.folder / _graph_name(assembly.plan, program))
