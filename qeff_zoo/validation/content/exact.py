# SPDX-License-Identifier: Apache-2.0
"""What a package must do, or have, exactly as transformers does: questions, the answers to both, and a check."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qeff_zoo.validation.judgement.parity import Check

_QUOTED = 160  # characters of what disagrees, around the first difference


@dataclass(frozen=True, kw_only=True)
class ExactComparison:
    """One thing that a package does, or has, on a corpus.

    Args:
        metric: Compared quantity.
        questions: The corpus.
        expected: transformers' answers.
        act: The package's answer to one question.
        damages: Deliberate damages to a question, by name.
    """

    metric: str
    questions: Sequence[Any]
    expected: Sequence[Any]
    act: Callable[[Any], Any]
    damages: Mapping[str, Callable[[Any], Any]]

    def agreement(self, damage: Callable[[Any], Any] | None = None) -> float:
        """Return the share of answers that are the same."""
        pairs = zip(self.questions, self.expected, strict=True)
        same = [bool(self.act(damage(one) if damage else one) == answer) for one, answer in pairs]
        return sum(same) / len(same)

    def first(self) -> tuple[Any, Any, Any] | None:
        """Return the first question whose answers differ, with the package's and transformers' answer."""
        for question, expected in zip(self.questions, self.expected, strict=True):
            if (got := self.act(question)) != expected:
                return question, got, expected
        return None

    def check(self, stage: str, level: str, against: Mapping[str, Any]) -> Check:
        """Return the check of a stage.

        Args:
            stage: Name of the stage.
            level: Level of the validation.
            against: The reference of the comparison.
        """
        value = self.agreement()
        check: Check = {
            "level": level,
            "stage": stage,
            "metric": self.metric,
            "value": round(value, 6),
            "op": ">=",
            "threshold": 1.0,
            "threshold_from": "exact",
            "positions": len(self.questions),
            "passed": value == 1.0,
            "against": dict(against),
        }
        for mutation, damage in self.damages.items():
            caught = self.agreement(damage)
            if caught < 1.0:
                canary = {"mutation": mutation, "value": round(caught, 6), "failed": True}
                check["canary"] = canary
                break
        if different := self.first():
            check["note"] = _difference(*different, against["reference"])
        return check


def _difference(question: Any, got: Any, expected: Any, name: str) -> str:
    """Describe the first different answer, with both texts where they part."""
    ours, reference = (json.dumps(one, ensure_ascii=False) for one in (got, expected))
    pairs = enumerate(zip(ours, reference, strict=False))
    parted = next((place for place, (one, other) in pairs if one != other), 0)
    start = max(0, parted - _QUOTED // 4)
    here, there = (one[start : start + _QUOTED] for one in (ours, reference))
    quoted = json.dumps(question, ensure_ascii=False)
    quoted = quoted if len(quoted) <= _QUOTED else f"{quoted[:_QUOTED]}…"
    return f"of {quoted} the package makes …{here}, {name} makes …{there}"
