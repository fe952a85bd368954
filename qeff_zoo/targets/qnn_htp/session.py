# SPDX-License-Identifier: Apache-2.0
"""Programs on the HTP simulator: compiled graphs in, one for each specialization; calls on states out."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from qeff_zoo.package import Package
from qeff_zoo.runtime.by_token import by_token
from qeff_zoo.runtime.fixed_shapes import FixedShapes
from qeff_zoo.runtime.memory import new_states
from qeff_zoo.runtime.program import Array, Tensor
from qeff_zoo.targets.qnn_htp.processes import Simulator


class HtpProgram:
    """Compiled graphs that share states, see `qeff_zoo.runtime.program.Program`.

    A graph is opened by the first call that needs it: it takes a process and seconds.

    Args:
        package: For target `qnn-htp`.
        role: Of the program.
        threads: CPU threads of the simulator; None for one per core.
        choices: Let calls return what was chosen as well, see `qeff_zoo.targets.Target.open`.

    Raises:
        GenerationError: The states do not fit into memory.
    """

    def __init__(
        self, package: Package, role: str, *, threads: int | None = None, choices: bool = False
    ) -> None:
        program = package.program(role)
        self.specializations, self.states = program.specializations, program.states
        self.inputs = Tensor.by_name(program.inputs)
        self.outputs = Tensor.by_name(program.outputs)
        #: Float32, as the graphs take and return them; the simulator keeps nothing from call to call.
        self.memory: Mapping[str, Array] = new_states(
            self.states,
            {state.name: np.dtype(np.float32) for state in self.states},
            self.specializations,
        )
        self._folder: Path = package.path / program.path
        self._soc_model, self._threads = int(program.flags["soc_model"]), threads
        self._shapes = FixedShapes(self.specializations)
        self._choices = choices
        self._open: dict[int, Simulator] = {}

    def together(self, starts: Mapping[int, int], *, prefill: bool) -> list[list[int]]:
        """Cut rows into those that one call can take."""
        return self._shapes.together(starts, prefill=prefill)

    def run(self, inputs: Mapping[str, Array], rows: Sequence[int] = ()) -> Mapping[str, Array]:
        """Run one call."""
        call = self._shapes.fit(inputs, rows)
        slots = call.inputs["batch_index"][:, 0] if "batch_index" in call.inputs else slice(None)
        given = {name: array for name, array in call.inputs.items() if name in self.inputs}
        states = {state.name: self.memory[state.name][slots] for state in self.states}
        made = self._simulator(call.index).run({**given, **states})
        written = {state.output for state in self.states}
        for state in self.states:
            self.memory[state.name][slots] = made[state.output]
        count, width = inputs["input_ids"].shape
        found = {name: made[name][call.places] for name in self.outputs}
        for name in made.keys() - found.keys() - written if self._choices else ():
            chosen = by_token(made[name], call.symbols["batch_size"], call.symbols["seq_len"])
            if chosen is not None:
                found[name] = chosen[call.places, :width].reshape(count * width, *chosen.shape[2:])
        return found

    def _simulator(self, index: int) -> Simulator:
        if index not in self._open:
            path = self._folder / f"{self.specializations[index]['name']}.onnx"
            self._open[index] = Simulator(path, self._soc_model, self._threads)
        return self._open[index]
