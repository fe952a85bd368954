# SPDX-License-Identifier: Apache-2.0
"""Stands in for qaicrt in tests: runs in ONNX Runtime what a stand-in of the compiler was given, as a card would.

Faithful where a driver can go wrong: a program is loaded, then activated, then executed; methods return statuses; a
call has a buffer for every binding, of exactly the bytes of an allowed shape, and an empty one for states and for
outputs that nobody wants; states are the activated program's own, begin as garbage, and have the precision that was
compiled; nothing runs before somebody waits for it. Slices are regions of states: offsets say where one begins on the
card, its array how large it is; they hold until the next call of `setData`, which must be one of pairs, and whose
outputs are in their arrays alone.

Its QPC is a folder whose programqpc.bin begins "NO QPC", then JSON: `model`, the path of an ONNX file;
`specializations`, a name and integers by symbol for each; `custom_io`, precisions by name; `pairs`, output by input of
each state; `options` of the compiler. With `split-retained-state-io` among these, states are listed as bindings; else
nobody sees them.
"""

import enum
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

HEADER = b"NO QPC\n"
#: How many cards there are, and cores of each.
DEVICES, CORES = 4, 16
#: Cores in use, by card.
used: dict[int, int] = {}
#: What went wrong, for tests that fail.
messages: list[str] = []
#: By precision: the type of a binding.
_KINDS = {
    "float32": 0,
    "float16": 1,
    "int32": 6,
    "int64": 7,
    "int8": 8,
    "bool": 8,
    "mxint8": 8,
    "bfloat16": 11,
}
#: By type of a graph's input, what the graph is fed.
_OWN = {"tensor(float)": np.float32, "tensor(bool)": bool, "tensor(int32)": np.int32}
_BUFFERS = {0: np.float32, 1: np.float16, 6: np.int32, 7: np.int64, 8: np.int8, 11: np.uint16}


class QStatus(enum.Enum):
    QS_SUCCESS, QS_ERROR, QS_INVAL, QS_NODEV, QS_BUSY = range(5)


class QLogLevel(enum.Enum):
    QL_DEBUG, QL_INFO, QL_WARN, QL_ERROR = range(4)


def _status(status: QStatus, why: str) -> QStatus:
    messages.append(why)
    return status


class QIDList(list):
    pass


class BufferDimensionsVecRef(list):
    pass


class QAicProgramProperties:
    dataPathTimeoutMs = 0
    devMapping = ""


class QAicQueueProperties:
    numThreadsPerQueue = 4


class QBuffer:
    def __init__(self, data: bytes) -> None:
        self._data = bytes(data)

    def __bytes__(self) -> bytes:
        return self._data

    @property
    def size(self) -> int:
        return len(self._data)


class Util:
    def getDeviceIds(self) -> tuple[QStatus, QIDList]:
        return QStatus.QS_SUCCESS if DEVICES else QStatus.QS_NODEV, QIDList(range(DEVICES))

    def getResourceInfo(self, device: int) -> tuple[QStatus, Any]:
        free = CORES - used.get(device, 0)
        return QStatus.QS_SUCCESS, type("QResourceInfo", (), {"nspTotal": CORES, "nspFree": free})


class Context:
    def __init__(self, devices: QIDList | None = None) -> None:
        self.devices = [0] if devices is None else list(devices)
        if not all(0 <= device < DEVICES for device in self.devices):
            raise RuntimeError("QS_NODEV")

    def setLogLevel(self, level: QLogLevel) -> QStatus:
        return QStatus.QS_SUCCESS


class Queue:
    def __init__(self, context: Context, device: int) -> None:
        if device not in context.devices:
            raise RuntimeError("QS_INVAL")

    def initProperties(self, properties: QAicQueueProperties) -> QStatus:
        return QStatus.QS_SUCCESS

    def enqueue(self, execution: "ExecObj") -> QStatus:
        if execution.buffers is None or not execution.program.active:
            return _status(QStatus.QS_INVAL, "no buffers, or the program is not active")
        if execution.queued:
            return _status(QStatus.QS_BUSY, "it is queued already")
        execution.queued = True
        return QStatus.QS_SUCCESS


