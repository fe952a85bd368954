# SPDX-License-Identifier: Apache-2.0
"""Programs on Cloud AI 100 cards, through the SDK's `qaicrt`: calls in, answers out.

States stay on the cards: where a QPC lists them at all, calls leave them out; but where prompts run on other cards
than answers, calls of prompts return the rows that they ran, and calls of answers are given those that came from
there. A card takes the shapes that its QPC was compiled for and no others, see
`qeff_zoo.runtime.decoding.fixed_shapes`. None of this has run on a card: the order of calls and the meaning of
buffers are those of the sessions of QEfficient and vllm-qaic.
"""

import weakref
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from qeff_zoo.errors import GenerationError, PackageError
from qeff_zoo.graph.states import part_shared
from qeff_zoo.package import Package
from qeff_zoo.package.programs import CompiledProgram
from qeff_zoo.runtime.decoding.fixed_shapes import shapes_of
from qeff_zoo.runtime.memory import new_states
from qeff_zoo.runtime.program import Array, Memory, Tensor
from qeff_zoo.targets.qaic.buffers import buffer_of
from qeff_zoo.targets.qaic.sdk import installed
from qeff_zoo.targets.qaic.slices import Slices, specification

from . import cards

_QPC = "programqpc.bin"
_TIMEOUT = 60_000  # milliseconds of one call


def open_program(package: Package, role: str) -> "QaicProgram":
    """Open a program of a package, see `qeff_zoo.targets.base.Target.open`.

    Args:
        package: Package for target `qaic`.
        role: Role of the program.

    Raises:
        GenerationError: There is no QPC, no SDK, or too few cards; or a card refused.
        PackageError: The QPC is of another program.
        SettingsError: `QEFF_ZOO_DEVICES` is no list of ids.
    """
    program = package.program(role)
    folder = package.path / program.path
    if not (folder / _QPC).is_file():
        raise GenerationError(
            f"Cannot run {str(package.path)!r}: there is no {_QPC} in {str(folder)!r}. Expected a package that was "
            f"compiled for target {package.target!r}. Build it where the SDK is."
        )
    axes = {one["name"]: tuple(one["shape"]) for one in (*program.inputs, *program.outputs)}
    sdk = cards.sdk()
    shape = package.manifest["spec"].get("shape", {})
    return QaicProgram(
        folder,
        program,
        axes,
        cards.choose(sdk[0], program.flags),
        sdk,
        half="gives"
        if shape.get("prefill_only")
        else "takes"
        if shape.get("decode_only")
        else None,
    )


