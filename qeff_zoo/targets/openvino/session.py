# SPDX-License-Identifier: Apache-2.0
"""Programs in OpenVINO and ONNX Runtime.

OpenVINO multiplies many rows by integers two to three times as fast, ONNX Runtime one row. The states are those of ONNX
Runtime's program: OpenVINO reads them, and returns those of all tokens so far, of which the new ones are copied back.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino

from qeff_zoo.errors import CompileError, GenerationError, PackageError
from qeff_zoo.package import Package
from qeff_zoo.package.programs import CompiledProgram
from qeff_zoo.runtime.program import Array, Tensor
from qeff_zoo.targets.ort import session as onnx_runtime

#: Tokens of a row from which on OpenVINO is the faster.
_MANY = 8


def convert(path: Path) -> openvino.Model:
    """Read a graph as OpenVINO does.

    Args:
        path: Of the ONNX file, beside its weights.

    Raises:
        CompileError: OpenVINO cannot read it.
    """
    try:
        return openvino.Core().read_model(path)
    except RuntimeError as error:
        raise CompileError(
            f"OpenVINO cannot read {str(path)!r}: {str(error).strip()}. Expected operators that it has. Build the model "
            f"with --target ort."
        ) from error


def open_program(
    package: Package, role: str, *, threads: int | None = None, lean: bool = False
) -> "OpenvinoProgram":
    """Open a program of a package.

    Args:
        package: For target `openvino`.
        role: Of the program.
        threads: CPU threads that compute one operator; None for one per physical core.
        lean: For a few calls: leave ONNX Runtime's weights in the file.

    Raises:
        GenerationError: There is no graph, or the KV cache does not fit into memory.
        PackageError: OpenVINO cannot open it.
    """
    program = package.program(role)
    path = package.path / program.path
    if not path.is_file():
        raise GenerationError(
            f"Cannot run {str(path.parent)!r}: it has no {path.name}. Expected the folder of a package for "
            "target 'openvino'. Give the path that `qeff-zoo build` printed."
        )
    few = None
    if program.states:
        few = onnx_runtime.open_program(package, role, threads=threads, lean=lean)
    return OpenvinoProgram(program, _compiled(path, program, threads), few)


def _compiled(
    path: Path, program: CompiledProgram, threads: int | None
) -> openvino.CompiledModel:
    options: dict[str, Any] = {
        # All that is not an integer is float32, as in ONNX Runtime, and left sides are rounded in the same blocks.
        "INFERENCE_PRECISION_HINT": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": program.numerics.activation_block or 0,
        "PERFORMANCE_HINT": "LATENCY",
        "ENABLE_CPU_PINNING": False,  # the cores are ONNX Runtime's too
    }
    if threads is not None:
        options["INFERENCE_NUM_THREADS"] = threads
    try:
        return openvino.Core().compile_model(path, "CPU", options)
    except RuntimeError as error:
        raise PackageError(
            f"OpenVINO cannot open {str(path)!r}: {str(error).strip()}. Expected a package as it was built. Run "
            "`qeff-zoo inspect PACKAGE --verify`; where it is damaged, build or pull it again."
        ) from error


class OpenvinoProgram:
    """A graph in both engines, see `qeff_zoo.runtime.program.Program`.

    Args:
        program: Of a package.
        many: The graph in OpenVINO, for calls of many tokens.
        few: The graph in ONNX Runtime with its states, for the others; None for a graph without states.
    """

    def __init__(
        self,
        program: CompiledProgram,
        many: openvino.CompiledModel,
        few: onnx_runtime.OrtProgram | None,
    ) -> None:
        self.specializations, self.states = program.specializations, program.states
        self.inputs = Tensor.by_name(program.inputs)
        self.outputs = Tensor.by_name(program.outputs)
        self.memory: Mapping[str, Array] = few.memory if few else {}
        self._request, self._few = many.create_infer_request(), few

    def together(self, starts: Mapping[int, int], *, prefill: bool) -> list[list[int]]:
        """Cut rows into those that one call can take."""
        return self._few.together(starts, prefill=prefill) if self._few else [[*starts]]

    def run(self, inputs: Mapping[str, Array], rows: Sequence[int] = ()) -> Mapping[str, Array]:
        """Run one call: many tokens row by row in OpenVINO, since its attention knows one length."""
        if self._few is None:
            self._request.infer(dict(inputs))
            return {name: self._made(name).copy() for name in self.outputs}
        if inputs["position_ids"].shape[1] < _MANY:
            return self._few.run(inputs, rows)
        parts = [
            self._row({name: array[place : place + 1] for name, array in inputs.items()}, row)
            for place, row in enumerate(rows)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in self.outputs}

    def _row(self, inputs: Mapping[str, Array], row: int) -> dict[str, Array]:
        """Run the tokens of a row, without the padding after them."""
        positions = inputs["position_ids"][0]
        count = int((positions >= 0).sum())
        start = int(positions[0])
        past = {state.name: self.memory[state.name][row : row + 1] for state in self.states}
        given = {name: array[:, :count] for name, array in inputs.items()}
        self._request.infer({**given, **past}, share_inputs=True)
        for state in self.states:
            held = self._made(state.output)
            self.memory[state.name][row, :, start : start + count] = held[0, :, start:]
        return {name: self._made(name).copy() for name in self.outputs}

    def _made(self, name: str) -> Array:
        made: Array = self._request.get_tensor(name).data
        return made
