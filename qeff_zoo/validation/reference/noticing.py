# SPDX-License-Identifier: Apache-2.0
"""What each stage of a comparison notices: damage from the slightest on, and the faults that the stage is there for.

Only the reference process imports this.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from qeff_zoo.contract.comparison import Comparison
from qeff_zoo.graph.numerics import Numerics
from qeff_zoo.validation.judgement.parity import (
    Tolerance,
    allowed,
    in_common,
    measure_floor,
    relative_errors,
)
from qeff_zoo.validation.reference.damage import HEADS
from qeff_zoo.validation.reference.runs import Answers
from qeff_zoo.validation.trial.cases import short_stages
from qeff_zoo.validation.trial.faults import Fault

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

#: Damage counts as noticed from so many times the allowed error on.
_PLAINLY = 3


class Early:
    """Lengths of beginnings that suffice for variants that are wrong, or rounded, on purpose.

    Args:
        request: With `stages`, `positions`, `numerics` and `runs`.
    """

    def __init__(self, request: Mapping[str, Any]) -> None:
        stages, positions = request["stages"], request["positions"]
        first = [
            min(positions[at][index] for at, index in keys) for keys in stages.values() if keys
        ]
        #: One answer of each stage.
        self.each_stage = 1 + max(first, default=0)
        #: The stages that rounding is measured in.
        self.short = max(short_stages(stages, positions).values(), default=0)
        self._rounds = Numerics.from_dict(request["numerics"]).int8_activations
        self._chooses = bool(request["runs"])

    def suffices_for_noise(self, answers: Answers) -> bool:
        """Whether beginnings have noise enough: of a decoder that rounds activations, and makes no choices.

        Such a package is compared in float32, and its answers lie far within the tolerance of that noise.
        """
        return self._rounds and answers.plain and not self._chooses


class Noticing:
    """Judgement of damaged variants of a model, by the stages that must notice them.

    Args:
        request: With `stages` (number and index of each answer), `faults` and `tolerance`.
        comparison: Comparison of the task's answers.
        expected: The right answers.
        others: Answers that are as right.
    """

    def __init__(
        self,
        request: Mapping[str, Any],
        comparison: Comparison,
        expected: Sequence[Array],
        others: Sequence[Sequence[Array]],
    ) -> None:
        self._expected = expected
        self._stages: Mapping[str, list[tuple[int, int]]] = request["stages"]
        self._faults = [Fault.from_dict(entry) for entry in request["faults"]]
        floor = measure_floor([in_common(expected, other) for other in others], comparison)
        self._spread, self._noise = floor.spread, 2 * floor.error
        self._plain = _PLAINLY * allowed(Tolerance(**request["tolerance"]), floor.error).value

    def run(
        self,
        damage: Callable[[int, list[int]], tuple[str, Mapping[int, Array]]],
        faulty: Callable[[int], Mapping[int, Array]],
        tried: Sequence[int] = range(len(HEADS)),
    ) -> tuple[dict[str, Mapping[int, Array]], dict[str, Any]]:
        """Return the answers of each damaged variant by sequence, and by stage which one it notices.

        Args:
            damage: Number in `HEADS` and sequences -> the change in words, and the answers.
            faulty: Number of a fault -> the answers with it.
            tried: Numbers in `HEADS`, the slightest first.
        """
        runs: dict[str, Mapping[int, Array]] = {}
        noticed: dict[str, dict[str, str]] = {}
        left = set(self._stages)
        for number in tried:
            if not left:
                break
            variant = f"canary.{number}"
            sequences = sorted({one for stage in left for one, _ in self._stages[stage]})
            words, runs[variant] = damage(number, sequences)
            noticed |= {stage: {"variant": variant, "words": words} for stage in left}
            left = {one for one in left if not self._error(one, runs[variant]) >= self._plain}
        faults = []
        for number, fault in enumerate(self._faults):
            answers = faulty(number)
            if answers and self._error(fault.stage, answers) > self._noise:
                runs[f"fault.{number}"] = answers
                faults.append(
                    {"stage": fault.stage, "words": fault.words, "variant": f"fault.{number}"}
                )
        return runs, {"stages": noticed, "faults": faults}

    def _error(self, stage: str, answers: Mapping[int, Array]) -> float:
        """Return the largest error of damaged answers to the questions of a stage."""
        errors = [
            relative_errors(self._expected[number][[index]], answers[number][[index]], self._spread)
            for number, index in self._stages[stage]
            if index < len(answers[number])
        ]
        return float(np.nan_to_num(np.max(errors), nan=np.inf))
