# SPDX-License-Identifier: Apache-2.0
"""Target `qaic`: Qualcomm Cloud AI 100, compiled by qaic-compile of its SDK, on this machine or on another."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qeff_zoo.errors import CompileError, GenerationError
from qeff_zoo.graph.numerics import FLOAT16, STORED
from qeff_zoo.targets.base import (
    USUAL_OPENING,
    Finding,
    Lowered,
    OpenOptions,
    Resolved,
    Target,
    Tuned,
)
from qeff_zoo.targets.qaic.lowering_report import WAYS
from qeff_zoo.targets.qaic.objectives import OBJECTIVES
from qeff_zoo.targets.qaic.options import QaicOptions

if TYPE_CHECKING:
    from qeff_zoo.export.program_plan import ProgramPlan
    from qeff_zoo.graph.numerics import DeviceNumerics
    from qeff_zoo.package import Package
    from qeff_zoo.package.programs import CompiledProgram
    from qeff_zoo.recipe import Shape
    from qeff_zoo.runtime.program import Program
    from qeff_zoo.weights.bound_graph import BoundGraph
    from qeff_zoo.weights.layout import FileLayout


@dataclass(frozen=True)
class QaicTarget(Target):
    """See `qeff_zoo.targets.base.Target`."""

    name: str = "qaic"
    revision: int = 2
    weights: tuple[str, ...] = ("fp32", STORED)
    keeps_float8: bool = True
    level: str = "device"
    lora_unsupported: str = ""
    needs_weights: bool = False
    reads: tuple[str, ...] = ("text", "image", "video", "audio")
    roles: tuple[str, ...] = ("vision", "audio", "encoder", "alignment")
    fused_roles: tuple[str, ...] = ("heads",)
    runs_on_cards: bool = True
    compiles_offline: bool = True
    static_shapes: bool = True
    ways: Mapping[str, str] = field(default_factory=lambda: WAYS)
    options: tuple[type, ...] = (QaicOptions,)
    objectives: tuple[str, ...] = OBJECTIVES

    def tune(
        self, task: str, config: Mapping[str, Any], name: str, length: int, objective: str
    ) -> Tuned | None:
        """Return the settings of the nearest row of Qualcomm's tables."""
        from . import objectives

        row = objectives.nearest(task, config, name, length, objective)
        if row is None:
            return None
        known = {item.name for item in fields(QaicOptions) if self.name in item.metadata["targets"]}
        options = {name: value for name, value in row.options.items() if name in known}
        lost = [*row.left_out, *sorted({*row.options} - known)]
        note = (
            f"--profile {objective} follows Qualcomm's row of {row.model!r} ({row.task}, length {row.length}), "
            f"{row.measured} with {row.instances} programs of {row.cores} cores at once on a card. This package was "
            "not measured; start as many programs."
        )
        if lost:
            note += f" Not set: {', '.join(lost)}."
        return Tuned(
            batch_size=row.batch_size, options=options, by=f"{objective}: {row.model}", note=note
        )

    def problems(
        self, config: Mapping[str, Any], shape: "Shape", options: Mapping[str, Any]
    ) -> list[str]:
        """Return choices that conflict with each other or with the model."""
        from . import conflicts

        return [
            *conflicts.problems(config, options),
            *conflicts.of_blocks(config, shape, options),
            *conflicts.of_sampler(config, shape, options),
        ]

    def resolve(self, config: Mapping[str, Any], options: Mapping[str, Any]) -> Resolved:
        """Return the SDK of this machine, and the types that the QPC will hold."""
        from . import configs, conflicts, sdk

        return Resolved(
            toolchain={"qaic-compile": sdk.installed("apps")},
            needs={"qaicrt": ""},
            storage="mxfp6" if options.get("mxfp6_matmul") else "fp16",
            states=configs.state_types(options),
            warnings=conflicts.warnings(config, options),
        )

    def lower(self, graph: "BoundGraph", program: "ProgramPlan") -> Lowered:
        """Turn a portable graph into one of the compiler's own operators, in place.

        Matrices are stored in float16, but where the compiler is to compress them: those it has to find as constants
        that products read, without a cast between. It compresses no integers that a checkpoint has.
        """
        from qeff_zoo.targets.qaic.blocking import Blocking

        from . import lowering, prediction

        mxfp6 = prediction.matrices_of(graph, program.flags)
        weights = program.weights if program.flags.get("mxfp6_matmul") else FLOAT16
        blocking = Blocking.of(program.flags)
        lowered = lowering.lower(graph, replace(program, weights=weights), blocking)
        kept = lowered.numerics.matrices
        names = {name for one in kept for name in (one.name, one.name.rpartition(".")[0])}
        others = [matrix for matrix in mxfp6 if matrix.name not in names]
        numerics = replace(lowered.numerics, matrices=(*kept, *others))
        return replace(lowered, numerics=numerics)

    def commands(self, program: "ProgramPlan", name: str) -> list[list[str]]:
        """Return what compiles a program, in the folder that it was prepared in."""
        from . import command

        files = command.Files(name)
        words = command.arguments(program, name)
        return [["qaic-compile", *words, f"-aic-binary-dir={files.qpc}"]]

    def require_compiler(self) -> None:
        """Refuse to begin without the SDK."""
        from . import sdk

        if sdk.compiler() is None:
            raise CompileError(
                f"Target 'qaic' cannot be compiled here: {sdk.lacking()}; expected the Cloud AI Apps SDK. Install it "
                f"or set {sdk.COMPILER_VARIABLE}, or build with --prepare-only --output DIR and compile that folder "
                "where the SDK is."
            )

    def examine(self) -> list[Finding]:
        """Look for the Cloud AI SDKs."""
        from . import sdk

        return [sdk.examine(part) for part in ("apps", "platform")]

    def prepare(
        self,
        programs: Mapping[str, tuple["ProgramPlan", Lowered]],
        layout: "FileLayout",
        folder: Path,
    ) -> list[Path]:
        """Write graphs, their configs and the script that compiles them."""
        from . import preparing

        return preparing.prepare(programs, layout, folder)

    def compile(
        self,
        lowered: Lowered,
        layout: "FileLayout",
        folder: Path,
        name: str,
        program: "ProgramPlan",
    ) -> Path:
        """Prepare a program, run the compiler, and keep the QPC with its configs and log."""
        from qeff_zoo.package.prepared import NOTE, SCRIPT

        from . import command, driver

        (path,) = self.prepare({name: (program, lowered)}, layout, folder)
        driver.run(folder)
        for used in (SCRIPT, command.Files(name).model, path / NOTE):
            (folder / used).unlink()
        return folder / path

    def open(
        self, package: "Package", role: str, options: OpenOptions = USUAL_OPENING
    ) -> "Program":
        """Open a QPC on the cards of this machine; no option applies to a card."""
        from . import features, session

        return features.adapted(session.open_program(package, role))

    def runs_here(self, program: "ProgramPlan") -> bool:
        """Whether this machine has free cards of the kind that a program is compiled for.

        Of one that returns tokens alone, too little could be compared there.
        """
        from . import cards

        if program.flags.get("include_sampler"):
            return False
        try:
            cards.choose(cards.sdk()[0], program.flags)
        except GenerationError:
            return False
        return True

    def predict(
        self,
        lowered: Lowered,
        layout: "FileLayout",
        folder: Path,
        program: "CompiledProgram",
        *,
        numerics: "DeviceNumerics",
        options: OpenOptions = USUAL_OPENING,
    ) -> "Program":
        """Open a lowered graph in ONNX Runtime, in the numerics of a card."""
        from . import features, prediction

        opened = prediction.open_program(
            lowered.model,
            layout,
            folder,
            program,
            numerics=numerics,
            options=options,
        )
        return features.adapted(opened)


TARGET = QaicTarget()
