# SPDX-License-Identifier: Apache-2.0
"""Steps that assemble a planned package in a folder; `qeff_zoo.pipeline` sets their order."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qeff_zoo import targets
from qeff_zoo.checkpoint.files import some
from qeff_zoo.checkpoint.opening import Checkpoint
from qeff_zoo.checkpoint.sentence_transformers.files import LISTED
from qeff_zoo.contract import TEXT_GENERATION, find
from qeff_zoo.disk.cloning import share_all
from qeff_zoo.errors import CompileError, ParityError
from qeff_zoo.export import companions
from qeff_zoo.export.program_plan import ProgramPlan
from qeff_zoo.graph.numerics import DeviceNumerics, Format
from qeff_zoo.package import Package, prepared, proof, write_manifest
from qeff_zoo.package.programs import key_of
from qeff_zoo.pipeline import graphs, manifest_entries
from qeff_zoo.pipeline.manifest_entries import LoweredProgram
from qeff_zoo.pipeline.rounding import (
    Evened,
    even_out,
    fitted,
    matrices_of,
    measure,
    with_formats,
)
from qeff_zoo.pipeline.unread_tensors import unmatched
from qeff_zoo.plan.package_plan import Plan
from qeff_zoo.registry import require_packages
from qeff_zoo.store import Store
from qeff_zoo.targets.base import OpenOptions, Target
from qeff_zoo.terminal.progress import Stopwatch
from qeff_zoo.weights import writing as weights
from qeff_zoo.weights.bound_graph import BoundGraph
from qeff_zoo.weights.layout import FileLayout, plan_file

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.expressions import TensorSource
    from qeff_zoo.runtime.program import Program
    from qeff_zoo.validation.judgement.records import Record
    from qeff_zoo.weights.importance import Importance, Measured
    from qeff_zoo.weights.mixture import Mixture


def program_name(plan: Plan, program: ProgramPlan) -> str:
    """Return the name of a program's file or folder, without its suffix."""
    return Path(graphs.GRAPH).stem if len(plan.programs) == 1 else program.role


