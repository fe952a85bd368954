# SPDX-License-Identifier: Apache-2.0
"""Target `ort`, the default: ONNX Runtime on the CPU."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_args

from qeff_zoo.graph.numerics import STORED, WEIGHTS
from qeff_zoo.recipe import Role
from qeff_zoo.targets.base import STORED_WAYS, USUAL_OPENING, Lowered, OpenOptions, Resolved, Target
from qeff_zoo.versions import installed

if TYPE_CHECKING:
    from qeff_zoo.export.program_plan import ProgramPlan
    from qeff_zoo.package import Package
    from qeff_zoo.runtime.program import Program
    from qeff_zoo.weights.bound_graph import BoundGraph
    from qeff_zoo.weights.layout import FileLayout

WAYS: Mapping[str, str] = MappingProxyType(
    {
        "native": "in one kernel",
        "native:rotary": "in one kernel, with the rotary embedding",
        "native:read": "in one kernel, with keys and values written before it",
        "native:full": "in one kernel, without a mask",
        "portable:full": "portable, since without a mask the kernel takes no groups of heads, no soft-cap and no sinks",
        "portable:mask": "portable, since the mask is not causal",
        "portable:cache": "portable, since the keys are not a plain cache of their own",
        "portable:sizes": "portable, since keys and values differ in size",
        "portable:head_size": "portable, since the head size is not a multiple of 8",
        "own_tokens:float32": "each expert on its own tokens, since the kernel takes no float32 matrices",
        "own_tokens:sizes": "each expert on its own tokens, since the sizes are not multiples of the block size",
        "own_tokens:not_stored": "each expert on its own tokens, since the matrices are not stored as they are used",
        "own_tokens:formats": "each expert on its own tokens, since the kernel takes no matrices stored like these",
        "own_tokens:kind": "each expert on its own tokens, since the kernel computes none of their kind",
        "all_tokens:not_stored": "each expert on all tokens, since the matrices are not stored as they are used",
        **STORED_WAYS,
    }
)


@dataclass(frozen=True)
class OrtTarget(Target):
    """See `qeff_zoo.targets.base.Target`."""

    name: str = "ort"
    revision: int = 8
    weights: tuple[str, ...] = (*WEIGHTS, STORED)
    lora_unsupported: str = ""
    reads: tuple[str, ...] = ("text", "image", "video", "audio")
    roles: tuple[str, ...] = get_args(Role)
    unrounded: str = "parts"
    ways: Mapping[str, str] = field(default_factory=lambda: WAYS)
    #: Whether one product makes query, key and value of an attention.
    joins_products: bool = True

    def resolve(self, config: Mapping[str, Any], options: Mapping[str, Any]) -> Resolved:
        """Return the installed ONNX Runtime, which lowers, compiles and runs."""
        version = installed("onnxruntime") or "absent"
        return Resolved(toolchain={"onnxruntime": version}, needs={"onnxruntime": f">={version}"})

    def lower(self, graph: "BoundGraph", program: "ProgramPlan") -> Lowered:
        """Turn a portable graph into one of ONNX Runtime's kernels, in place."""
        from . import lowering

        storage = program.storage(graph.encoded)
        return lowering.lower(
            graph.model,
            graph.bindings,
            storage,
            program.shape.ctx_len,
            joins_products=self.joins_products,
        )

    def compile(
        self,
        lowered: Lowered,
        layout: "FileLayout",
        folder: Path,
        name: str,
        program: "ProgramPlan",
    ) -> Path:
        """Write the graph: ONNX Runtime compiles it when it is opened."""
        import onnx_ir as ir

        from qeff_zoo.weights import placement

        placement.place(lowered.model, layout)
        path = folder / f"{name}.onnx"
        ir.save(lowered.model, path)
        return path

    def open(
        self, package: "Package", role: str, options: OpenOptions = USUAL_OPENING
    ) -> "Program":
        """Open a program in ONNX Runtime."""
        from . import session

        return session.open_program(package, role, options)

    def write_sidecars(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        """Write what onnxruntime-genai and ONNX Runtime's API of model packages read."""
        from . import genai, model_package

        genai.write(folder, manifest)
        model_package.write(folder, manifest)

    def describe_sidecars(self, manifest: Mapping[str, Any]) -> str:
        """Describe whether onnxruntime-genai opens a package."""
        from . import genai

        return genai.describe(manifest)


TARGET = OrtTarget()
