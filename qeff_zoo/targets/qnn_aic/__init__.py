# SPDX-License-Identifier: Apache-2.0
"""Target `qnn-aic`: Qualcomm Cloud AI 100, compiled by the QNN SDK: the graph and the runtime are those of `qaic`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qeff_zoo.errors import CompileError
from qeff_zoo.targets.base import Finding, Lowered, Resolved
from qeff_zoo.targets.qaic import QaicTarget
from qeff_zoo.targets.qaic.options import QaicOptions
from qeff_zoo.targets.qnn_aic.options import QnnAicOptions

if TYPE_CHECKING:
    from qeff_zoo.export.program_plan import ProgramPlan
    from qeff_zoo.recipe import Shape
    from qeff_zoo.weights.layout import FileLayout


@dataclass(frozen=True)
class QnnAicTarget(QaicTarget):
    """See `qeff_zoo.targets.base.Target`."""

    name: str = "qnn-aic"
    weights: tuple[str, ...] = ("fp32",)  # of integers in its converter nothing is known
    keeps_float8: bool = False
    reads: tuple[str, ...] = ("text",)
    roles: tuple[str, ...] = ()
    lora_unsupported: str = "its converter is untested with matrices that the host writes"
    options: tuple[type, ...] = (QaicOptions, QnnAicOptions)

    def problems(
        self, config: Mapping[str, Any], shape: "Shape", options: Mapping[str, Any]
    ) -> list[str]:
        """Return choices that conflict with each other or with the model."""
        from . import qnn_config

        return [*super().problems(config, shape, options), *qnn_config.problems(options)]

    def resolve(self, config: Mapping[str, Any], options: Mapping[str, Any]) -> Resolved:
        """Return the SDK of this machine, and the types that the QPC will hold."""
        from . import sdk

        return replace(super().resolve(config, options), toolchain={sdk.GENERATOR: sdk.installed()})

    def commands(self, program: "ProgramPlan", name: str) -> list[list[str]]:
        """Return what compiles a program, in the folder that it was prepared in."""
        from . import command

        return command.commands(program, name)

    def require_compiler(self) -> None:
        """Refuse to begin without the SDK."""
        from . import sdk

        if why := sdk.lacking():
            raise CompileError(
                f"Target 'qnn-aic' cannot be compiled here: {why}; expected where the QNN SDK is. Install it and set "
                f"{sdk.VARIABLE}, or build with --prepare-only --output DIR and compile that folder where the SDK is."
            )

    def examine(self) -> list[Finding]:
        """Look for the QNN SDK; what it compiles runs by the Platform SDK."""
        from . import sdk

        return [sdk.examine()]

    def prepare(
        self,
        programs: Mapping[str, tuple["ProgramPlan", Lowered]],
        layout: "FileLayout",
        folder: Path,
    ) -> list[Path]:
        """Write graphs, their configs and the script that compiles them."""
        from . import preparing

        return preparing.prepare(programs, layout, folder)


TARGET = QnnAicTarget()
