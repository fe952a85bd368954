# SPDX-License-Identifier: Apache-2.0
"""Base class of targets: the steps of a compiler and its facts, each with the default of a plain CPU target.

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
    from qeff_zoo.graph.bound_graph import BoundGraph
    from qeff_zoo.package import Package
    from qeff_zoo.package.programs import CompiledProgram
    from qeff_zoo.plan.programs import ProgramPlan
    from qeff_zoo.recipe import Shape
    from qeff_zoo.runtime.program import Program
    from qeff_zoo.weights.layout import FileLayout, Slot

#: What became of matrices that a checkpoint stores in fewer bits: a code for programs, a sentence's end for people.
STORED_WAYS: Mapping[str, str] = MappingProxyType(
    {
        "kept": "as the checkpoint stores them",
        "rounded": "rounded to int8, since no kernel takes them as they are stored",
        "decoded": "in float32, since no kernel takes them as they are stored",
    }
)


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """What a target adds to a plan.

    Args:
        toolchain: Versions of what lowers and compiles, by distribution; they are part of a package's identity.
        needs: What a machine must have to run the package: versions by name.
        storage: How programs hold matrices, where not in the format that was chosen.
        states: By kind, in which type programs keep states of floats, where not in that of the graph.
        warnings: What may go wrong with such a build, one sentence each.
    """

    toolchain: Mapping[str, str]
    needs: Mapping[str, str]
    storage: str | None = None
    states: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Lowered:
    """The graph of one program as a target's compiler takes it, and what its weights are made of.

    Args:
        model: An `onnx_ir.Model`; initializers have no data until the data file is laid out.
        slots: What the data file must hold.
        numerics: What the program rounds.
        ways: How attentions and blocks of experts are computed, by codes of `Target.ways`, and how many each way:
            `{"attention": {"native": 4}}`.
    """

    model: Any
    slots: Sequence["Slot"]
    numerics: Numerics
    ways: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing of a machine that `doctor` examined.

    Args:
        name: What it is.
        status: "ok"; "missing" for what is not there, which may be all right; "warn" for what will cause trouble.
        detail: What was found.
        advice: What to do about it; empty if there is nothing to do.
    """

    name: str
    status: Literal["ok", "missing", "warn"]
    detail: str
    advice: str = ""


