# SPDX-License-Identifier: Apache-2.0
"""Target `openvino`: OpenVINO for prompts and encoders, ONNX Runtime for decoding, on one graph."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qeff_zoo.errors import CompileError
from qeff_zoo.graph.numerics import STORED
from qeff_zoo.targets.base import USUAL_OPENING, Finding, Lowered, OpenOptions, Resolved
from qeff_zoo.targets.ort import OrtTarget
from qeff_zoo.versions import installed

if TYPE_CHECKING:
    from qeff_zoo.export.program_plan import ProgramPlan
    from qeff_zoo.package import Package
    from qeff_zoo.runtime.program import Program
    from qeff_zoo.weights.bound_graph import BoundGraph
    from qeff_zoo.weights.layout import FileLayout

_ENGINE = "openvino"
# OpenVINO reports each import to its maker, unless it finds this package absent.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]


@dataclass(frozen=True)
class OpenvinoTarget(OrtTarget):
    """See `qeff_zoo.targets.base.Target`."""

    name: str = "openvino"
    revision: int = 4
    weights: tuple[str, ...] = ("int8", "int4", STORED)  # its products of floats are not faster
    reads: tuple[str, ...] = ("text",)
    lora_unsupported: str = (
        "it reads prompts in a second engine, which would need them in another form"
    )
    roles: tuple[str, ...] = ()
    unrounded: str = "dequantized"
    joins_products: bool = False  # its attention takes them apart

    def resolve(self, config: Mapping[str, Any], options: Mapping[str, Any]) -> Resolved:
        """Return both engines."""
        version, other = installed(_ENGINE) or "absent", super().resolve(config, options)
        return Resolved(
            toolchain={_ENGINE: version, **other.toolchain},
            needs={_ENGINE: f">={version}", **other.needs},
        )

    def require_compiler(self) -> None:
        """Refuse to begin without OpenVINO."""
        from qeff_zoo.targets import engines

        engines.require_to_compile(self.name, _ENGINE, "openvino")

    def examine(self) -> list[Finding]:
        """Look for OpenVINO."""
        if version := installed(_ENGINE):
            return [Finding(name="OpenVINO", status="ok", detail=version)]
        advice = "Run `pip install 'qeff-zoo[openvino]'` to read prompts faster on this CPU: --target openvino."
        return [Finding(name="OpenVINO", status="missing", detail="not installed", advice=advice)]

    def lower(self, graph: "BoundGraph", program: "ProgramPlan") -> Lowered:
        """Turn a portable graph into one of ONNX Runtime's kernels, in place, if OpenVINO has them all."""
        from onnx_ir.passes import common as onnx_passes

        from . import obstacles

        lowered = super().lower(graph, program)
        onnx_passes.InlinePass()(lowered.model)  # OpenVINO knows no functions of a model
        codes = [one for one in lowered.ways.get("attention", ()) if one.startswith("portable")]
        if reasons := obstacles.of(lowered.model, [self.ways[code] for code in codes]):
            raise CompileError(
                f"Target {self.name!r} cannot run this model: {'; '.join(reasons)}. Expected caches of all keys "
                f"that plain attention reads, and operators that OpenVINO has. Build it with --target ort."
            )
        return lowered

    def compile(
        self,
        lowered: Lowered,
        layout: "FileLayout",
        folder: Path,
        name: str,
        program: "ProgramPlan",
    ) -> Path:
        """Write the graph, and make sure that OpenVINO takes it."""
        from . import session

        path = super().compile(lowered, layout, folder, name, program)
        try:
            session.compiled(path, lowered.numerics)
        except RuntimeError as error:
            raise CompileError(
                f"OpenVINO cannot compile {path.name!r}: {session.reason(error)}. Expected operators that it has. "
                f"Build it with --target ort."
            ) from error
        return path

    def open(
        self, package: "Package", role: str, options: OpenOptions = USUAL_OPENING
    ) -> "Program":
        """Open a program in both engines; one without states in OpenVINO alone. Choices are not returned."""
        from qeff_zoo.targets import engines

        engines.require_to_run(package, _ENGINE)
        from . import session

        return session.open_program(package, role, options)


TARGET = OpenvinoTarget()
