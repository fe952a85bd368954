# SPDX-License-Identifier: Apache-2.0
"""What several tests of qaic graph and others use."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx_ir as ir
import onnxruntime
import parity
from parity import Array, Subject

from qeff_zoo.graph import external_data
from qeff_zoo.graph.numerics import Format
from qeff_zoo.recipe import Shape
from qeff_zoo.weights import placement
from qeff_zoo.weights.layout import Slot
from qeff_zoo.weights.storage import Storage
from qeff_zoo.weights.writing import plan_file, write

SHAPE = Shape(ctx_len=parity.CTX_LEN)


def program(weights: Format, shape: Shape = SHAPE) -> SimpleNamespace:
    """Plan a program, as far as lowering reads a plan."""
    return SimpleNamespace(
        shape=shape,
        storage=lambda encoded: Storage(weights, encoded),
        flags={},
        specializations=[{"symbols": {}}],
    )


def open_host(
    subject: Subject, slots: Sequence[Slot], model: ir.Model
) -> onnxruntime.InferenceSession:
    """Open a graph with host bodies and its data file."""
    folder = Path(tempfile.mkdtemp(dir=subject.folder))
    layout = plan_file(slots, subject.checkpoint.tensors)
    write(layout, subject.checkpoint, folder / external_data.WEIGHTS)
    placement.place(model, layout)
    ir.save(model, folder / "graph.onnx")
    return parity.open_session(folder / "graph.onnx")


def junk(shape: list[int]) -> Array:
    """Fill a state with what no earlier request would leave: large numbers and NaN."""
    return np.random.default_rng(2).choice([1e30, -1e30, 3, np.nan], shape).astype(np.float32)
