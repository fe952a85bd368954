# SPDX-License-Identifier: Apache-2.0
"""What the compiler of target `qnn-htp` gets, a graph for each specialization, run by stock ONNX Runtime.

Any difference from Hugging Face is then one of the lowering, not of float16.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir
import onnxruntime

from qeff_zoo.graph import external_data
from qeff_zoo.graph.numerics import FLOAT32, Format, Numerics
from qeff_zoo.graph.passes import narrowing
from qeff_zoo.graph.states import states_of
from qeff_zoo.package.programs import CompiledProgram
from qeff_zoo.pipeline.manifest_entries import tensor_entry
from qeff_zoo.runtime.program import Array
from qeff_zoo.targets.base import Lowered
from qeff_zoo.targets.qnn_htp import lowering, static
from qeff_zoo.targets.qnn_htp.session import HtpProgram
from qeff_zoo.weights import placement
from qeff_zoo.weights.layout import plan_file
from qeff_zoo.weights.storage import Storage
from qeff_zoo.weights.writing import write

_WIDTH = 14  # tokens of a prefill


class OnCpu:
    """A static graph in ONNX Runtime on the CPU.

    Args:
        path: Of the ONNX file.
    """

    def __init__(self, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"]
        )
        self._inputs = {value.name for value in self._session.get_inputs()}
        self._outputs = [value.name for value in self._session.get_outputs()]

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        given = {name: array for name, array in inputs.items() if name in self._inputs}
        return dict(zip(self._outputs, self._session.run(self._outputs, given), strict=True))


def lower(subject: Any, format: Format = FLOAT32, ctx_len: int = 0) -> Lowered:
    """Lower a subject's graph for `qnn-htp`."""
    return lowering.lower(subject.graph(), subject.bindings, Storage(format), ctx_len)


def write_graphs(
    subject: Any, lowered: Lowered, specializations: Sequence[Mapping[str, Any]], folder: Path
) -> None:
    """Write the graph of each specialization, and the weights of all."""
    layout = plan_file(lowered.slots, subject.checkpoint.tensors)
    write(layout, subject.checkpoint, folder / external_data.WEIGHTS)
    placement.place(lowered.model, layout)
    ir.save(lowered.model, folder / "lowered.onnx")
    for specialization in specializations:
        model = ir.load(folder / "lowered.onnx")
        static.bind(
            model, {symbol: int(size) for symbol, size in specialization["symbols"].items()}
        )
        assert not narrowing.narrow(model)
        shapes = [value.shape for node in model.graph for value in node.outputs if value.shape]
        assert all(shape.is_static() for shape in shapes)
        ir.save(model, folder / f"{specialization['name']}.onnx")


def program(subject: Any, rows: int, ctx_len: int) -> HtpProgram:
    """Open a decoder as target `qnn-htp` does, but on the CPU; graphs are written once."""
    specializations = [
        {
            "name": name,
            "symbols": {"batch_size": str(rows), "seq_len": str(width), "ctx_len": str(ctx_len)},
        }
        for name, width in (("Prefill", _WIDTH), ("Decode", 1))
    ]
    known = subject.__dict__.setdefault("static", {})
    if (rows, ctx_len) not in known:
        folder = Path(tempfile.mkdtemp(dir=subject.folder))
        lowered = lower(subject, ctx_len=ctx_len)
        graph = lowered.model.graph
        states = states_of(graph.inputs)
        retained = {name for state in states for name in (state.name, state.output)}
        compiled = CompiledProgram(
            role="decoder",
            path="",
            key="",
            specializations=specializations,
            inputs=[tensor_entry(one) for one in graph.inputs if one.name not in retained],
            outputs=[
                tensor_entry(output) for output in graph.outputs if output.name not in retained
            ],
            states=tuple(states),
            numerics=Numerics(),
            flags={},
            compiler={},
        )
        write_graphs(subject, lowered, specializations, folder)
        known[rows, ctx_len] = (
            compiled,
            {
                specialization["name"]: OnCpu(folder / f"{specialization['name']}.onnx")
                for specialization in specializations
            },
        )
    compiled, graphs = known[rows, ctx_len]
    return HtpProgram(compiled, lambda name: graphs[name])


def encoder(subject: Any, rows: int, seq_len: int) -> OnCpu:
    """Open an encoder of one size, with mean pooling."""
    folder = Path(tempfile.mkdtemp(dir=subject.folder))
    graph = subject.graph((("pooling", "mean"), ("normalize", False)))
    lowered = lowering.lower(graph, subject.bindings, Storage(FLOAT32))
    sizes = {"batch_size": str(rows), "seq_len": str(seq_len)}
    write_graphs(subject, lowered, [{"name": "Embedding", "symbols": sizes}], folder)
    return OnCpu(folder / "Embedding.onnx")
