# SPDX-License-Identifier: Apache-2.0
"""Target `qnn-htp`: Qualcomm's Hexagon Tensor Processor, compiled by onnxruntime-qnn and simulated by it on x86."""

import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qeff_zoo.graph.numerics import STORED
from qeff_zoo.targets.base import USUAL_OPENING, Finding, Lowered, OpenOptions, Resolved, Target
from qeff_zoo.targets.qnn_htp.options import HtpOptions
from qeff_zoo.versions import installed

if TYPE_CHECKING:
    from qeff_zoo.export.program_plan import ProgramPlan
    from qeff_zoo.package import Package
    from qeff_zoo.runtime.program import Program
    from qeff_zoo.weights.bound_graph import BoundGraph
    from qeff_zoo.weights.layout import FileLayout

_COMPILER, _RUNTIME = "onnxruntime-qnn", "onnxruntime"
_SCRATCH = "lowered.onnx"
_SMALL = 1 << 30  # bytes of weights: a compiler takes several times that, and so do two of them


@dataclass(frozen=True)
class HtpTarget(Target):
    """See `qeff_zoo.targets.base.Target`."""

    name: str = "qnn-htp"
    revision: int = 3
    weights: tuple[str, ...] = ("fp32", "int8", "int4", STORED)
    level: str = "simulated"
    lora_unsupported: str = "its compiler takes weights as constants alone"
    needs_weights: bool = False
    static_shapes: bool = True
    options: tuple[type, ...] = (HtpOptions,)

    def resolve(self, config: Mapping[str, Any], options: Mapping[str, Any]) -> Resolved:
        """Return the installed compiler, and ONNX Runtime, which runs what it made."""
        versions = {name: installed(name) or "absent" for name in (_COMPILER, _RUNTIME)}
        # What one version compiled another may refuse to open.
        return Resolved(toolchain=versions, needs={_COMPILER: f"=={versions[_COMPILER]}"})

    def require_compiler(self) -> None:
        """Refuse to begin without onnxruntime-qnn."""
        from qeff_zoo.targets import engines

        engines.require_to_compile(self.name, _COMPILER, "qnn")

    def examine(self) -> list[Finding]:
        """Look for onnxruntime-qnn."""
        if version := installed(_COMPILER):
            return [Finding(name="QNN", status="ok", detail=f"{_COMPILER} {version}")]
        advice = "Run `pip install 'qeff-zoo[qnn]'` to compile for Qualcomm HTP; its libraries have Qualcomm's licence."
        return [Finding(name="QNN", status="missing", detail=f"no {_COMPILER}", advice=advice)]

    def lower(self, graph: "BoundGraph", program: "ProgramPlan") -> Lowered:
        """Turn a portable graph into one that HTP's compiler takes, in place."""
        from . import lowering

        storage = program.storage(graph.encoded)
        return lowering.lower(graph.model, graph.bindings, storage, program.shape.ctx_len)

    def compile(
        self,
        lowered: Lowered,
        layout: "FileLayout",
        folder: Path,
        name: str,
        program: "ProgramPlan",
    ) -> Path:
        """Compile each specialization by itself: graphs that share weights cannot be opened on the simulator."""
        import onnx_ir as ir

        from qeff_zoo.weights import placement

        from . import processes

        placement.place(lowered.model, layout)
        scratch, out = folder / _SCRATCH, folder / name
        ir.save(lowered.model, scratch)
        out.mkdir()

        def compile_one(one: Mapping[str, Any]) -> None:
            symbols = json.dumps({key: int(size) for key, size in one["symbols"].items()})
            output = f"{name}/{one['name']}.onnx"
            soc_model = str(program.flags["soc_model"])
            processes.compile([str(folder), _SCRATCH, output, soc_model, symbols])

        with ThreadPoolExecutor(os.cpu_count() if layout.nbytes < _SMALL else 1) as pool:
            for _ in pool.map(compile_one, program.specializations):
                pass
        scratch.unlink()
        return out

    def open(
        self, package: "Package", role: str, options: OpenOptions = USUAL_OPENING
    ) -> "Program":
        """Open a program on the simulator, of the version that compiled it."""
        from qeff_zoo.targets import engines

        from . import session

        engines.require_to_run(package, _COMPILER)
        return session.open_program(package, role, options)


TARGET = HtpTarget()