@dataclass(kw_only=True)
class Assembly:
    """Package under construction: each step stores results for later steps.

    Args:
        checkpoint: Sources of the package.
        plan: Plan of the package.
        store: Graphs and compiled programs of other packages.
        watch: Stopwatch of the stages.
        folder: Folder of the package.
        graphs: Portable graph of each program.
        programs: Lowered programs.
        layout: Layout of the data file.
        formats: Storage formats of matrices beside those of the plan, by their names.
        mixture: Mixture of formats; None without one.
        measured: Importance of columns and costs of errors; None before they are measured.
        importance: Importance of the columns of fitted slots.
        evened: Smoothing of per-channel matrices; None before it is measured.
        written: Size and digest of the data file.
        record: Evidence that the package agrees with Hugging Face.
        manifest: Manifest, without `files`.
    """

    checkpoint: Checkpoint
    plan: Plan
    store: Store
    watch: Stopwatch
    folder: Path = field(init=False)
    graphs: list[BoundGraph] = field(init=False)
    programs: list[LoweredProgram] = field(init=False)
    layout: FileLayout = field(init=False)
    formats: dict[str, Format] = field(init=False, default_factory=dict)
    mixture: "Mixture | None" = field(init=False, default=None)
    measured: "Measured | None" = field(init=False, default=None)
    importance: "Importance" = field(init=False, default_factory=dict)
    evened: Evened | None = field(init=False, default=None)
    written: weights.Written = field(init=False)
    record: "Record | None" = field(init=False, default=None)
    manifest: dict[str, Any] = field(init=False)

    @property
    def target(self) -> Target:
        """Target of the package."""
        return targets.find(self.plan.target)

    @property
    def runs_here(self) -> bool:
        """Whether this machine can run the package."""
        return all(self.target.runs_here(program) for program in self.plan.programs)

    def require_tools(self) -> None:
        """Refuse a build if its compiler, or a Python package that its recipe requires, is missing."""
        self.target.require_compiler()
        require_packages(self.plan.recipe)

    def require_whole_files(self) -> None:
        """Refuse a damaged file before torch is imported; remote files are checked after their download."""
        if self.checkpoint.is_at_hand:
            _ = self.checkpoint.tensors

    def copy_companions(self) -> None:
        """Copy the tokenizer, configurations and licence."""
        companions.obtain(self.checkpoint, self.folder, find(self.plan.recipe.task), self.store)

    def trace(self) -> None:
        """Fetch the weights, and trace the graph of each program or load it from the store."""
        checkpoint, plan = self.checkpoint, self.plan
        changes = graphs.changes_of(plan, checkpoint)  # refuses unmergeable adapters
        checkpoint.fetch()
        _ = checkpoint.tensors  # refuses a damaged file before the graph is traced
        checkpoint.require_finite_scales()
        with self.watch.stage("graph"):
            self.graphs = [
                graphs.obtain(plan, program, checkpoint, self.store, changes)
                for program in plan.programs
            ]
        unused = frozenset.intersection(*(graph.unused for graph in self.graphs))
        if unused and not plan.why["task.name"].endswith(LISTED):  # its modules need no head
            names = checkpoint.logical.keys() - unused
            warnings.warn(
                f"{checkpoint.name!r} has {len(unused):,} tensors for which transformers' model of {plan.recipe.task} "
                f"has no place: {some([*unmatched(unused, names)])}. They are left out of the package. Choose another "
                "task with --task if they are the head of its output.",
                stacklevel=4,
            )

    @property
    def left_out(self) -> dict[str, int]:
        """Number of checkpoint tensors that no program reads, by the beginning of their names."""
        names = frozenset.intersection(*(graph.left_out for graph in self.graphs))
        return unmatched(names, self.checkpoint.logical.keys() - names)

    def choose_formats(self) -> None:
        """Choose the formats of single matrices beside int4 or per-channel int8, and smooth the inputs of the latter.

        Those are all matrices of a mixture, or those whose inputs stay uneven.

        Raises:
            PlanError: No mixture has so many bits a weight.
        """
        from qeff_zoo.weights import mixture

        quantization = self.plan.spec["quantization"]
        programs = self.plan.programs
        if any(one.weights.per_channel for one in programs):
            self._even_out()
            return
        if "bits" not in quantization:
            return
        bits = quantization["bits"]
        with self.watch.stage("lower"):
            matrices = matrices_of(
                self.target, programs, self.graphs, self.checkpoint, quantization.get("block_size")
            )
            if self.plan.why["quantization.bits"] == "user":
                matrices.require_within(bits)
            bits = matrices.nearest(bits)
        self._measure(costs=True)
        assert self.measured is not None
        with self.watch.stage("formats", len(matrices.groups), "matrix") as advance:
            self.mixture = mixture.choose(matrices, bits, self.checkpoint, self.measured, advance)
        self.formats = dict(self.mixture.formats)

    def _even_out(self) -> None:
        """Smooth the inputs of per-channel matrices, and choose blocks where they stay uneven."""
        from qeff_zoo.runtime.text.tokenizer import Tokenizer

        with self.watch.stage("smoothing"):
            tokenizer = Tokenizer.find(self.folder)
            self.evened = even_out(self.checkpoint, self.plan.programs, self.graphs, tokenizer)
            self.formats = dict(self.evened.formats)
            if self.evened.smoothing:
                self.evened.smoothing.save(self.folder)

    @property
    def source(self) -> "TensorSource":
        """Tensors that are written: those of the checkpoint, after smoothing."""
        return self.evened.read(self.checkpoint) if self.evened else self.checkpoint

    def lower(self) -> None:
        """Lower each graph for the target, and lay out the data file."""
        from qeff_zoo.weights import placement

        with self.watch.stage("lower"):
            programs = with_formats(self.plan.programs, self.formats)
            self.programs = [
                LoweredProgram(plan=program, graph=graph, lowered=self.target.lower(graph, program))
                for program, graph in zip(programs, self.graphs, strict=True)
            ]
            slots = placement.together(program.lowered.slots for program in self.programs)
            self.layout = plan_file(slots, self.source.tensors)

    def weigh(self) -> None:
        """Measure how much the columns of a decoder's matrices matter, if any is rounded by that, and keep it."""
        from qeff_zoo.weights.importance import of_slots, save

        names = fitted(self.layout)
        if names and self.measured is None:
            self._measure()
        if names and self.measured and self.measured.importance:
            self.importance, kept = of_slots(self.measured.importance, names)
            save(kept, self.folder)

    def _measure(self, *, costs: bool = False) -> None:
        """Set `measured`; with `costs`, costs of errors too."""
        from qeff_zoo.runtime.text.tokenizer import Tokenizer

        with self.watch.stage("importance"):
            tokenizer = Tokenizer.find(self.folder)
            self.measured = measure(self.checkpoint, self.plan.recipe.task, tokenizer, costs=costs)

    def write_weights(self, of: str = "package") -> None:
        """Write the data file of all programs.

        Args:
            of: Owner of the weights, for the error of a full disk.
        """
        from qeff_zoo.graph.external_data import WEIGHTS

        self.store.require_space(self.folder, self.layout.nbytes, f"the {of}'s weights")
        with self.watch.stage("weights", self.layout.nbytes) as advance:
            path = self.folder / WEIGHTS
            self.written = weights.write(self.layout, self.source, path, advance, self.importance)

    def predict(self, level: str | None) -> None:
        """Compare the lowered programs with Hugging Face, in their device's numerics, and keep the evidence.

        A prediction proves nothing about a compiled program, unless it is known to be compiled from exactly these
        graphs.
        """
        from qeff_zoo.validation import ladder

        entries = [
            {**manifest_entries.program_entry(self.plan, program, ""), "path": ""}
            for program in self.programs
        ]
        entries = [{**entry, "program_key": key_of(entry)} for entry in entries]
        manifest = manifest_entries.manifest(self.checkpoint, self.plan, entries, 0, self.watch)
        package = Package(self.folder, {**manifest, "files": [{"size": self.layout.nbytes}]})
        lowered = {program.plan.role: program.lowered for program in self.programs}
        numerics = {entry["role"]: DeviceNumerics.of_program(entry) for entry in entries}

        def opens(
            numerics: Mapping[str, DeviceNumerics], role: str, options: OpenOptions
        ) -> "Program":
            return self.target.predict(
                lowered[role],
                self.layout,
                self.folder,
                package.program(role),
                numerics=numerics[role],
                options=options,
            )

        exact = {
            role: replace(device, activations="float32", states=None)
            for role, device in numerics.items()
        }
        with self.watch.timed("predict") as reporter:
            self.record = ladder.validate(
                package,
                self.checkpoint,
                level=level or "emulated",
                reporter=reporter,
                opening=partial(opens, numerics),
                exact=partial(opens, exact) if self.plan.recipe.task == TEXT_GENERATION else None,
            )
        self.record.save_evidence(self.folder)

    def compile(self) -> list[dict[str, Any]]:
        """Compile each program; return the entries of the manifest."""
        with self.watch.stage("compile"):
            try:
                return [self._compile(program) for program in self.programs]
            except CompileError as error:
                kept = self.keep()
                raise CompileError(f"{error}\nAll that it read is in {str(kept)!r}.") from error

    def _compile(self, program: LoweredProgram) -> dict[str, Any]:
        """Compile a program, or reuse the identical compiled program of another package in the store."""
        entry = self._entry(program)
        stored = self.store.program(key_of(entry))
        if stored is not None:
            package, compiled = stored
            share_all(package.path / compiled.path, self.folder / compiled.path)
            return {**entry, "path": compiled.path}
        name = program_name(self.plan, program.plan)
        path = self.target.compile(program.lowered, self.layout, self.folder, name, program.plan)
        return {**entry, "path": path.relative_to(self.folder).as_posix()}

    def prepare(self) -> list[dict[str, Any]]:
        """Write the inputs of a compiler on another machine; return the entries of the manifest."""
        named = {
            program_name(self.plan, program.plan): (program.plan, program.lowered)
            for program in self.programs
        }
        paths = self.target.prepare(named, self.layout, self.folder)
        return [
            {**self._entry(program), "path": path.as_posix()}
            for program, path in zip(self.programs, paths, strict=True)
        ]

    def _entry(self, program: LoweredProgram) -> dict[str, Any]:
        return manifest_entries.program_entry(self.plan, program, f"sha256:{self.written.sha256}")

    def describe(self, entries: list[dict[str, Any]], *, proved: bool) -> None:
        """Create the manifest.

        Args:
            entries: Entries of the programs.
            proved: Whether the record of a prediction covers the compiled programs.
        """
        read = len({name for graph in self.graphs for name in graph.bindings})
        self.manifest = manifest_entries.manifest(
            self.checkpoint, self.plan, entries, read, self.watch, self.left_out
        )
        if self.record and proved:
            self.manifest |= {**self.record.in_manifest(), "validated": self.record.level}

    def write_package(self, entries: list[dict[str, Any]]) -> Package:
        """Write the manifest of compiled programs, and the files for other software; return the package."""
        with self.watch.stage("package"):
            self.describe(entries, proved=prepared.is_known(self.plan.resolved.toolchain))
            self.target.write_sidecars(self.folder, self.manifest)
            if not self.target.needs_weights:
                self.data_file.unlink()
            return write_manifest(self.folder, self.manifest, self.digests)

    def write_prepared(self) -> None:
        """Write the inputs and the commands of a compiler on another machine."""
        with self.watch.stage("prepare"):
            self.describe(self.prepare(), proved=True)
            manifest = {**self.manifest, "build_key": self.plan.build_key}
            prepared.write(self.folder, manifest, self.digests)

    @property
    def data_file(self) -> Path:
        """Path of the data file."""
        from qeff_zoo.graph.external_data import WEIGHTS

        return self.folder / WEIGHTS

    @property
    def digests(self) -> dict[str, tuple[int, str]]:
        """Size and digest of the data file, by its name; empty if the file was removed."""
        known = (self.written.nbytes, self.written.sha256)
        return {self.data_file.name: known} if self.data_file.is_file() else {}

    def validate(self, package: Package, level: str | None) -> None:
        """Compare the package with Hugging Face, and record the evidence in its manifest."""
        from qeff_zoo.validation import ladder

        with self.watch.timed("validate") as reporter:
            record = self.record = ladder.validate(
                package, self.checkpoint, level=level or self.target.level, reporter=reporter
            )
            record.save_evidence(self.folder)
            level = record.level if record.passed else "none"
            manifest = {**self.manifest, **record.in_manifest(), "validated": level}
            write_manifest(self.folder, manifest, self.digests)
        if record.passed:
            advice = self.mixture.advice if self.mixture else ""
            for text in proof.warnings(record.costs, self.checkpoint.name, advice):
                warnings.warn(text, stacklevel=4)

    def call_once(self, package: Package) -> None:
        """Check that a package without validation can be opened and called."""
        from qeff_zoo.validation.trial import package_runner

        package_runner.call_once(package)

    def keep(self) -> Path | None:
        """Keep the folder of a failed build."""
        return self.store.failed(self.folder, self.plan.build_key)

    def require_agreement(self, *, keep: bool = True) -> None:
        """Refuse a package that disagrees with Hugging Face.

        Args:
            keep: Whether to keep its folder with the evidence.

        Raises:
            ParityError: The package disagrees.
        """
        if self.record is None or self.record.passed:
            return
        kept = self.keep() if keep else None
        fate = (
            f"It was not promoted; the evidence is in {str(kept)!r}" if kept else "It was not kept"
        )
        raise ParityError(
            f"The package of {self.checkpoint.name!r} disagrees with Hugging Face: {'; '.join(self.record.failures)}. "
            f"{fate}. Check the recipe, or build with --no-validate to look into it."
        )
