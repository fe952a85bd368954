# SPDX-License-Identifier: Apache-2.0
"""A package's folder in, an ONNX Runtime session out: the one place that sets its options."""

from collections.abc import Set
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from qeff_zoo.errors import GenerationError

#: The program of every package of the target `ort`.
GRAPH = "graph.onnx"
_ONLY_ERRORS = 3
_WEIGHTS_LIE_IN = "session.model_external_initializers_file_folder_path"
_DTYPES: dict[str, np.dtype[Any]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(float16)": np.dtype(np.float16),
}


def open_graph(
    folder: Path,
    *,
    task: str,
    inputs: Set[str],
    outputs: Set[str],
    threads: int | None = None,
    prepack: bool = False,
    graph: bytes | None = None,
) -> onnxruntime.InferenceSession:
    """Open a package's graph on the CPU.

    Args:
        folder: The package.
        task: The graph's, for the message that refuses another.
        inputs: Names that the task's graphs have.
        outputs: Names that the task's graphs have.
        threads: That compute one operator; None for one per physical core.
        prepack: Copy the weights into the layout that the kernels like best: slower to open, and the
            weights are no longer shared with the file.
        graph: In place of the package's, with the same weights; None for that.

    Raises:
        GenerationError: There is no graph, or it is one of another task.
    """
    path = folder / GRAPH
    if not path.is_file():
        raise GenerationError(
            f"Cannot run {str(folder)!r}: it has no {GRAPH}. Expected the folder of a package for "
            "target 'ort'. Give the path that `qeff-zoo build` printed."
        )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ONLY_ERRORS
    options.add_session_config_entry("session.disable_prepacking", "0" if prepack else "1")
    if threads is not None:
        options.intra_op_num_threads = threads
    if graph is not None:
        options.add_session_config_entry(_WEIGHTS_LIE_IN, str(folder))
    session = onnxruntime.InferenceSession(
        graph or path, options, providers=["CPUExecutionProvider"]
    )
    taken = {value.name for value in session.get_inputs()}
    returned = {value.name for value in session.get_outputs()}
    if not (inputs <= taken and outputs <= returned):
        raise GenerationError(
            f"Package {str(folder)!r} is not one for {task}: its graph takes {_some(taken)} and "
            f"returns {_some(returned)}. Expected {_some(inputs)} and {_some(outputs)}. Run a "
            "package of that task."
        )
    return session


def dtype_of(value: onnxruntime.NodeArg) -> np.dtype[Any]:
    """Return the numpy type of a floating-point input or output."""
    return _DTYPES[str(value.type)]


def _some(names: Set[str]) -> str:
    shown = sorted(names)[:4]
    return ", ".join(map(repr, shown)) + (", …" if len(names) > len(shown) else "")
