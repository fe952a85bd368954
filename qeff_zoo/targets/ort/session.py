# SPDX-License-Identifier: Apache-2.0
"""Programs in ONNX Runtime: a graph in, calls on states out. The one place that sets a session's options.

Every state is one buffer, of which the rows of a call are bound both as the graph's input and as its output, so that a
call writes its new tokens in place and never copies a cache. Those rows are adjacent: one block of memory.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as raised

from qeff_zoo.errors import GenerationError, PackageError
from qeff_zoo.graph.states import State, states_of
from qeff_zoo.package import Package, refused_graph
from qeff_zoo.runtime.memory import available_memory, new_states, return_freed
from qeff_zoo.runtime.program import Array, Specializations, Tensor
from qeff_zoo.targets.base import USUAL_OPENING, OpenOptions

from . import processor
from .binding import Binding, OutputMemory, value_of
from .huge_pages import huge_pages

_RUNTIME = f"ONNX Runtime {onnxruntime.__version__}"
_ONLY_ERRORS = 3
#: Rows of a product that kernels compute at once; they compute fewer rows, the last ones of a call, in another order.
_SPLIT = 16
#: What ONNX Runtime raises for a graph that it cannot read, and for values that do not fit it.
_REFUSALS = (
    RuntimeError,
    ValueError,
    *(raised.Fail, raised.InvalidArgument, raised.InvalidGraph, raised.InvalidProtobuf),
    *(raised.NoSuchFile, raised.NotImplemented, raised.RuntimeException),
)
_WEIGHTS_LIE_IN = "session.model_external_initializers_file_folder_path"
Shapes: TypeAlias = list[tuple[int, ...]]
_DTYPES: Mapping[str, np.dtype[Any]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(float16)": np.dtype(np.float16),
    "tensor(bool)": np.dtype(bool),
    "tensor(int32)": np.dtype(np.int32),
    "tensor(int64)": np.dtype(np.int64),
}


def open_program(package: Package, role: str, options: OpenOptions = USUAL_OPENING) -> "OrtProgram":
    """Open a program of a package.

    Args:
        package: Package for target `ort`.
        role: Role of the program.
        options: Options of the program: for a smoke test see `qeff_zoo.targets.ort.trial`, for products that do not
            round `qeff_zoo.targets.ort.unrounded`.

    Raises:
        GenerationError: There is no graph, or the KV cache does not fit into memory.
    """
    program = package.program(role)
    path = package.path / program.path
    graph = None
    if path.is_file() and (options.routing or options.smoke_test or options.unrounded):
        graph = _changed(path, options)
    prepack = not options.smoke_test and _prepacks(package)
    many = not (options.brief or graph)
    session = open_graph(path, threads=options.threads, prepack=prepack, graph=graph, many=many)
    # Experts get other numbers of tokens in other calls, and products of integers sum each number in its own order.
    varies = bool(program.ways.get("experts") and program.numerics.matrices)
    return OrtProgram(session, program.states, program.specializations, 0 if varies else _SPLIT)


def open_portable(path: Path, specializations: Specializations) -> "OrtProgram":
    """Open a portable graph as it is, with the sizes of a package.

    Args:
        path: Path of the ONNX file, whose inputs carry the description of their states.
        specializations: Specializations in the manifest's form.
    """
    import onnx_ir as ir

    states = states_of(ir.load(path).graph.inputs)
    return OrtProgram(open_graph(path), states, specializations)


def _changed(path: Path, options: OpenOptions) -> bytes | None:
    """Return a graph without weights, changed as the options require; None if nothing changes."""
    # Running a package needs no onnx_ir.
    import onnx_ir as ir
    from google.protobuf.message import DecodeError

    from qeff_zoo.graph.passes import routing as choices

    from . import trial, unrounded

    try:
        model = ir.load(path)
    except DecodeError:
        return None  # ONNX Runtime, which opens it as it is, says what is wrong
    changed = choices.return_choices(model.graph) if options.routing else 0
    changed += trial.shorten(model.graph) if options.smoke_test else 0
    if options.unrounded:
        available = available_memory()
        changed += unrounded.unround(model.graph, available and available // 2)
    return ir.to_proto(model).SerializeToString() if changed else None


def _prepacks(package: Package) -> bool:
    """Whether kernels use copies of the weights.

    Integers have to be: as they lie in the file, they decode 2 tokens per second instead of 62. In float32 that makes
    decoding 6 to 10 % faster, so it is done where memory has plenty of room for the copy.
    """
    if any(program.numerics.matrices for program in package.programs):
        return True
    available = available_memory()
    return available is not None and 2 * package.size <= available


def open_graph(
    path: Path,
    *,
    threads: int | None = None,
    prepack: bool = False,
    graph: bytes | None = None,
    many: bool = False,
) -> onnxruntime.InferenceSession:
    """Open a graph on the CPU.

    Args:
        path: Path of the ONNX file.
        threads: CPU threads that compute one operator; None for one per physical core.
        prepack: Copy the weights into the layout that the kernels like best: slower to open, and the
            weights are no longer shared with the file.
        graph: Another graph of the same weights, to be opened in its place.
        many: Whether many calls follow, which repay huge pages: those take 4 ms for each MB.

    Raises:
        GenerationError: There is no graph.
        PackageError: The file is damaged.
    """
    if not path.is_file():
        raise GenerationError(
            f"Cannot run {str(path.parent)!r}: it has no {path.name}. Expected the folder of a package for "
            "target 'ort'. Give the path that `qeff-zoo build` printed."
        )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ONLY_ERRORS
    options.add_session_config_entry("session.disable_prepacking", "0" if prepack else "1")
    for name, value in processor.options().items():
        options.add_session_config_entry(name, value)
    if threads is not None:
        options.intra_op_num_threads = threads
    if graph is not None:
        options.add_session_config_entry(_WEIGHTS_LIE_IN, str(path.parent))
        # Planning it takes seconds for a few thousand nodes, more than it saves in a session of a few calls.
        options.enable_mem_reuse = False
    try:
        with huge_pages() if prepack and many else nullcontext():
            session = onnxruntime.InferenceSession(
                graph or path, options, providers=["CPUExecutionProvider"], enable_fallback=0
            )
            return_freed()  # of constants that were folded and packed: up to a quarter of the weights
            return session
    except _REFUSALS as error:
        raise refused_graph(_RUNTIME, path, str(error)) from error


class OrtProgram:
    """A graph and the states that it retains, see `qeff_zoo.runtime.program.Program`.

    Args:
        session: Session of a graph.
        states: Retained states among its inputs.
        specializations: Sizes of the states.
        split: See `qeff_zoo.runtime.program.SplitsPrompts`.

    Raises:
        GenerationError: The KV cache does not fit into memory.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        states: Iterable[State],
        specializations: Specializations,
        split: int = 0,
    ) -> None:
        self._session, self.specializations, self.states = session, specializations, [*states]
        given = {value.name: _tensor(value) for value in session.get_inputs()}
        tensors = {value.name: _tensor(value) for value in session.get_outputs()}
        retained = {state.name for state in self.states}
        written = {state.output for state in self.states}
        self.inputs = {name: tensor for name, tensor in given.items() if name not in retained}
        self.outputs = {name: tensor for name, tensor in tensors.items() if name not in written}
        #: The very memory that the graph reads and writes.
        self.memory = new_states(
            self.states,
            {state.name: given[state.name].dtype for state in self.states},
            specializations,
        )
        self._has_windows = any(state.kind == "window" for state in self.states)
        self.split = split
        self._bindings: dict[tuple[int, int], Binding] = {}
        self._made = {name: OutputMemory(tensor.dtype) for name, tensor in self.outputs.items()}
        self._sized = {
            name: tensor
            for name, tensor in self.inputs.items()
            if any(isinstance(size, str) for size in tensor.shape)
        }
        #: Shapes of inputs in the newest call, and those of its outputs.
        self._newest: tuple[Shapes | None, dict[str, tuple[int, ...] | None]] = (None, {})

    def together(
        self, starts: Mapping[int, int], *, prefill: bool, kept: int = 1
    ) -> list[list[int]]:
        """Cut rows into runs of adjacent ones.

        The attention kernel takes several tokens of several rows only where all of them begin, and none is padding
        where a window slides.
        """
        if not prefill:
            return _runs(sorted(starts))
        begin = [row for row in sorted(starts) if starts[row] == 0 and not self._has_windows]
        return [*_runs(begin), *([row] for row in starts if row not in begin)]

    def run(self, inputs: Mapping[str, Array], rows: Sequence[int] = ()) -> Mapping[str, Array]:
        """Run one call; no later call changes what it returns."""
        binding = self._binding(rows[0], len(rows)) if rows else Binding(self._session.io_binding())
        for name, array in inputs.items():
            binding.bind_input(name, array)
        arrays: dict[str, Array] = {}
        for name, shape in self._output_shapes(inputs).items():
            if shape is None:
                binding.raw.bind_output(name)
            else:
                # Calls without batch slots may run at the same time.
                memory = self._made[name] if rows else OutputMemory(self.outputs[name].dtype)
                arrays[name] = binding.bind_output(name, shape, memory)
        try:
            self._session.run_with_iobinding(binding.raw)
        except _REFUSALS as error:
            raise PackageError(
                f"{_RUNTIME} cannot run the graph: {error}. Expected a call that the package was built for. Run "
                "`qeff-zoo inspect PACKAGE --verify`; if it finds nothing, report this message."
            ) from error
        if len(arrays) < len(self.outputs):
            # In the order in which they were bound: states, then outputs.
            states = sum(state.written for state in self.states) if rows else 0
            outputs = binding.raw.get_outputs()[states:]
            # What has memory of ours stays there: an OrtValue does not keep it alive.
            arrays |= {
                name: output.numpy()
                for name, output in zip(self.outputs, outputs, strict=True)
                if name not in arrays
            }
        return arrays

    def _output_shapes(self, inputs: Mapping[str, Array]) -> dict[str, tuple[int, ...] | None]:
        """Return the shape of each output; None if the sizes of the inputs do not determine it."""
        given = [inputs[name].shape for name in self._sized]
        known, shapes = self._newest
        if given == known:
            return shapes
        sizes = _symbols(self._sized, inputs)
        shapes = {}
        for name, tensor in self.outputs.items():
            resolved = [size if isinstance(size, int) else sizes.get(size) for size in tensor.shape]
            shape = tuple(size for size in resolved if size is not None)
            shapes[name] = shape if len(shape) == len(tensor.shape) > 0 else None
        self._newest = given, shapes
        return shapes

    def _binding(self, first: int, count: int) -> Binding:
        """Bind that many adjacent rows of every state, as what a call reads and writes."""
        if (first, count) not in self._bindings:
            raw = self._session.io_binding()
            for state in self.states:
                bound = value_of(self.memory[state.name][first : first + count])
                raw.bind_ortvalue_input(state.name, bound)
                if state.written:
                    raw.bind_ortvalue_output(state.output, bound)
            self._bindings[first, count] = Binding(raw)
        return self._bindings[first, count]


def dtypes_of(session: onnxruntime.InferenceSession) -> dict[str, np.dtype[Any]]:
    """Return the type of every input, by name."""
    return {value.name: _DTYPES[str(value.type)] for value in session.get_inputs()}


def _tensor(value: onnxruntime.NodeArg) -> Tensor:
    return Tensor(dtype=_DTYPES[str(value.type)], shape=tuple(value.shape))


def _symbols(known: Mapping[str, Tensor], given: Mapping[str, Array]) -> dict[str, int]:
    """Return what the symbols of inputs are in one call."""
    pairs = (
        pair for name in known for pair in zip(known[name].shape, given[name].shape, strict=True)
    )
    return {symbol: size for symbol, size in pairs if isinstance(symbol, str)}


def _runs(rows: Sequence[int]) -> list[list[int]]:
    """Cut ascending numbers into runs without a gap."""
    if rows and rows[-1] - rows[0] + 1 == len(rows):
        return [[*rows]]
    pairs = groupby(enumerate(rows), lambda pair: pair[1] - pair[0])
    return [[row for _, row in run] for _, run in pairs]
