# SPDX-License-Identifier: Apache-2.0
"""Programs on the HTP simulator: compiled graphs in, one for each specialization; calls on states out."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from qeff_zoo.package import Package
from qeff_zoo.package.programs import CompiledProgram
from qeff_zoo.runtime.decoding.fixed_shapes import FixedShapes
from qeff_zoo.runtime.memory import new_states
from qeff_zoo.runtime.program import Array, Tensor
from qeff_zoo.targets.base import USUAL_OPENING, OpenOptions
from qeff_zoo.targets.qnn_htp.processes import Simulator


def open_program(package: Package, role: str, options: OpenOptions = USUAL_OPENING) -> "HtpProgram":
    """Open a program of a package.

    Args:
        package: Package for target `qnn-htp`.
        role: Role of the program.
        options: Options of the program; a smoke test is a call as any other.

    Raises:
        GenerationError: The states do not fit into memory.
    """
    program = package.program(role)
    folder, soc_model = package.path / program.path, int(program.flags["soc_model"])

    def open_graph(name: str) -> Simulator:
        return Simulator(folder / f"{name}.onnx", soc_model, options.threads)

    return HtpProgram(program, open_graph, routing=options.routing)


class Graph(Protocol):
    """A graph of fixed shapes, opened."""

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Run it: all of its inputs by name, perhaps more, then all of its outputs."""


class HtpProgram:
    """Graphs that share states, see `qeff_zoo.runtime.program.Program`.

    Args:
        program: Program of a package.
        open_graph: Opens the graph of a specialization by its name, when a first call needs it: it takes seconds.
        routing: Whether calls also return the choices of routers and indexers.

    Raises:
        GenerationError: The states do not fit into memory.
    """

    def __init__(
        self,
        program: CompiledProgram,
        open_graph: Callable[[str], Graph],
        *,
        routing: bool = False,
    ) -> None:
        self.specializations, self.states = program.specializations, program.states
        self.inputs = Tensor.by_name(program.inputs)
        self.outputs = Tensor.by_name(program.outputs)
        #: Float32, as the graphs take and return them; the simulator keeps nothing from call to call.
        dtypes = {state.name: np.dtype(np.float32) for state in self.states}
        self.memory = new_states(self.states, dtypes, self.specializations)
        self._shapes, self._choices = FixedShapes(self.specializations, self.inputs), routing
        self._open_graph = open_graph
        self._open: dict[int, Graph] = {}

    def together(
        self, starts: Mapping[int, int], *, prefill: bool, kept: int = 1
    ) -> list[list[int]]:
        """Cut rows into those that one call can take."""
        return self._shapes.together(starts, prefill=prefill, kept=kept)

    def run(self, inputs: Mapping[str, Array], rows: Sequence[int] = ()) -> Mapping[str, Array]:
        """Run one call."""
        call = self._shapes.fit(inputs, rows)
        slots = call.inputs["batch_index"][:, 0] if "batch_index" in call.inputs else slice(None)
        states = {state.name: self.memory[state.name][slots] for state in self.states}
        arrays = dict(self._graph(call.index).run({**call.inputs, **states}))
        for state in self.states:
            self.memory[state.name][slots] = arrays.pop(state.output)
        outputs = {
            name: call.answer(arrays.pop(name), output.shape)
            for name, output in self.outputs.items()
        }
        return {**outputs, **call.chosen(arrays)} if self._choices else outputs

    def _graph(self, index: int) -> Graph:
        if index not in self._open:
            self._open[index] = self._open_graph(self.specializations[index]["name"])
        return self._open[index]
