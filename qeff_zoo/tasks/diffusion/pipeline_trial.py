# SPDX-License-Identifier: Apache-2.0
"""Sample prompts through a package of a pipeline: whole results, and the calls of each program on the way.

Calls are those of a real run: every prompt of the text encoders; the first, the middle and the last call of the models
that remove noise, and of the VAE. The reference gets their inputs, and the prompts and seeds of whole results.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from qeff_zoo.runtime.program import Array, Observed
from qeff_zoo.tasks.diffusion.pipeline_session import PipelineSession
from qeff_zoo.tasks.text_to_speech.points import row_of
from qeff_zoo.validation.trial.faults import Fault, FaultKind
from qeff_zoo.validation.trial.package_runner import Key, Trial, TrialContext

#: Prompts of results, and number of steps.
PROMPT, NEGATIVE = "A red cat on the house, 3 dogs & thé rain", "the dog"
STEPS = 4
_UNITS = (2, 3)  # height and width of a result, in the smallest steps
#: Session of a pipeline.
S = TypeVar("S", bound=PipelineSession[Any])


class PipelineTrial(ABC, Generic[S]):
    """Runs a package of a pipeline on sample prompts.

    Args:
        session: Session of the package.
    """

    #: Faults that whole results must show, by stage.
    faults: ClassVar[Mapping[str, Mapping[FaultKind, str]]]

    def __init__(self, session: S) -> None:
        self.session = session
        self._cases: list[dict[str, Any]] = []
        self._arrays: list[Array] = []
        self._rows: list[list[Array]] = []

    @property
    def size(self) -> dict[str, int]:
        """Height and width of a small result."""
        height, width = (count * self.session.family.unit for count in _UNITS)
        return {"height": height, "width": width}

    @abstractmethod
    def call_once(self) -> None:
        """Draw a small result in one step."""

    @abstractmethod
    def observed_results(self, names: Sequence[str], context: TrialContext) -> dict[str, list[Key]]:
        """Draw whole results whose calls are compared as well; return the keys of each by stage.

        Args:
            names: Names of the stages.
            context: Context of the trial.
        """

    @abstractmethod
    def further_results(self, names: Sequence[str], context: TrialContext) -> dict[str, list[Key]]:
        """Draw all other whole results; see `observed_results`."""

    def stages(self, context: TrialContext) -> list[str]:
        """Return the names of the stages."""
        return list(context.task.stages()(sorted(self.session.programs)))

    def run(self, context: TrialContext) -> Trial:
        """Run every stage."""
        names = self.stages(context)
        noted: dict[str, list[tuple[Mapping[str, Array], Mapping[str, Array]]]] = {}
        programs = self.session.programs
        self.session.programs = {
            role: Observed(program, partial(_note, noted.setdefault(role, [])))
            for role, program in programs.items()
        }
        keys = self.observed_results(names, context)
        self.session.programs = programs
        keys |= self.further_results(names, context)
        for role in sorted(programs):
            keys[role] = [key for call in _some(noted[role]) for key in self._call(role, *call)]
        return Trial(
            sequences=[[*map(ord, json.dumps(case))] for case in self._cases],
            positions=[[*range(len(rows))] for rows in self._rows],
            keys={name: keys[name] for name in names},
            answers={
                name: np.stack([self._rows[number][index] for number, index, _ in keys[name]])
                for name in names
            },
            runs=[],
            recordings=self._arrays,
            faults=[
                Fault(stage=stage, kind=kind, words=words)
                for stage, faults in self.faults.items()
                if stage in names
                for kind, words in faults.items()
            ],
        )

    def array(self, values: Array) -> int:
        """Add an array for the reference; return its number."""
        self._arrays.append(values)
        return len(self._arrays) - 1

    def add(self, case: dict[str, Any], found: Sequence[Array]) -> list[Key]:
        """Add a case with its outputs; return their keys."""
        number = len(self._cases)
        self._cases.append(case)
        self._rows.append([row_of(one) for one in found])
        return [(number, index, 0) for index in range(len(found))]

    def _call(
        self, role: str, inputs: Mapping[str, Array], outputs: Mapping[str, Array]
    ) -> list[Key]:
        """Add a call of a program; return the keys of its outputs."""
        numbers = {name: self.array(values) for name, values in inputs.items()}
        frames = {
            name: values.shape[2] if values.ndim > 2 else 1 for name, values in outputs.items()
        }
        case = {"role": role, "inputs": numbers, "outputs": frames}
        return self.add(case, [*outputs.values()])


def _note(
    noted: list[tuple[Mapping[str, Array], Mapping[str, Array]]],
    inputs: Mapping[str, Array],
    _: Sequence[int],
    outputs: Mapping[str, Array],
) -> None:
    noted.append((dict(inputs), dict(outputs)))


def _some(calls: Sequence[Any]) -> list[Any]:
    """Return the first, the middle and the last call."""
    numbers = sorted({0, len(calls) // 2, len(calls) - 1})
    return [calls[number] for number in numbers]
