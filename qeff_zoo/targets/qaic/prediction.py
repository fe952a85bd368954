# SPDX-License-Identifier: Apache-2.0
"""What a card would compute, on the CPU: the lowered graph with host bodies, in the card's numerics, in ONNX Runtime.

In: what is compiled, and its data file. Out: a `qeff_zoo.runtime.program.Program` that takes the calls that a card
takes. It proves the graph and its numerics; of the compiler and of the card it proves nothing.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime

from qeff_zoo.graph.numerics import DeviceNumerics, RoundedMatrix
from qeff_zoo.graph.passes.routing import return_choices
from qeff_zoo.graph.states import part_shared
from qeff_zoo.package.programs import CompiledProgram
from qeff_zoo.runtime.decoding.fixed_shapes import shapes_of
from qeff_zoo.runtime.memory import new_states
from qeff_zoo.runtime.program import Array, Tensor
from qeff_zoo.targets.base import USUAL_OPENING, OpenOptions
from qeff_zoo.targets.emulation import device
from qeff_zoo.targets.emulation.rounded_weights import RoundedWeights
from qeff_zoo.targets.ort.session import dtypes_of, open_graph
from qeff_zoo.weights import placement
from qeff_zoo.weights.bound_graph import BoundGraph
from qeff_zoo.weights.layout import FileLayout

from . import ops, sampler

_GRAPH, _DATA = "predicted.onnx", "predicted.data"


def matrices_of(graph: BoundGraph, options: Mapping[str, Any]) -> tuple[RoundedMatrix, ...]:
    """Return the weights that a compiler rounds to mxfp6 where it is given floats.

    Args:
        graph: Portable: its weights are called as Hugging Face's are.
        options: Options of the target.
    """
    if not options.get("mxfp6_matmul"):
        return ()
    model = graph.model.clone()
    device.apply(model, DeviceNumerics(weights="mxfp6"))
    return device.matrices(model)


def open_program(
    lowered: ir.Model,
    layout: FileLayout,
    folder: Path,
    program: CompiledProgram,
    *,
    numerics: DeviceNumerics,
    options: OpenOptions = USUAL_OPENING,
) -> "PredictedProgram":
    """Open what a program is compiled from, see `qeff_zoo.targets.base.Target.predict`.

    Args:
        lowered: Lowered graph, without the positions of weights.
        layout: Layout of the data file.
        folder: With the data file.
        program: Program for the manifest.
        numerics: Numerics of the card.
        options: Options of the program.

    Raises:
        StoreError: The disk has no room for weights as the card rounds them.
    """
    model = ops.with_host_bodies(lowered)
    placement.place(model, layout)
    for value in model.graph.initializers.values():
        if isinstance(value.const_value, ir.ExternalTensor):
            value.const_value.base_dir = folder
    sampler.return_logits(model.graph)
    if options.routing:
        return_choices(model.graph)
    device.apply(model, numerics)
    path, data = folder / _GRAPH, folder / _DATA
    try:
        RoundedWeights(data).place(model)
        ir.save(model, path)
        session = open_graph(path, threads=options.threads)  # which maps its files
    finally:
        path.unlink(missing_ok=True)
        data.unlink(missing_ok=True)
    return PredictedProgram(session, program, routing=options.routing)


class PredictedProgram:
    """A graph of any shapes that is called in those of a card, see `qeff_zoo.runtime.program.Program`.

    Args:
        session: Session of the graph.
        program: Program for the manifest.
        routing: Whether calls also return the choices of routers and indexers.

    Raises:
        GenerationError: The states do not fit into memory.
    """

    #: As on a card, nothing else reads the states.
    memory = None

    def __init__(
        self, session: onnxruntime.InferenceSession, program: CompiledProgram, *, routing: bool
    ) -> None:
        self._session, self._choices = session, routing
        self.specializations = program.specializations
        self.states, self.matrices, self.features = part_shared(program.states)
        inputs = Tensor.by_name(program.inputs)
        # Slots are found here, of the rows of a call.
        self.inputs = {name: array for name, array in inputs.items() if name != "batch_index"}
        self._dtypes = {name: array.dtype for name, array in inputs.items()}
        logits = [output for output in session.get_outputs() if output.name == "logits"]
        # Also of a program that draws tokens from them, which could not be compared otherwise.
        self.outputs = {
            logit.name: Tensor(dtype=np.dtype(np.float32), shape=tuple(logit.shape))
            for logit in logits
        } | Tensor.by_name(program.outputs)
        self._shapes = shapes_of(program.specializations, self.inputs)
        self._memory: dict[str, Array] = new_states(
            program.states, dtypes_of(session), self.specializations
        )
        self._names = [value.name for value in session.get_outputs()]

    def together(
        self, starts: Mapping[int, int], *, prefill: bool, kept: int = 1
    ) -> list[list[int]]:
        """Cut rows into those that one call can take."""
        return self._shapes.together(starts, prefill=prefill, kept=kept)

    def retain(self, states: Mapping[str, Array]) -> None:
        """Take what the host has, see `qeff_zoo.runtime.program.HoldsLoraWeights`."""
        self._memory |= {
            name: array.astype(self._memory[name].dtype) for name, array in states.items()
        }

    def run(self, inputs: Mapping[str, Array], rows: Sequence[int] = ()) -> Mapping[str, Array]:
        """Run one call."""
        call = self._shapes.fit(inputs, rows)
        given = {
            name: array.astype(self._dtypes[name], copy=False)
            for name, array in call.inputs.items()
        }
        outputs = self._session.run(self._names, {**given, **self._memory})
        arrays = dict(zip(self._names, outputs, strict=True))
        kept = (*self.states, *self.matrices, *self.features)
        self._memory = {state.name: arrays.pop(state.output) for state in kept}
        answers = {
            name: call.answer(arrays.pop(name), output.shape)
            for name, output in self.outputs.items()
        }
        return {**answers, **call.chosen(arrays)} if self._choices else answers
