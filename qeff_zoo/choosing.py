# SPDX-License-Identifier: Apache-2.0
"""What was chosen for a build so far, who chose it, and all that is wrong with it."""

from typing import Any

from qeff_zoo.choices import CHOICES


class Chosen:
    """Values by the names of their choices, with who chose them, and everything that is wrong with them."""

    def __init__(self) -> None:
        self.value: dict[str, Any] = {}
        self.why: dict[str, str] = {}
        self.problems: list[str] = []

    def set(self, name: str, value: Any, by: str) -> None:
        """Choose a field's value."""
        self.value[name], self.why[name] = value, by

    def by_user(self, name: str) -> bool:
        """Tell whether a field was asked for."""
        return self.why.get(name) == "user"

    def first(self, name: str, *candidates: tuple[Any, str]) -> None:
        """Set a field to the first candidate that is not None."""
        self.set(name, *next(candidate for candidate in candidates if candidate[0] is not None))

    def check(self, name: str) -> bool:
        """Tell whether a chosen value is one of those that are allowed; note if it is not."""
        value, one = self.value[name], CHOICES[name]
        expected = ""
        if one.allowed and value not in one.allowed:
            expected = f"one of {', '.join(map(str, one.allowed))}"
        elif one.least is not None and value < one.least:
            expected = f"at least {one.least}"
        elif one.most is not None and value > one.most:
            expected = f"at most {one.most}"
        if expected:
            self.problems.append(f"{one.flag} is {value!r}, expected {expected}.")
        return not expected