class Qpc:
    def __init__(self, path: str) -> None:
        content = (Path(path) / "programqpc.bin").read_bytes()
        if not content.startswith(HEADER):
            raise RuntimeError("QS_INVAL: no QPC of the stand-in")
        self.note = json.loads(content.removeprefix(HEADER))
        graph = onnx.load(self.note["model"], load_external_data=False).graph
        constants = {tensor.name for tensor in graph.initializer}
        self._known: dict[str, dict[str, list[int]]] = {}
        #: (name, direction, precision, symbolic shape) of everything that the graph takes and returns.
        self.values = [
            (value.name, way, self._precision(value), self._axes(value))
            for way, values in enumerate((graph.input, graph.output))
            for value in values
            if value.name not in constants
        ]
        self.states = {*self.note["pairs"], *self.note["pairs"].values()}
        listed = self.note["options"].get("split-retained-state-io")
        self.bindings = [value for value in self.values if listed or value[0] not in self.states]

    def _precision(self, value: onnx.ValueInfoProto) -> str:
        names = {1: "float32", 10: "float16", 6: "int32", 7: "int64", 9: "bool"}
        own = names[value.type.tensor_type.elem_type]
        return str(self.note["custom_io"].get(value.name, own))

    @staticmethod
    def _axes(value: onnx.ValueInfoProto) -> list[int | str]:
        return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]

    def shapes(self, symbols: dict[str, int]) -> list[list[int]]:
        found = {name: [symbols.get(axis, axis) for axis in axes] for name, *_, axes in self.values}
        if any(isinstance(axis, str) for dims in found.values() for axis in dims):
            found |= self._measured(json.dumps(symbols), found)
        return [found[name] for name, *_ in self.bindings]

    def _measured(self, symbols: str, sizes: dict[str, Any]) -> dict[str, list[int]]:
        """Find sizes of outputs that follow from others, as a compiler does."""
        if symbols not in self._known:
            model = _runnable(onnx.load(self.note["model"]))
            session = onnxruntime.InferenceSession(
                model.SerializeToString(), providers=["CPUExecutionProvider"]
            )
            kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
            given = {
                one.name: np.ones(sizes[one.name], kinds[one.type]) for one in session.get_inputs()
            }
            names = [output.name for output in session.get_outputs()]
            made = session.run(names, given)
            self._known[symbols] = {
                name: [*array.shape] for name, array in zip(names, made, strict=True)
            }
        return self._known[symbols]

    def getIoDescriptor(self) -> tuple[QStatus, bytes]:
        every = [self.shapes(symbols) for _, symbols in self.note["specializations"]]
        bindings = []
        for index, (name, way, precision, _) in enumerate(self.bindings):
            dims = max((shapes[index] for shapes in every), key=np.prod)
            kind = _KINDS[precision]
            size = int(np.prod(dims)) * np.dtype(_BUFFERS[kind]).itemsize
            partial = way == 1 or name in self.states
            about = {"name": name, "index": index, "type": kind, "dir": way, "dims": dims}
            bindings.append({**about, "size": size, "is_partial_buf_allowed": partial})
        kinds = [_KINDS[precision] for _, _, precision, _ in self.bindings]
        allowed = [
            {
                "shapes": [
                    {"type": kind, "dims": dims} for kind, dims in zip(kinds, shapes, strict=True)
                ]
            }
            for shapes in every
        ]
        described = {"selected_set": {"bindings": bindings}, "allowed_shapes": allowed}
        return QStatus.QS_SUCCESS, json.dumps(described).encode()


