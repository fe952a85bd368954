# SPDX-License-Identifier: Apache-2.0
"""The reference of a prediction: transformers' own model, unpatched, in a process of its own.

    python -m qeff_zoo.validation.reference qeff_zoo.validation.reference.prediction request.json answer.npz

In: a checkpoint's folder, a task, token sequences and the positions whose answers matter, as for
`qeff_zoo.validation.reference.process`; and perhaps `device`, the fields of `qeff_zoo.graph.numerics.DeviceNumerics`
to compute in, with `numerics`, whose matrices are stored in its weights' format. Out: `reference.N`, (positions,
values) of each sequence.
"""

import json
from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import torch

from qeff_zoo.graph.numerics import DeviceNumerics, Numerics
from qeff_zoo.validation.reference.device import computing_as
from qeff_zoo.validation.reference.loading import load_model
from qeff_zoo.validation.reference.process import assert_unpatched
from qeff_zoo.validation.reference.runs import read_request
from qeff_zoo.validation.reference.subjects import answers_of


def main(arguments: Sequence[str]) -> None:
    """Answer one request.

    Args:
        arguments: The answer's file.
    """
    request = read_request()
    torch.set_grad_enabled(False)
    factors = request["settings"].get("rope_factors")
    model = load_model(request, request["task"], factors)
    device, matrices = request.get("device"), Numerics.from_dict(request["numerics"]).matrices
    with computing_as(model, DeviceNumerics(**device), matrices) if device else nullcontext():
        outputs = answers_of(model, request).alone()
    assert_unpatched()
    about = json.dumps({"class": type(model).__name__})
    arrays = {f"reference.{number}": array for number, array in enumerate(outputs)}
    np.savez(arguments[0], allow_pickle=False, about=np.array(about), **arrays)
