# SPDX-License-Identifier: Apache-2.0
"""Programs in OpenVINO and ONNX Runtime.

OpenVINO multiplies many rows by integers two to three times as fast, ONNX Runtime one row. The states are those of ONNX
Runtime's program: OpenVINO reads them, and returns what a call adds, which is copied back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino

from qeff_zoo.graph.numerics import Numerics
from qeff_zoo.package import Package, refused_graph
from qeff_zoo.package.programs import CompiledProgram
from qeff_zoo.runtime.program import Array, Memory, Tensor
from qeff_zoo.targets.base import USUAL_OPENING, OpenOptions
from qeff_zoo.targets.ort import session as onnx_runtime

from . import conversions

#: Tokens of a row from which on OpenVINO is the faster.
_MANY = 4


def open_program(
    package: Package, role: str, options: OpenOptions = USUAL_OPENING
) -> "OpenvinoProgram":
    """Open a program of a package.

    Args:
        package: Package for target `openvino`.
        role: Role of the program.
        options: Options of the program, but for `routing`. Without rounding OpenVINO multiplies floats; for ONNX
            Runtime see `qeff_zoo.targets.ort.session.open_program`.

    Raises:
        GenerationError: The KV cache does not fit into memory.
        PackageError: The graph cannot be opened.
    """
    program = package.program(role)
    path = package.path / program.path
    # First, since it reads nothing outside the package; without states for that alone.
    few = None
    if program.states:
        few = onnx_runtime.open_program(package, role, replace(options, routing=False))
    else:
        onnx_runtime.open_graph(path, threads=options.threads)
    try:
        numerics = program.numerics
        if options.unrounded:
            numerics = replace(numerics, int8_activations=False)
        many = compiled(path, numerics, options.threads)
    except RuntimeError as error:
        raise refused_graph("OpenVINO", path, reason(error)) from error
    return OpenvinoProgram(program, many, few)


def reason(error: RuntimeError) -> str:
    """Return the last line of OpenVINO's error, after the lines of its source."""
    return str(error).strip().splitlines()[-1].rstrip(".")


def compiled(path: Path, numerics: Numerics, threads: int | None = None) -> openvino.CompiledModel:
    """Compile a graph for this CPU, or raise OpenVINO's RuntimeError.

    Args:
        path: Path of the ONNX file, beside its weights.
        numerics: Numerics of the program.
        threads: CPU threads that compute one operator; None for one per physical core.
    """
    core = openvino.Core()
    for extension in conversions.extensions():
        core.add_extension(extension)
    products = [matrix.format for matrix in numerics.matrices if matrix.multiplied]
    blocks = [format.block for format in products if numerics.int8_activations]
    options: dict[str, Any] = {
        # All that is not an integer is float32, as in ONNX Runtime, and left sides are rounded in the same blocks.
        # There is one size; products by matrices of smaller blocks would stay in float32, which takes twice as long.
        "INFERENCE_PRECISION_HINT": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": min(blocks, default=0),
        "ENABLE_CPU_PINNING": False,  # the cores are ONNX Runtime's too
    }
    if threads is not None:
        options["INFERENCE_NUM_THREADS"] = threads
    return core.compile_model(path, "CPU", options)


class OpenvinoProgram:
    """A graph in both engines, see `qeff_zoo.runtime.program.Program`.

    Args:
        program: Program of a package.
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
        self.memory = few.memory if few else Memory({})
        self._request, self._few = many.create_infer_request(), few

    def together(
        self, starts: Mapping[int, int], *, prefill: bool, kept: int = 1
    ) -> list[list[int]]:
        """Cut rows into those that one call can take."""
        if self._few is None:
            return [[*starts]]
        return self._few.together(starts, prefill=prefill, kept=kept)

    def run(self, inputs: Mapping[str, Array], rows: Sequence[int] = ()) -> Mapping[str, Array]:
        """Run one call; many tokens run row by row in OpenVINO, since its attention takes one length."""
        if self._few is None:
            self._request.infer(dict(inputs))
            return {name: self._made(name).copy() for name in self.outputs}
        if inputs["position_ids"].shape[1] < _MANY:
            return self._few.run(inputs, rows)
        parts = [
            self._row(
                {name: _cut(array, 0, place, place + 1) for name, array in inputs.items()}, row
            )
            for place, row in enumerate(rows)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in self.outputs}

    def _row(self, inputs: Mapping[str, Array], row: int) -> dict[str, Array]:
        """Run the tokens of a row, without the padding after them."""
        positions = inputs["position_ids"][0]
        count, start = int((positions >= 0).sum()), int(positions[0])
        past = {state.name: self.memory[state.name][row : row + 1] for state in self.states}
        given = {name: _cut(array, 1, 0, count) for name, array in inputs.items()}
        self._request.infer({**given, **past}, share_inputs=True)
        for state in self.states:
            self.memory[state.name][row, :, start : start + count] = self._made(state.output)[0]
        return {name: self._made(name).copy() for name in self.outputs}

    def _made(self, name: str) -> Array:
        array: Array = self._request.get_tensor(name).data
        return array


def _cut(array: Array, axis: int, start: int, stop: int) -> Array:
    """Take some rows or columns of an input that has both; others are of the whole call."""
    return array if array.ndim < 2 else array[(slice(None),) * axis + (slice(start, stop),)]
