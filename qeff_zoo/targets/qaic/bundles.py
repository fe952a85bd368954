# SPDX-License-Identifier: Apache-2.0
"""Generation bundles: the first call of a program as files for one run of Qualcomm's qaic-runner, without a card.

    io/aic_batch_io.json    name, shape and element size of each input and output of the call
    io/data/NAME.raw        content of an input

The inputs are those that a session gives to a card: the session itself makes them, with recorders in place of QPCs.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo.disk.staging import remove, settle, staged_beside
from qeff_zoo.errors import GenerationError
from qeff_zoo.graph.states import part_shared
from qeff_zoo.package.programs import CompiledProgram
from qeff_zoo.runtime.decoding.fixed_shapes import shapes_of
from qeff_zoo.runtime.program import Array, Tensor

#: Folder of a bundle, and its description.
FOLDER, DESCRIPTION = "io", "aic_batch_io.json"


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call in the shapes of a specialization.

    Args:
        inputs: Arrays of the host by name.
        outputs: Data type and shape of each output by name.
    """

    inputs: Mapping[str, Array]
    outputs: Mapping[str, tuple[np.dtype[Any], Sequence[int]]]


class Recorder:
    """Program that records its first call and returns zeros, see `qeff_zoo.runtime.program.Program`.

    Args:
        program: Program of the manifest.
    """

    #: The device keeps the states.
    memory = None

    def __init__(self, program: CompiledProgram) -> None:
        self.specializations = program.specializations
        self.states, self.matrices, self.features = part_shared(program.states)
        inputs = Tensor.by_name(program.inputs)
        self._dtypes = {name: array.dtype for name, array in inputs.items()}
        # A call's batch slots determine this one.
        self.inputs = {name: array for name, array in inputs.items() if name != "batch_index"}
        self.outputs = Tensor.by_name(program.outputs)
        self._shapes = shapes_of(program.specializations, self.inputs)
        self._retained: dict[str, Array] = {}
        self.call: Call | None = None

    def together(
        self, starts: Mapping[int, int], *, prefill: bool, kept: int = 1
    ) -> list[list[int]]:
        """Split batch slots into groups that one call takes."""
        return self._shapes.together(starts, prefill=prefill, kept=kept)

    def retain(self, states: Mapping[str, Array]) -> None:
        """Set shared states for the next call; on cards they are float16."""
        self._retained |= {name: array.astype(np.float16) for name, array in states.items()}

    def run(self, inputs: Mapping[str, Array], rows: Sequence[int] = ()) -> Mapping[str, Array]:
        """Record one call."""
        call = self._shapes.fit(inputs, rows)
        given = {
            name: np.ascontiguousarray(array, self._dtypes[name])
            for name, array in call.inputs.items()
            if name in self._dtypes
        }
        symbols = self.specializations[call.index]["symbols"]
        outputs = {
            name: (output.dtype, [int(symbols.get(str(axis), axis)) for axis in output.shape])
            for name, output in self.outputs.items()
        }
        if self.call is None:
            self.call = Call(inputs={**given, **self._retained}, outputs=outputs)
        self._retained = {}
        return {
            name: call.answer(np.zeros(shape, dtype), self.outputs[name].shape)
            for name, (dtype, shape) in outputs.items()
        }


def write(recorder: Recorder, folder: Path) -> Path:
    """Write the recorded call.

    Args:
        recorder: Recorder of the program.
        folder: Parent folder of the bundle; an earlier bundle there is replaced.

    Returns:
        The folder of the bundle.

    Raises:
        GenerationError: The session never called the program.
    """
    if recorder.call is None:
        raise GenerationError(
            "The prompt needs no call of the chosen program; expected one that reads it. Give an image to a vision "
            "encoder, or choose the other program with skip_vision=True."
        )
    bundle = folder / FOLDER
    with staged_beside(bundle) as staged:
        (staged / "data").mkdir()
        entries = []
        for name, array in recorder.call.inputs.items():
            (staged / "data" / f"{name}.raw").write_bytes(array.tobytes())
            entries.append(_entry(name, "in", array.dtype, array.shape))
        entries += [
            _entry(name, "out", dtype, shape)
            for name, (dtype, shape) in recorder.call.outputs.items()
        ]
        text = json.dumps({"IO-files": [entries]}, indent=2) + "\n"
        (staged / DESCRIPTION).write_text(text, encoding="utf-8")
        settle(staged)
        remove(bundle)
        staged.rename(bundle)
    return bundle


def _entry(
    name: str, direction: str, dtype: np.dtype[Any], shape: Sequence[int]
) -> dict[str, object]:
    return {
        "path": f"data/{name}.raw",
        "io-direction": direction,
        "elem-size": dtype.itemsize,
        "map-to": name,
        "dims": [*shape],
    }