class Program:
    def __init__(
        self, context: Context, device: int | None, qpc: Qpc, properties: QAicProgramProperties
    ) -> None:
        mapped = [int(one) for one in properties.devMapping.split(":") if one]
        if (device is None) != bool(mapped) or not {*mapped, device or 0} <= {*context.devices, 0}:
            raise RuntimeError("QS_INVAL: one device, or several in devMapping")
        self.devices = mapped or [device]
        self.qpc, self.loaded, self.active = qpc, False, False
        self.cores = int(qpc.note["options"].get("aic-num-cores", CORES))

    def load(self) -> QStatus:
        partitions = self.qpc.note["options"].get("mdp-load-partition-config")
        needed = 1
        if partitions:
            found = json.loads(Path(partitions).read_text())["partitions"]
            needed = sum(len(one["devices"]) for one in found)
        if needed != len(self.devices):
            return _status(QStatus.QS_INVAL, f"compiled for {needed} devices")
        self.loaded = True
        return QStatus.QS_SUCCESS

    def activate(self) -> QStatus:
        if not self.loaded or self.active:
            return _status(QStatus.QS_INVAL, "not loaded, or active already")
        if any(used.get(device, 0) + self.cores > CORES for device in self.devices):
            return _status(QStatus.QS_BUSY, "too few free cores")
        for device in self.devices:
            used[device] = used.get(device, 0) + self.cores
        note = self.qpc.note
        model = _runnable(onnx.load(note["model"]))
        self.session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        every = [symbols for _, symbols in note["specializations"]]
        largest = {name: max(one.get(name, 0) for one in every) for one in every for name in one}
        self.states = {
            name: np.full(
                [largest.get(axis, axis) for axis in axes],
                77,
                bool if precision == "bool" else np.float32,
            )
            for name, _, precision, axes in self.qpc.values
            if name in note["pairs"]
        }
        self.active = True
        return QStatus.QS_SUCCESS

    def createSlicingSpecHandle(self, text: str) -> tuple[QStatus, Any]:
        """Take which states are sliced: patterns of names, sizes of values, and where each axis begins."""
        specs = json.loads(text)["BufferSpecs"]
        found: dict[str, Any] = {}
        for name, _, precision, axes in self.qpc.bindings:
            fits = [spec for spec in specs if re.fullmatch(spec["Name"], name)]
            if any(spec["DimSpecs"] != fits[0]["DimSpecs"] for spec in fits):
                return _status(QStatus.QS_INVAL, f"several patterns fit {name}"), None
            size = np.dtype(_BUFFERS[_KINDS[precision]]).itemsize
            for spec in fits:
                starts = [dimspec["start"] for dimspec in spec["DimSpecs"]]
                # QEfficient says three axes of any state that has not four.
                if spec["ElemSize"] != size or len(starts) < len(axes) or any(starts[len(axes) :]):
                    return _status(QStatus.QS_INVAL, f"{spec} is none of {name}"), None
                found[name] = starts[: len(axes)]
        if not found:
            return _status(QStatus.QS_INVAL, f"no slices: {specs}"), None
        return QStatus.QS_SUCCESS, (self, found)

    def deactivate(self) -> QStatus:
        if not self.active:
            return _status(QStatus.QS_INVAL, "not active")
        for device in self.devices:
            used[device] -= self.cores
        self.active, self.states = False, {}
        return QStatus.QS_SUCCESS


