# SPDX-License-Identifier: Apache-2.0
"""Decisions of a plan: what each requires and provides, and the record of values, reasons and problems."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from qeff_zoo.errors import did_you_mean
from qeff_zoo.plan.request import OPTIONS


class Decisions:
    """Record of decisions: values of options, who chose each value, problems, and facts for later decisions."""

    def __init__(self, **facts: Any) -> None:
        self.value: dict[str, Any] = {}
        self.why: dict[str, str] = {}
        self.problems: list[str] = []
        self.facts = facts

    def set(self, name: str, value: Any, by: str) -> None:
        """Set the value of an option."""
        self.value[name], self.why[name] = value, by

    def first(self, name: str, *candidates: tuple[Any, str]) -> None:
        """Set an option to the first candidate that is not None."""
        self.set(name, *next(candidate for candidate in candidates if candidate[0] is not None))

    def by_user(self, name: str) -> bool:
        """Return whether the user requested the value of an option."""
        return self.why.get(name) == "user"

    def refuse(self, problem: str) -> None:
        """Add a problem; all problems are reported together."""
        self.problems.append(problem)

    def check(self, name: str) -> bool:
        """Return whether the value of an option is among the allowed values; refuse it if not."""
        value, option = self.value[name], OPTIONS[name]
        expected = near = ""
        values = str(value).split(option.joint) if option.joint else (value,)
        if option.allowed and not {*values} <= {*option.allowed}:
            expected = f"one of {', '.join(map(str, option.allowed))}"
            near = did_you_mean(str(value), map(str, option.allowed))
        elif option.least is not None and not value >= option.least:
            expected = f"at least {option.least}"
        elif option.most is not None and value > option.most:
            expected = f"at most {option.most}"
        if expected:
            self.refuse(
                f"{option.flag} is {value!r}, expected {expected}.{near and near + ' Correct it.'}"
            )
        return not expected

    def provide(self, **facts: Any) -> "Decisions":
        """Add facts that later decisions require."""
        self.facts |= facts
        return self

    def add(self, other: "Decisions") -> None:
        """Add the record of a later decision."""
        self.value |= other.value
        self.why |= other.why
        self.problems += other.problems
        self.facts |= other.facts


@dataclass(frozen=True)
class Decision:
    """One decision of a plan: a function whose parameter names are the facts that it requires.

    Args:
        decide: Function that returns the record of this decision alone, without side effects.
        provides: Names of the facts in that record.
    """

    decide: Callable[..., Decisions]
    provides: tuple[str, ...] = ()

    @property
    def requires(self) -> tuple[str, ...]:
        """Names of the required facts."""
        return tuple(inspect.signature(self.decide).parameters)


def make(decisions: Sequence[Decision], **given: Any) -> Decisions:
    """Make decisions in the order of their dependencies.

    Args:
        decisions: Every decision of a plan.
        **given: Facts that no decision provides.
    """
    made = Decisions(**given)
    for decision in decisions:
        made.add(decision.decide(**{name: made.facts[name] for name in decision.requires}))
    return made
