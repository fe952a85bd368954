# SPDX-License-Identifier: Apache-2.0
"""A process of its own that compiles one graph for HTP, or opens one that was compiled and runs it.

HTP's libraries write other bytes for the second graph that a process compiles, and may bring their process down.

    python -m qeff_zoo.targets.qnn_htp.worker compile FOLDER GRAPH OUTPUT SOC_MODEL SYMBOLS
    python -m qeff_zoo.targets.qnn_htp.worker run GRAPH SOC_MODEL CHANNEL
"""

import json
import os
import sys
from itertools import chain
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import onnxruntime
import onnxruntime_qnn

_PROVIDER = "QNNExecutionProvider"
_WARNINGS = 2
_ERRORS = 3


def options(soc_model: str, severity: int) -> onnxruntime.SessionOptions:
    """Return options by which every node runs on HTP, in float16, or nothing does.

    Args:
        soc_model: Qualcomm's number of the system on a chip.
        severity: Severity of ONNX Runtime's log messages.
    """
    onnxruntime.register_execution_provider_library(_PROVIDER, onnxruntime_qnn.get_library_path())
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == _PROVIDER]
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = severity
    settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    provider = {
        "backend_path": onnxruntime_qnn.get_qnn_htp_path(),
        "soc_model": soc_model,
        "enable_htp_fp16_precision": "1",
    }
    settings.add_provider_for_devices(devices[:1], provider)
    return settings


def compile(folder: str, graph: str, output: str, soc_model: str, symbols: str) -> None:
    """Compile one specialization of a lowered graph; prints of every node, by name, the module that it belongs to.

    Args:
        folder: Folder of the graph and its weights; the result must not depend on its path.
        graph: Name of the lowered graph.
        output: Path of the graph that reads the compiled file, below the folder.
        soc_model: Qualcomm's number.
        symbols: JSON object, size by name.
    """
    import onnx_ir as ir

    from . import static

    os.chdir(folder)
    model = ir.load(graph)
    static.bind(model, json.loads(symbols))
    content = ir.to_proto(model).SerializeToString()
    sys.stdout.write(json.dumps(_modules(model.graph)) + "\n")
    sys.stdout.flush()
    session_options = options(soc_model, _WARNINGS)
    session_options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", "."
    )
    compiler = onnxruntime.ModelCompiler(
        session_options, content, embed_compiled_data_into_model=False
    )
    compiler.compile_to_file(output)
    kinds = [node.op_type for node in ir.load(output).graph]
    if kinds != ["EPContext"]:
        sys.exit(f"The compiled graph has {', '.join(kinds)}; expected one EPContext.")


def _modules(graph: Any) -> dict[str, str]:
    """Return of every node, by name, the module of the nearest weight that it is computed from."""
    import onnx_ir as ir

    nearest: dict[Any, str] = {}
    for node in graph:
        given = [value for value in node.inputs if value is not None]
        weights = (one.name for one in given if isinstance(one.const_value, ir.ExternalTensor))
        above = (nearest[value] for value in reversed(given) if value in nearest)
        module = next(filter(None, chain(weights, above)), "")
        nearest.update(dict.fromkeys(node.outputs, module))
    plain = {value: name.removesuffix(".transposed") for value, name in nearest.items()}
    return {node.name: plain[node.outputs[0]].rpartition(".")[0] for node in graph}


def run(graph: str, soc_model: str, channel: str) -> None:
    """Open a compiled graph, and run it for every request.

    Args:
        graph: Path of the graph that reads the compiled file.
        soc_model: Qualcomm's number.
        channel: File descriptor: None goes out when it is open; then inputs by name come in, and outputs go out.
    """
    with Connection(int(channel)) as connection:
        path = Path(graph)
        os.chdir(path.parent)
        session = onnxruntime.InferenceSession(path.name, options(soc_model, _ERRORS))
        session.disable_fallback()  # to a CPU that knows no EPContext
        taken = {value.name for value in session.get_inputs()}
        names = [value.name for value in session.get_outputs()]
        connection.send(None)
        while True:
            try:
                given = connection.recv()
            except EOFError:
                return
            inputs = {name: array for name, array in given.items() if name in taken}
            connection.send(dict(zip(names, session.run(names, inputs), strict=True)))


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    (compile if command == "compile" else run)(*arguments)
