# SPDX-License-Identifier: Apache-2.0
"""Base class of targets: the steps and properties of a compiler, each with the default of a plain CPU target.

A new target overrides `resolve`, `lower`, `compile` and `open`, and the defaults that do not fit.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from qeff_zoo.errors import CompileError
from qeff_zoo.graph.numerics import STORED, DeviceNumerics, Numerics

if TYPE_CHECKING:
    from qeff_zoo.export.program_plan import ProgramPlan
    from qeff_zoo.package import Package
    from qeff_zoo.package.programs import CompiledProgram
    from qeff_zoo.recipe import Shape
    from qeff_zoo.runtime.program import Program
    from qeff_zoo.weights.bound_graph import BoundGraph
    from qeff_zoo.weights.layout import FileLayout, Slot

#: Ways of storing a checkpoint's quantized matrices: a code for programs, the end of a sentence for people.
STORED_WAYS: Mapping[str, str] = MappingProxyType(
    {
        "kept": "as the checkpoint stores them",
        "rounded": "rounded to int8, since no kernel takes them as they are stored",
        "decoded": "in float32, since no kernel takes them as they are stored",
    }
)


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """Additions of a target to a plan.

    Args:
        toolchain: Versions of the lowering and compiling packages, by distribution; they are part of a package's
            identity.
        needs: Versions that a machine requires to run the package, by name.
        storage: Format of matrices in programs, if it differs from the chosen one.
        states: Data types of float states in programs, by kind, if they differ from those of the graph.
        warnings: Warnings about such a build, one sentence each.
    """

    toolchain: Mapping[str, str]
    needs: Mapping[str, str]
    storage: str | None = None
    states: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """Measured settings of a model that are nearest to those of a build.

    Args:
        batch_size: Inputs of a call.
        options: Options of the target by name.
        by: Model and objective, for people.
        note: Measured speed, and settings that a package lacks, as a sentence.
    """

    batch_size: int
    options: Mapping[str, Any]
    by: str
    note: str


@dataclass(frozen=True, kw_only=True)
class Lowered:
    """Graph of one program as the input of a target's compiler, and the sources of its weights.

    Args:
        model: An `onnx_ir.Model`; initializers have no data until the data file is laid out.
        slots: Contents of the data file.
        numerics: Roundings of the program.
        ways: Implementations of attention and expert blocks, by codes of `Target.ways`, with their numbers:
            `{"attention": {"native": 4}}`.
    """

    model: Any
    slots: Sequence["Slot"]
    numerics: Numerics
    ways: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Result of one check of `doctor`.

    Args:
        name: Name of the check.
        status: Status: "ok"; "missing" for an absence that may be harmless; "warn" for a future problem.
        detail: Result of the check.
        advice: Advice to the user; empty if there is nothing to do.
    """

    name: str
    status: Literal["ok", "missing", "warn"]
    detail: str
    advice: str = ""


@dataclass(frozen=True, kw_only=True)
class OpenOptions:
    """Options of a program that is opened.

    Args:
        threads: CPU threads per operator; None for one per physical core.
        routing: Whether calls also return the choices of routers and indexers: outputs named `topk.0`, `max.0`, …, in
            the order of their computation. A target without support omits them.
        smoke_test: Whether one call is to show that the program can run: its results may be meaningless.
        unrounded: Whether products do not round activations, for an exact comparison; for targets that support it.
        brief: Whether few calls follow, so that preparations that only many calls repay are left out.
    """

    threads: int | None = None
    routing: bool = False
    smoke_test: bool = False
    unrounded: bool = False
    brief: bool = False


#: The default options.
USUAL_OPENING = OpenOptions()


