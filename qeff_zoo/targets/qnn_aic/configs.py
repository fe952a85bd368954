# SPDX-License-Identifier: Apache-2.0
"""Configuration files of QNN's tools: sizes and types, options of the compiler, devices and formats of states.

Each function returns the content of one file, in the form that QEfficient writes.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from qeff_zoo.graph.states import State
from qeff_zoo.targets.qnn_aic.options import SPELLED

#: QEfficient's defaults of qnn_compile_backend.json.
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
#: Type of MXINT8 values in QNN, and the format of these bytes in qnn_data_format_config.json.
_MX_TYPE, _MX_FORMAT = "uint8", "QNN_TENSOR_DATA_FORMAT_MX"
_TEXT_OPTIONS = ("mos",)  # numbers that QEfficient writes as text
_EXTENSIONS = "libQnnAicNetRunExtensions.so"  # in the folder of libraries that the script sets


def custom_io(
    inputs: Sequence[tuple[str, str, Sequence[int | str]]],
    outputs: Sequence[tuple[str, str]],
    types: Mapping[str, str],
    specializations: Sequence[Mapping[str, Any]],
) -> str:
    """Return custom_io_config.yaml: the type of every input and output, and the sizes of inputs.

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
    """Return QNN's names of the graphs of a model, one for each specialization."""
    count = len(specializations)
    return (
        [f"model_configuration_{place + 1}" for place in range(count)] if count > 1 else ["model"]
    )


def data_formats(states: Sequence[State], graphs: Sequence[str]) -> str:
    """Return qnn_data_format_config.json: the states of MXINT8 in every graph.

    Args:
        states: States of MXINT8.
        graphs: Names of the graphs.
    """
    # The converter writes `_` for `.` in names.
    names = [state.name.replace(".", "_") for state in states]
    names += [state.output.replace(".", "_") for state in states]
    tensors = [{"tensor_name": name, "dataFormat": _MX_FORMAT} for name in names]
    return _dump({"graphs": [{"graph_name": graph, "tensors": tensors} for graph in graphs]})


def compiler_config(backend: str) -> str:
    """Return qnn_compiler_config.json: the file with the options of the backend's compiler, and its reader.

    Args:
        backend: Path of `qnn_compile_backend.json`.
    """
    return _dump(
        {"backend_extensions": {"config_file_path": backend, "shared_library_path": _EXTENSIONS}}
    )


def backend_config(
    options: Mapping[str, Any],
    config: Mapping[str, Any],
    graphs: Sequence[str],
    slicing: str | None,
    *,
    retains: bool,
) -> str:
    """Return qnn_compile_backend.json: the options of the backend's compiler.

    Args:
        options: Options of the target.
        config: Values of the user's file.
        graphs: Names of all graphs.
        slicing: Path of `tensor_slicing.json`, if there is one.
        retains: Whether there are states.
    """
    chosen = {
        key: str(options[name]) if name in _TEXT_OPTIONS else options[name]
        for key, name in SPELLED.items()
        if name in options
    }
    sliced = {"compiler_mdp_load_partition_config": slicing} if slicing else {}
    follows = {"compiler_retained_state": retains, "graph_names": [*graphs], **sliced}
    return _dump({**DEFAULTS, **chosen, **follows, **config})


def slicing_config(num_devices: int) -> str:
    """Return tensor_slicing.json: every operator is sliced over all devices."""
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