class ExecObj:
    def __init__(self, context: Context, program: Program) -> None:
        if not program.active:
            raise RuntimeError("QS_INVAL: not active")
        self.program = program
        self.buffers: list[bytes] | None = None
        self.queued = False
        self._answer: list[QBuffer] | None = None
        #: Regions of bindings and their arrays, for the next call.
        self._sliced: list[tuple[int, tuple[slice, ...], Any]] = []

    def setDataWithSlices(
        self, slices: list[tuple[int, Any]], handle: Any, parameters: list[tuple[str, int]]
    ) -> tuple[QStatus, Any]:
        """Take arrays for regions of states, beside those that are set and what `setData` is given for the call."""
        owner, specs = handle
        offsets = dict(parameters)
        taken = []
        for index, array in slices:
            name, _, precision, _ = self.program.qpc.bindings[index]
            dtype = np.dtype(_BUFFERS[_KINDS[precision]])
            starts = [offsets.get(one, one) for one in specs.get(name, ())]
            if owner is not self.program or not starts or {*map(type, starts)} != {int}:
                return _status(QStatus.QS_INVAL, f"no slices of {name} by {parameters}"), None
            if array.dtype != dtype or not array.flags.c_contiguous or array.ndim != len(starts):
                return _status(QStatus.QS_INVAL, f"{name}: {array.dtype} {array.shape}"), None
            stops = [start + size for start, size in zip(starts, array.shape, strict=True)]
            ends = zip(specs[name], stops, self._shape(name), strict=True)
            if any(stop > end or (type(one) is int and stop < end) for one, stop, end in ends):
                return _status(QStatus.QS_INVAL, f"{name}: {starts} to {stops}"), None
            region = tuple(slice(*ends) for ends in zip(starts, stops, strict=True))
            taken.append((index, region, array))
        self._sliced += taken
        return QStatus.QS_SUCCESS, handle

    def _shape(self, name: str) -> tuple[int, ...]:
        paired = {output: state for state, output in self.program.qpc.note["pairs"].items()}
        return tuple(self.program.states[paired.get(name, name)].shape)

    def setData(self, buffers: list[Any], dims: BufferDimensionsVecRef | None = None) -> QStatus:
        """Take QBuffers and their (size, shape), or (index, array) pairs, whose outputs are written in place."""
        count = len(self.program.qpc.bindings)
        self._in_place: dict[int, Any] = {}
        self._moved, self._sliced = self._sliced, []
        if dims is None:
            self._in_place = dict(buffers)
            if len(self._in_place) < len(buffers) or {*self._in_place} & {
                index for index, _, _ in self._moved
            }:
                return _status(QStatus.QS_INVAL, "a binding is given twice")
            arrays = [self._in_place.get(index, np.array([])) for index in range(count)]
            if any(not array.flags.c_contiguous for array in arrays):
                return _status(QStatus.QS_INVAL, "an array is not contiguous")
            buffers = [QBuffer(array.tobytes()) for array in arrays]
            dims = BufferDimensionsVecRef([(array.itemsize, list(array.shape)) for array in arrays])
        elif self._moved:
            return _status(QStatus.QS_INVAL, "slices, and then no pairs")
        if not isinstance(dims, BufferDimensionsVecRef) or not len(buffers) == len(dims) == count:
            return _status(QStatus.QS_INVAL, f"{len(buffers)} buffers for {count} bindings")
        if any(not isinstance(one, QBuffer) for one in buffers):
            raise TypeError("setData takes QBuffers")
        self.buffers, self._dims = [bytes(one) for one in buffers], [[*shape] for _, shape in dims]
        for buffer, (size, shape) in zip(self.buffers, dims, strict=True):
            if len(buffer) != size * int(np.prod(shape)):
                return _status(QStatus.QS_INVAL, f"{len(buffer)} bytes for {size} x {shape}")
        return QStatus.QS_SUCCESS

    def waitForCompletion(self) -> QStatus:
        if not self.queued:
            return _status(QStatus.QS_INVAL, "not enqueued")
        self.queued = False
        qpc = self.program.qpc
        assert self.buffers is not None
        for _, symbols in qpc.note["specializations"]:
            shapes = qpc.shapes(symbols)
            if all(dims in (shape, [0]) for dims, shape in zip(self._dims, shapes, strict=True)):
                return self._run(symbols, shapes)
        return _status(QStatus.QS_ERROR, "No matching dimension found")

    def _run(self, symbols: dict[str, int], shapes: list[list[int]]) -> QStatus:
        qpc, states = self.program.qpc, self.program.states
        assert self.buffers is not None
        for index, region, array in self._moved:
            if qpc.bindings[index][1] == 0:
                states[qpc.bindings[index][0]][region] = array
        fed = dict(states)
        own = {one.name: one.type for one in self.program.session.get_inputs()}
        for value, buffer, shape in zip(qpc.bindings, self.buffers, shapes, strict=True):
            name, way, precision, _ = value
            if not buffer and (way == 1 or name in qpc.states):
                continue
            dtype = np.dtype(_BUFFERS[_KINDS[precision]])
            if len(buffer) != int(np.prod(shape)) * dtype.itemsize:
                return _status(QStatus.QS_INVAL, f"{name}: {len(buffer)} bytes for {shape}")
            if way == 0:
                kind = _OWN.get(own[name], np.int64)
                fed[name] = np.frombuffer(buffer, dtype).reshape(shape).astype(kind)
        names = [name for name, way, *_ in qpc.values if way == 1]
        made = dict(zip(names, self.program.session.run(names, fed), strict=True))
        for name, output in qpc.note["pairs"].items():
            kind = qpc.note["custom_io"].get(name, "float32")
            if states[name].dtype == bool:
                states[name] = made[output]
                continue
            stored = made[output].astype(np.float16 if kind == "float16" else np.float32)
            states[name] = stored.astype(np.float32)
        for index, region, array in self._moved:
            name, way, precision, _ = qpc.bindings[index]
            if way == 1:
                array[...] = _encoded(made[name], precision)[region]
        self._answer = []
        for index, (value, buffer) in enumerate(zip(qpc.bindings, self.buffers, strict=True)):
            name, way, precision, _ = value
            data = buffer
            if way == 1 and buffer:
                data = _encoded(made[name], precision).tobytes()
                if len(data) != len(buffer):
                    return _status(QStatus.QS_ERROR, f"{name}: {made[name].shape} was compiled")
                if index in self._in_place:
                    kept = self._in_place[index]
                    kept[...] = np.frombuffer(data, kept.dtype).reshape(kept.shape)
            self._answer.append(QBuffer(b"" if self._in_place else data))
        return QStatus.QS_SUCCESS

    def getData(self) -> tuple[QStatus, list[QBuffer] | None]:
        if self._answer is None:
            return _status(QStatus.QS_INVAL, "nothing has run"), None
        return QStatus.QS_SUCCESS, self._answer


def _encoded(array: Any, precision: str) -> Any:
    if precision == "bfloat16":
        bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return array.astype(_BUFFERS[_KINDS[precision]])


def _runnable(model: onnx.ModelProto) -> onnx.ModelProto:
    """Give the compiler's own operators bodies that run here: what a card skips is NaN."""
    if not any(function.domain.startswith("com.") for function in model.functions):
        return model
    import onnx_ir as ir

    from qeff_zoo.targets.qaic import ops

    return ir.to_proto(ops.with_host_bodies(ir.from_proto(model)))
