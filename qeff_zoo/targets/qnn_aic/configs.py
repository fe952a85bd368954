# SPDX-License-Identifier: Apache-2.0
"""Files that QNN's tools read besides the graph, as text: sizes and types, the compiler's options, devices, formats.

In: what was planned and the inputs and outputs of a graph. Out: the content of each file, in the form that QEfficient
writes.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from qeff_zoo.graph.states import State
from qeff_zoo.targets.qnn_aic.options import SPELLED

#: Of the backend's file: QEfficient's defaults.
DEFAULTS: Mapping[str, Any] = {
    "compiler_compilation_target": "hardware",
    "compiler_hardware_version": "2.0",
    "compiler_convert_to_FP16": True,
    "compiler_retained_state": True,
    "compiler_enable_depth_first": False,
    "compiler_mxfp6_matmul_weights": False,
    "compiler_do_DDR_to_multicast": True,
    "compiler_perfWarnings": False,
    "compiler_printDDRStats": False,
    "compiler_printPerfMetrics": False,
    "compiler_stat_level": 10,
    "compiler_stats_batch_size": 1,
    "compiler_time_passes": False,
    "compiler_mxint8_mdp_io": False,
}
#: How QNN says that values are MXINT8: bytes, whose format is in another file.
_MX_TYPE, _MX_FORMAT = "uint8", "QNN_TENSOR_DATA_FORMAT_MX"
_TEXTS = ("mos",)  # numbers that QEfficient writes as text
_EXTENSIONS = "libQnnAicNetRunExtensions.so"  # found where the script says that libraries are


def custom_io(
    inputs: Sequence[tuple[str, str, Sequence[int | str]]],
    outputs: Sequence[tuple[str, str]],
    types: Mapping[str, str],
    specializations: Sequence[Mapping[str, Any]],
) -> str:
    """Write custom_io_config.yaml: the type of every input and output, and the sizes of inputs.

    Args:
        inputs: Name, type and axes of each.
        outputs: Name and type of each.
        types: Types of states by the names of their inputs and outputs, in place of the graph's: float16 or mxint8.
        specializations: Specializations of the program's plan.
    """
    kinds = {name: _MX_TYPE if kind == "mxint8" else kind for name, kind in types.items()}
    symbols = [entry["symbols"] for entry in specializations]
    lines = ["Input Tensor Configuration:"]
    for name, kind, axes in inputs:
        shapes = [tuple(int(sizes.get(axis, axis)) for axis in axes) for sizes in symbols]
        if len({*shapes}) == 1:
            shapes = shapes[:1]
        lines += [*_entry(name, kinds.get(name, kind)), f"    Shape: {', '.join(map(str, shapes))}"]
    lines.append("Output Tensor Configuration:")
    for name, kind in outputs:
        lines += _entry(name, kinds.get(name, kind))
    return "\n".join(lines) + "\n"


def _entry(name: str, kind: str) -> list[str]:
    return [f"- Name: {name}", "  Desired Model Parameters:", f"    DataType: {kind}"]


def graph_names(specializations: Sequence[Any]) -> list[str]:
    """Return what QNN calls the graphs of a model, one for each specialization."""
    count = len(specializations)
    return (
        [f"model_configuration_{place + 1}" for place in range(count)] if count > 1 else ["model"]
    )


def data_formats(states: Sequence[State], graphs: Sequence[str]) -> str:
    """Write qnn_data_format_config.json: which states are MXINT8, in every graph.

    Args:
        states: States among them.
        graphs: Their names.
    """
    # The converter writes `_` for `.` in names.
    names = [state.name.replace(".", "_") for state in states]
    names += [state.output.replace(".", "_") for state in states]
    tensors = [{"tensor_name": name, "dataFormat": _MX_FORMAT} for name in names]
    return _dump({"graphs": [{"graph_name": graph, "tensors": tensors} for graph in graphs]})


def compiler(backend: str) -> str:
    """Write qnn_compiler_config.json: where the options of the backend's compiler are, and what reads them.

    Args:
        backend: Path of `qnn_compile_backend.json`.
    """
    return _dump(
        {"backend_extensions": {"config_file_path": backend, "shared_library_path": _EXTENSIONS}}
    )


def backend(
    options: Mapping[str, Any],
    config: Mapping[str, Any],
    graphs: Sequence[str],
    slicing: str | None,
    *,
    retains: bool,
) -> str:
    """Write qnn_compile_backend.json: the options of the backend's compiler.

    Args:
        options: Options of the target.
        config: By the user's own file.
        graphs: Names of all graphs.
        slicing: Path of `tensor_slicing.json`, if there is one.
        retains: Whether there are states.
    """
    chosen = {
        key: str(options[name]) if name in _TEXTS else options[name]
        for key, name in SPELLED.items()
        if name in options
    }
    sliced = {"compiler_mdp_load_partition_config": slicing} if slicing else {}
    follows = {"compiler_retained_state": retains, "graph_names": [*graphs], **sliced}
    return _dump({**DEFAULTS, **chosen, **follows, **config})


def sliced(num_devices: int) -> str:
    """Write tensor_slicing.json: the devices that every operator is sliced over."""
    ids = [*range(num_devices)]
    devices = [{"deviceId": device} for device in ids]
    return _dump(
        {
            "connections": [{"devices": ids, "type": "p2p"}],
            "partitions": [{"name": "Partition0", "devices": devices}],
        }
    )


def _dump(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=1) + "\n"
