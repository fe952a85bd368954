# SPDX-License-Identifier: Apache-2.0
"""Targets: compilers and devices of packages. One folder per target, found by its name.

A target resolves what a plan leaves to it, lowers the portable graph of a program to the form that its compiler takes
best, compiles that, and opens the program to run it. The pipeline, the runtime and validation know this protocol alone.
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from qeff_zoo.graph.numerics import DeviceNumerics, Numerics

if TYPE_CHECKING:
    from qeff_zoo.export.graphs import BoundGraph
    from qeff_zoo.package import Package
    from qeff_zoo.package.programs import CompiledProgram
    from qeff_zoo.plan.programs import ProgramPlan
    from qeff_zoo.recipe import Shape
    from qeff_zoo.runtime.program import Program
    from qeff_zoo.weights.layout import FileLayout, Slot

#: Every target, the default first: a module of this package with a value `TARGET`, `-` written `_`.
NAMES = ("ort", "openvino", "qnn-htp", "qaic", "qnn-aic")
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


class Target(Protocol):
    """What every target says and does. Importing one imports nothing heavy."""

    @property
    def name(self) -> str:
        """As in `--target` and the manifest."""

    @property
    def revision(self) -> int:
        """Raised when the same graph comes to be lowered or compiled otherwise: part of a package's identity."""

    @property
    def weights(self) -> tuple[str, ...]:
        """Which of `WEIGHTS` and `STORED` of `qeff_zoo.graph.numerics` it takes weights in."""

    @property
    def beside(self) -> tuple[str, ...]:
        """Roles of the programs that a package for it may have beside the one that answers."""

    @property
    def within(self) -> tuple[str, ...]:
        """Roles of what its programs that answer compute themselves, where others have a program for it."""

    @property
    def fixed(self) -> bool:
        """Whether its programs take the sizes alone that they were compiled for, also of pictures."""

    @property
    def ways(self) -> Mapping[str, str]:
        """How it may compute a part of a graph: a code for programs, a sentence's end for people."""

    @property
    def level(self) -> str:
        """What a package with real weights that agrees with Hugging Face is validated to."""

    @property
    def keeps_weights(self) -> bool:
        """Whether what it compiles reads the data file when it runs; else the package is without it."""

    @property
    def reads(self) -> tuple[str, ...]:
        """What packages for it may read, of what `qeff_zoo.tasks.Task.reads` says."""

    @property
    def no_adapters(self) -> str:
        """Why its programs take no adapters (LoRA) while they run, in words; nothing where they do."""

    def problems(
        self, config: Mapping[str, Any], shape: "Shape", options: Mapping[str, Any]
    ) -> list[str]:
        """Say what stands in the way of a build, before anything expensive.

        Args:
            config: Raw config.json of the checkpoint.
            shape: Sizes that were chosen.
            options: Choices that are for this target alone, by name, without those that are off.
        """

    def resolve(self, config: Mapping[str, Any], options: Mapping[str, Any]) -> Resolved:
        """Return the versions that a build on this machine has, and what may go wrong with it.

        Args:
            config: As for `problems`, with the key/value heads that were chosen.
            options: As for `problems`.
        """

    def require_compiler(self) -> None:
        """Refuse a build that could not be compiled here, before anything expensive.

        Raises:
            CompileError: There is no compiler.
        """

    def lower(self, graph: "BoundGraph", program: "ProgramPlan") -> Lowered:
        """Turn a portable graph, in place, into what the compiler takes.

        Raises:
            CompileError: The graph cannot be lowered.
        """

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
            lowered: By `lower`.
            layout: Of the data file.
            folder: Of the package that is being built.
            name: Of the program's file or folder, without what its name ends with.
            program: Its sizes and flags.

        Returns:
            The program's path in the folder.

        Raises:
            CompileError: The compiler refused.
        """

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
            package: Compiled for this target.
            role: Of the program.
            threads: CPU threads that compute one operator; None for one per physical core.
            choices: Let calls return what was chosen of experts and keys as well: outputs named `topk.0`, `max.0`, …,
                in the order in which they are computed. A target that cannot leaves them out.
            lean: For one call that shows that it can be made: what it returns may mean nothing.

        Raises:
            GenerationError: It cannot be opened, or its states do not fit into memory.
        """


@runtime_checkable
class OfflineCompiled(Protocol):
    """What a target says and does besides whose compiler may be on another machine."""

    def commands(self, program: "ProgramPlan", name: str) -> list[list[str]]:
        """Return the commands that compile a program, in their order, with paths relative to its folder.

        Args:
            program: As it was planned.
            name: As for `Target.compile`.
        """

    def prepare(
        self,
        programs: Mapping[str, tuple["ProgramPlan", Lowered]],
        layout: "FileLayout",
        folder: Path,
    ) -> list[Path]:
        """Write what the compiler reads, and `qeff_zoo.package.prepared.SCRIPT`, which runs it.

        Args:
            programs: Each as it was planned and lowered, by its name as for `Target.compile`.
            layout: Of the folder's data file.
            folder: Of what is being prepared.

        Returns:
            Where the programs will be, relative to the folder, all below one folder of it.

        Raises:
            CompileError: A choice cannot be kept with a graph.
        """

    def runs_here(self, program: "ProgramPlan") -> bool:
        """Tell whether this machine could run a program now: else what it will compute is predicted.

        Args:
            program: As it was planned.
        """

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
        """Open what a program is compiled from in its device's numerics, to run it on this machine's CPU.

        Args:
            lowered: By `lower`; it stays as it is.
            layout: Of the folder's data file.
            folder: With the data file; nothing is left there besides.
            program: As its manifest will have it.
            numerics: Of the device.
            threads: As for `Target.open`.
            choices: As for `Target.open`.

        Raises:
            GenerationError: Its states do not fit into memory.
        """


@runtime_checkable
class WritesSidecars(Protocol):
    """What a target says and does besides whose packages other software can open as well."""

    def accompany(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        """Write what that software reads.

        Args:
            folder: Of a package that is being built, complete but for this.
            manifest: As it will be, without `files`.
        """

    def elsewhere(self, manifest: Mapping[str, Any]) -> str:
        """Say which software opens a package, or why it does not: a line.

        Args:
            manifest: Of the package.
        """


@runtime_checkable
class Unrounding(Protocol):
    """Target whose programs round activations, and can be opened without that rounding to be compared exactly."""

    @property
    def unrounded(self) -> str:
        """Row of `qeff_zoo.validation.parity.TOLERANCES` for programs without that rounding."""

    def open_unrounded(
        self, package: "Package", role: str, *, threads: int | None = None, choices: bool = False
    ) -> "Program":
        """Open a program of the same weights whose products do not round their left side.

        Args:
            package: Compiled for this target.
            role: Of the program.
            threads: As for `Target.open`.
            choices: As for `Target.open`.

        Raises:
            GenerationError: Its states do not fit into memory.
        """


def find(name: str) -> Target:
    """Return a target by its name, one of `NAMES`."""
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    target: Target = module.TARGET
    return target