@dataclass(frozen=True)
class Target(ABC):
    """A compiler, and the device that runs its programs. Importing a target imports nothing heavy.

    Args:
        name: Value of `--target` and of the manifest.
        revision: Revision, raised if the same graph is lowered or compiled differently; part of a package's identity.
        weights: Supported storage formats of weights, of `WEIGHTS` and `STORED` of `qeff_zoo.graph.numerics`; the first
            is the default.
        keeps_float8: Whether `STORED` also keeps 8-bit floats, but not by default: not every compiler accepts them.
        level: Validation level of a package with real weights that agrees with Hugging Face.
        needs_weights: Whether a compiled program reads the data file at run time; otherwise the package omits it.
        reads: Modalities of packages for the target, of those of `qeff_zoo.contract.Task.reads`.
        roles: Roles of the programs that a package may have beside the main one.
        fused_roles: Roles that its main programs compute themselves, for which other targets have a program.
        static_shapes: Whether its programs take only the sizes of their compilation, also for images.
        lora_unsupported: Reason why its programs take no LoRA adapters at run time; empty if they do.
        runs_on_cards: Whether its programs run on Cloud AI cards.
        compiles_offline: Whether its compiler may run on another machine; then it has `commands`, `prepare`,
            `runs_here` and `predict`.
        unrounded: Row of `qeff_zoo.validation.judgement.parity.TOLERANCES` for programs whose activations are not
            rounded; empty if it has no `open_unrounded`.
        ways: Possible implementations of a part of a graph: a code for programs, the end of a sentence for people.
        options: Dataclasses whose fields are its build options; see `qeff_zoo.package.option`.
        objectives: Objectives with measured settings of other models; see `tune`.
    """

    name: str
    revision: int = 1
    weights: tuple[str, ...] = ("fp32", STORED)
    keeps_float8: bool = False
    level: str = "checkpoint"
    needs_weights: bool = True
    reads: tuple[str, ...] = ("text",)
    roles: tuple[str, ...] = ()
    fused_roles: tuple[str, ...] = ()
    static_shapes: bool = False
    lora_unsupported: str = "it is untested"
    runs_on_cards: bool = False
    compiles_offline: bool = False
    unrounded: str = ""
    ways: Mapping[str, str] = field(default_factory=lambda: STORED_WAYS)
    options: tuple[type, ...] = ()
    objectives: tuple[str, ...] = ()

    def tune(
        self, task: str, config: Mapping[str, Any], name: str, length: int, objective: str
    ) -> Tuned | None:
        """Return the measured settings that are nearest to a model; None if there are none of its task.

        Args:
            task: Task of the package.
            config: Config of the model.
            name: Name of the checkpoint.
            length: Longest text of the package in tokens; 0 if it reads images.
            objective: One of `objectives`.
        """
        return None

    def problems(
        self, config: Mapping[str, Any], shape: "Shape", options: Mapping[str, Any]
    ) -> list[str]:
        """Return the conflicts of a build, before any expensive step: one sentence each.

        Args:
            config: Raw config.json of the checkpoint.
            shape: Sizes of the package.
            options: Options of this target, by name, without those that are off.
        """
        return []

    @abstractmethod
    def resolve(self, config: Mapping[str, Any], options: Mapping[str, Any]) -> Resolved:
        """Return the versions of a build on this machine, and its warnings.

        Args:
            config: Raw config.json, with the chosen key/value heads.
            options: Options of this target, see `problems`.
        """

    def require_compiler(self) -> None:  # noqa: B027 -- what qeff-zoo itself compiles needs nothing
        """Refuse a build that this machine cannot compile, before any expensive step.

        Raises:
            CompileError: There is no compiler.
        """

    @abstractmethod
    def lower(self, graph: "BoundGraph", program: "ProgramPlan") -> Lowered:
        """Lower a portable graph, in place, to the input of the compiler.

        Raises:
            CompileError: The graph cannot be lowered.
        """

    @abstractmethod
    def compile(
        self,
        lowered: Lowered,
        layout: "FileLayout",
        folder: Path,
        name: str,
        program: "ProgramPlan",
    ) -> Path:
        """Compile a lowered graph whose weights are in the folder's data file.

        Args:
            lowered: Result of `lower`.
            layout: Layout of the data file.
            folder: Folder of the package under construction.
            name: Name of the program's file or folder, without its suffix.
            program: Sizes and flags of the program.

        Returns:
            The program's path in the folder.

        Raises:
            CompileError: The compiler failed.
        """

    @abstractmethod
    def open(
        self, package: "Package", role: str, options: OpenOptions = USUAL_OPENING
    ) -> "Program":
        """Open a program at run time.

        Args:
            package: A package for this target.
            role: Role of the program.
            options: Options of the program.

        Raises:
            GenerationError: The program cannot be opened, or its KV cache does not fit into memory.
        """

    def write_sidecars(self, folder: Path, manifest: Mapping[str, Any]) -> None:  # noqa: B027 -- most write none
        """Write files by which other software opens a package.

        Args:
            folder: Folder of a package under construction, complete but for these.
            manifest: Final manifest, without `files`.
        """

    def describe_sidecars(self, manifest: Mapping[str, Any]) -> str:
        """Return a line about other software that opens a package, or the reason against it; empty for none.

        Args:
            manifest: Manifest of the package.
        """
        return ""

    def examine(self) -> list[Finding]:
        """Return the checks of this target's compiler and runtime for `doctor`; imports nothing heavy."""
        return []

    # --- a compiler on another machine (`compiles_offline`) ---

    def require_offline(self) -> None:
        """Refuse to prepare a folder for a compiler that always runs on the building machine.

        Raises:
            CompileError: The target compiles where it builds.
        """
        if not self.compiles_offline:
            raise CompileError(
                f"Target {self.name!r} is compiled where it is built; --prepare-only is for one whose compiler may be "
                "on another machine. Build without it."
            )

    def commands(self, program: "ProgramPlan", name: str) -> list[list[str]]:
        """Return the commands that compile a program, in order, with paths relative to its folder.

        Args:
            program: The program.
            name: Name of the program, see `compile`.
        """
        return []

    def prepare(
        self,
        programs: Mapping[str, tuple["ProgramPlan", Lowered]],
        layout: "FileLayout",
        folder: Path,
    ) -> list[Path]:
        """Write the inputs of the compiler, and `qeff_zoo.package.prepared.SCRIPT`, which runs it.

        Args:
            programs: Planned and lowered programs, by their names, see `compile`.
            layout: Layout of the folder's data file.
            folder: Folder under preparation.

        Returns:
            Paths of the future programs relative to the folder, all below one folder of it.

        Raises:
            CompileError: An option cannot be stored with a graph.
        """
        raise NotImplementedError(f"{self.name} is compiled where it is built.")

    def runs_here(self, program: "ProgramPlan") -> bool:
        """Return whether this machine can run a program now; otherwise its results are emulated.

        Args:
            program: The program.
        """
        return True

    def predict(
        self,
        lowered: Lowered,
        layout: "FileLayout",
        folder: Path,
        program: "CompiledProgram",
        *,
        numerics: DeviceNumerics,
        options: OpenOptions = USUAL_OPENING,
    ) -> "Program":
        """Open a lowered graph in its device's numerics, to run it on this machine's CPU.

        Args:
            lowered: Result of `lower`; not modified.
            layout: Layout of the folder's data file.
            folder: Folder with the data file; no other file remains there.
            program: Program of the future manifest.
            numerics: Numerics of the device.
            options: Options of the program, see `open`.

        Raises:
            GenerationError: The KV cache does not fit into memory.
        """
        raise NotImplementedError(f"{self.name} has no numerics of its own to predict.")