class QaicProgram:
    """A QPC that is active on its cards, see `qeff_zoo.runtime.program.Program`.

    Args:
        folder: Folder of the QPC.
        program: Program of the manifest.
        axes: Axes of inputs and outputs other than states: a size or a symbol each.
        devices: Ids of the cards.
        sdk: The modules `qaicrt` and `QAicApi_pb2`.
        half: Whether it gives its states to another program, or takes that one's; None if it does all.

    Raises:
        GenerationError: A card refused, or there is no memory for the states.
        PackageError: The QPC is of another program.
    """

    def __init__(
        self,
        folder: Path,
        program: CompiledProgram,
        axes: Mapping[str, tuple[int | str, ...]],
        devices: Sequence[int],
        sdk: tuple[Any, Any],
        *,
        half: Literal["gives", "takes"] | None = None,
    ) -> None:
        self._rt, api = sdk
        self._folder, self._devices = folder, devices
        self._compiler = " ".join(map(str, program.compiler.values()))
        self.specializations = program.specializations
        self.states, self.matrices, self.features = part_shared(program.states)
        with self._understood("open"):
            self._context = self._rt.Context(self._rt.QIDList(devices))
            self._queue = self._rt.Queue(self._context, devices[0])
            qpc = self._rt.Qpc(str(folder))
        status, described = qpc.getIoDescriptor()
        self._check(status, "read the inputs of")
        layout = api.IoDesc()
        layout.ParseFromString(bytes(described))
        bindings = sorted(layout.selected_set.bindings, key=lambda one: one.index)
        read = {binding.name for binding in bindings if binding.dir == api.BUFFER_IO_TYPE_INPUT}
        read_once = (state for state in self.states if not state.written)
        shared = {one.name for one in (*self.matrices, *self.features, *read_once)}
        self._require(axes.keys() | shared, read, {binding.name for binding in bindings})
        self._names = [binding.name for binding in bindings]
        buffers = {
            binding.name: buffer_of(api, binding.name, binding.type)
            for binding in bindings
            if binding.name in shared | axes.keys()
        }
        #: Matrices of adapters, features, and what was read: calls leave them out but where the host has others.
        self._kept = {name: buffer for name, buffer in buffers.items() if name in shared}
        self._changed: dict[str, Array] = {}
        self._buffers = {name: buffer for name, buffer in buffers.items() if name in axes}
        tensors = {
            name: Tensor(dtype=buffer.tensor_dtype, shape=axes[name])
            for name, buffer in self._buffers.items()
        }
        # Slots are found here, of the rows of a call.
        given = {name: tensor for name, tensor in tensors.items() if name in read}
        self.inputs = {name: tensor for name, tensor in given.items() if name != "batch_index"}
        self.outputs = {name: tensor for name, tensor in tensors.items() if name not in read}
        self._shapes = shapes_of(program.specializations, self.inputs)
        allowed = [[[*shape.dims] for shape in row.shapes] for row in layout.allowed_shapes]
        self._sizes = [
            self._sizes_of(
                entry["symbols"], given, allowed or [[[*binding.dims] for binding in bindings]]
            )
            for entry in program.specializations
        ]
        self._active: list[Any] = []
        running = self._activate(qpc)
        #: Gives the cards back, as is done too when the program is no longer referred to.
        self.close = weakref.finalize(self, _deactivate, self._active, running)
        #: None where the cards keep the states.
        self.memory: Memory | None = None
        self._slices: Slices | None = None
        if half and self.states:
            self._hand_over(
                running, api, {binding.name: binding for binding in bindings}, gives=half == "gives"
            )

    def together(
        self, starts: Mapping[int, int], *, prefill: bool, kept: int = 1
    ) -> list[list[int]]:
        """Cut rows into those that one call can take: slots begin one by one, all else runs together."""
        return self._shapes.together(starts, prefill=prefill, kept=kept)

    def retain(self, states: Mapping[str, Array]) -> None:
        """Take what the host has, see `qeff_zoo.runtime.program.HoldsLoraWeights`."""
        self._changed.update(states)

    def run(self, inputs: Mapping[str, Array], rows: Sequence[int] = ()) -> Mapping[str, Array]:
        """Run one call; what it returns has memory of its own.

        Raises:
            GenerationError: No specialization fits, a card failed, or the program is closed.
        """
        if not self._active:
            raise self._refused("run", "it is closed")
        (execution,) = self._active
        call = self._shapes.fit(inputs, rows)
        shapes = dict(zip(self._names, self._sizes[call.index], strict=True))
        # What is not among these stays on the card. Outputs are written into their arrays.
        data = {
            name: buffer.write(call.inputs[name])
            if name in call.inputs
            else np.empty(shapes[name], buffer.dtype)
            for name, buffer in self._buffers.items()
        }
        while self._changed:  # one by one: another thread may load an adapter
            name, array = self._changed.popitem()
            data[name] = self._kept[name].write(array)
        if self._slices is not None:
            for slices, offsets in self._slices.of(rows):
                status, _ = execution.setDataWithSlices(slices, self._slices.handle, offsets)
                self._check(status, "set slices of states of")
        pairs = [(self._names.index(name), array) for name, array in data.items()]
        self._check(execution.setData(pairs), "fill the buffers of")
        self._check(self._queue.enqueue(execution), "start")
        self._check(execution.waitForCompletion(), "run")
        if self.memory is not None:
            self.memory.written.difference_update(rows)
        return {
            name: call.answer(self._buffers[name].read(data[name]), output.shape)
            for name, output in self.outputs.items()
        }

    def _require(self, known: Set[str], read: Set[str], present: Set[str]) -> None:
        """Check the QPC's inputs and outputs against the manifest."""
        # QNN's converter writes `_` for `.` in names.
        kept = (*self.states, *self.matrices, *self.features)
        states = {name for one in kept for name in (one.name, one.name.replace(".", "_"))}
        if lacking := sorted(known - present):
            raise self._foreign(f"it has no {', '.join(map(repr, lacking))}")
        if strange := sorted(read - known - states):
            raise self._foreign(f"it takes {', '.join(map(repr, strange))} as well")

    def _sizes_of(
        self,
        symbols: Mapping[str, str],
        given: Mapping[str, Tensor],
        allowed: Sequence[Sequence[list[int]]],
    ) -> Sequence[list[int]]:
        """Find what a specialization makes of every buffer."""
        wanted = {
            name: [int(symbols.get(str(axis), axis)) for axis in tensor.shape]
            for name, tensor in given.items()
        }
        for sizes in allowed:
            shapes = dict(zip(self._names, sizes, strict=True))
            if shapes.items() >= wanted.items():
                return sizes
        raise self._foreign(f"it was not compiled for {dict(symbols)!r}")

    def _activate(self, qpc: Any) -> Any:
        """Load the QPC onto its cards and make it ready to run."""
        properties = self._rt.QAicProgramProperties()
        properties.dataPathTimeoutMs = _TIMEOUT
        card = self._devices[0] if len(self._devices) == 1 else None
        if card is None:
            properties.devMapping = ":".join(map(str, self._devices))
        with self._understood("load"):
            program = self._rt.Program(self._context, card, qpc, properties)
            self._check(program.load(), "load")
            self._check(program.activate(), "activate")
            self._active.append(self._rt.ExecObj(self._context, program))
        return program

    def _hand_over(self, running: Any, api: Any, arrays: Mapping[str, Any], *, gives: bool) -> None:
        """Make ready to give states to another program, or to take its, where they are listed and are floats.

        The layout of MXINT8 in a buffer is undocumented.
        """
        names = [name for state in self.states for name in (state.name, state.output)]
        if not all(name in arrays for name in names):
            return
        buffers = {name: buffer_of(api, name, arrays[name].type) for name in names}
        if any(buffer.dtype.kind != "f" for buffer in buffers.values()):
            return
        dtypes = {state.name: buffers[state.name].dtype for state in self.states}
        memory = new_states(self.states, dtypes, self.specializations, is_current=gives)
        status, handle = running.createSlicingSpecHandle(specification(self.states, memory))
        self._check(status, "prepare slices of states of")
        self.memory = memory
        self._slices = Slices(
            handle, {name: arrays[name].index for name in names}, self.states, memory
        )

    @contextmanager
    def _understood(self, what: str) -> Iterator[None]:
        """Convert an exception of an SDK constructor to our error."""
        try:
            yield
        except RuntimeError as error:
            raise self._refused(what, error) from error

    def _check(self, status: Any, what: str) -> None:
        if status != self._rt.QStatus.QS_SUCCESS:
            raise self._refused(what, status)

    def _refused(self, what: str, why: object) -> GenerationError:
        cards = ", ".join(map(str, self._devices))
        return GenerationError(
            f"Cannot {what} {str(self._folder)!r} on Cloud AI 100 card {cards}: {why}. Expected a QPC compiled for "
            f"{len(self._devices)} of them, that nothing else uses, by an SDK that goes with this machine's: it is of "
            f"{self._compiler}, and the Platform SDK here is {installed('platform')}. Look at `qaic-util -q`, and open "
            "the package again."
        )

    def _foreign(self, why: str) -> PackageError:
        return PackageError(
            f"The QPC {str(self._folder)!r} is of another program than its manifest says: {why}. Expected that of the "
            "same build. Build or pull the package again."
        )


def _deactivate(active: list[Any], program: Any) -> None:
    active.clear()  # what runs a program goes before it
    program.deactivate()