@dataclass(frozen=True)
class Target(ABC):
    """A compiler and the device that runs what it compiles. Importing a target imports nothing heavy.

    Args:
        name: Value of `--target` and of the manifest.
        revision: Part of a package's identity, raised when the same graph is lowered or compiled otherwise.
        weights: Formats of weights that it takes, of `WEIGHTS` and `STORED` of `qeff_zoo.graph.numerics`; the first
            is the default.
        level: Validation level of a package with real weights that agrees with Hugging Face.
        needs_weights: Whether a compiled program reads the data file when it runs; else the package is without it.
        reads: Modalities that packages for it may read, of those of `qeff_zoo.tasks.Task.reads`.
        roles: Roles of the programs that a package may have beside the one that answers.
        fused_roles: Roles that its answering programs compute themselves, where others have a program for it.
        static_shapes: Whether its programs take only the sizes that they were compiled for, also of images.
        lora_unsupported: Reason why its programs take no LoRA adapters at run time; empty if they do.
        runs_on_cards: Whether its programs run on Cloud AI cards.
        compiles_offline: Whether its compiler may be on another machine; then it has `commands`, `prepare`,
            `runs_here` and `predict`.
        unrounded: Row of `qeff_zoo.validation.parity.TOLERANCES` for programs whose activations are not rounded;
            empty if it has no `open_unrounded`.
        ways: How it may compute a part of a graph: a code for programs, a sentence's end for people.
        options: Dataclasses whose fields are options of a build for it; see `qeff_zoo.plan.option`.
    """

    name: str
    revision: int = 1
    weights: tuple[str, ...] = ("fp32", STORED)
    level: str = "checkpoint"
    needs_weights: bool = True
    reads: tuple[str, ...] = ("text",)
    roles: tuple[str, ...] = ()
    fused_roles: tuple[str, ...] = ()
    static_shapes: bool = False
    lora_unsupported: str = "nobody has tried it"
    runs_on_cards: bool = False
    compiles_offline: bool = False
    unrounded: str = ""
    ways: Mapping[str, str] = field(default_factory=lambda: STORED_WAYS)
    options: tuple[type, ...] = ()

    def problems(
        self, config: Mapping[str, Any], shape: "Shape", options: Mapping[str, Any]
    ) -> list[str]:
        """Return what prevents a build, before anything expensive: a sentence for each conflict.

        Args:
            config: Raw config.json of the checkpoint.
            shape: Sizes that were chosen.
            options: Options of this target, by name, without those that are off.
        """
        return []

    @abstractmethod
    def resolve(self, config: Mapping[str, Any], options: Mapping[str, Any]) -> Resolved:
        """Return the versions that a build on this machine has, and warnings about it.

        Args:
            config: Raw config.json, with the key/value heads that were chosen.
            options: As for `problems`.
        """

    def require_compiler(self) -> None:  # noqa: B027 -- what qeff-zoo itself compiles needs nothing
        """Refuse a build that could not be compiled here, before anything expensive.

        Raises:
            CompileError: There is no compiler.
        """

    @abstractmethod
    def lower(self, graph: "BoundGraph", program: "ProgramPlan") -> Lowered:
        """Turn a portable graph, in place, into what the compiler takes.

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
        """Compile a lowered graph whose weights lie in the folder's data file.

        Args:
            lowered: Result of `lower`.
            layout: Layout of the data file.
            folder: Folder of the package that is being built.
            name: Name of the program's file or folder, without its suffix.
            program: Sizes and flags of the program.

        Returns:
            The program's path in the folder.

        Raises:
            CompileError: The compiler refused.
        """

    @abstractmethod
    def open(
        self,
        package: "Package",
        role: str,
        *,
        threads: int | None = None,
        choices: bool = False,
        lean: bool = False,
    ) -> "Program":
        """Open a program to run it.

        Args:
            package: A package for this target.
            role: Role of the program.
            threads: CPU threads that compute one operator; None for one per physical core.
            choices: Whether calls return the chosen experts and keys as well: outputs named `topk.0`, `max.0`, …, in
                the order in which they are computed. A target that cannot leaves them out.
            lean: Whether one call is to show that it can be made: its results may mean nothing.

        Raises:
            GenerationError: It cannot be opened, or its states do not fit into memory.
        """

    def open_unrounded(
        self, package: "Package", role: str, *, threads: int | None = None, choices: bool = False
    ) -> "Program":
        """Open a program of the same weights whose products do not round activations, to compare it exactly.

        Args:
            package: A package for this target.
            role: Role of the program.
            threads: As for `open`.
            choices: As for `open`.

        Raises:
            GenerationError: Its states do not fit into memory.
        """
        raise NotImplementedError(f"{self.name} rounds what it cannot leave out.")

    def write_sidecars(self, folder: Path, manifest: Mapping[str, Any]) -> None:  # noqa: B027 -- most write none
        """Write files by which other software opens a package.

        Args:
            folder: Folder of a package that is being built, complete but for these.
            manifest: Manifest as it will be, without `files`.
        """

    def describe_sidecars(self, manifest: Mapping[str, Any]) -> str:
        """Return a line about the software that opens a package as well, or why it does not; empty for none.

        Args:
            manifest: Manifest of the package.
        """
        return ""

    def examine(self) -> list[Finding]:
        """Return what `doctor` says about this target's compiler and runtime; imports nothing heavy."""
        return []

    # --- a compiler that may be on another machine (`compiles_offline`) ---

    def require_offline(self) -> None:
        """Refuse to prepare a folder for a compiler that is here anyway.

        Raises:
            CompileError: The target is compiled where it is built.
        """
        if not self.compiles_offline:
            raise CompileError(
                f"Target {self.name!r} is compiled where it is built; --prepare-only is for one whose compiler may be "
                "on another machine. Build without it."
            )

    def commands(self, program: "ProgramPlan", name: str) -> list[list[str]]:
        """Return the commands that compile a program, in their order, with paths relative to its folder.

        Args:
            program: The program.
            name: As for `compile`.
        """
        return []

    def prepare(
        self,
        programs: Mapping[str, tuple["ProgramPlan", Lowered]],
        layout: "FileLayout",
        folder: Path,
    ) -> list[Path]:
        """Write what the compiler reads, and `qeff_zoo.package.prepared.SCRIPT`, which runs it.

        Args:
            programs: Planned and lowered programs, by their names as for `compile`.
            layout: Layout of the folder's data file.
            folder: Folder that is being prepared.

        Returns:
            Where the programs will be, relative to the folder, all below one folder of it.

        Raises:
            CompileError: A choice cannot be kept with a graph.
        """
        raise NotImplementedError(f"{self.name} is compiled where it is built.")

    def runs_here(self, program: "ProgramPlan") -> bool:
        """Return whether this machine could run a program now: else its results are predicted.

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
        threads: int | None = None,
        choices: bool = False,
    ) -> "Program":
        """Open a lowered graph in its device's numerics, to run it on this machine's CPU.

        Args:
            lowered: Result of `lower`; it stays as it is.
            layout: Layout of the folder's data file.
            folder: Folder with the data file; nothing is left there besides.
            program: The program as its manifest will have it.
            numerics: Numerics of the device.
            threads: As for `open`.
            choices: As for `open`.

        Raises:
            GenerationError: Its states do not fit into memory.
        """
        raise NotImplementedError(f"{self.name} has no numerics of its own to predict.")
