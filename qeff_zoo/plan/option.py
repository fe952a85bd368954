# SPDX-License-Identifier: Apache-2.0
"""One option of a build: a field, and all that follows from it."""

from dataclasses import dataclass, field
from typing import Any, Literal, NewType, TypeAlias

#: exact     another one answers differently, or not at all
#: at least  more of it gives the same answers
#: covering  it has all of these names, or is for any
#: any       it changes the speed, no answer; the requested one is preferred
Match: TypeAlias = Literal["exact", "covering", "at least", "any"]

#: A JSON object as text, in one form for all that are equal; the flag names the file that holds it.
JsonText = NewType("JsonText", str)

HARDEST, HARD, SOFT = 100, 10, 1


@dataclass(frozen=True, kw_only=True)
class Option:
    """One thing that can be chosen about a build.

    Args:
        name: Field of `Request`; the flag is `--` and this name, `_` written `-`.
        kind: str, int, bool, `JsonText`, or a tuple of any number of one of them: `tuple[int, ...]`.
        path: Where the spec holds it, `group.name`; None for an option that stands for others.
        help: Of the flag.
        of: Role or kind of answer of the tasks that it is for; None for every task.
        targets: That it is for; empty for every target.
        fixed: Whether it is for those targets alone whose programs have fixed sizes.
        allowed: Values that it may have; empty where other code decides.
        least: Of a number; None where other code decides.
        most: Of a number; None where other code decides.
        default: Where neither user nor checkpoint nor recipe chooses.
        sharing: Which packages will do for somebody who asks for it, see `qeff_zoo.hub.resolve.axes`.
        distance: How far apart two packages are that differ here.
        short: What a package's name says before the value; None for the whole name of the option.
        spelling: As the target's compiler calls it, where that is no other form of the name.
    """

    name: str
    kind: Any
    path: str | None
    help: str
    of: str | None = None
    targets: tuple[str, ...] = ()
    fixed: bool = False
    allowed: tuple[Any, ...] = ()
    least: int | None = None
    most: int | None = None
    default: Any = None
    match: Match = "exact"
    distance: int = HARD
    short: str | None = None
    spelling: str | None = None

    @property
    def flag(self) -> str:
        """As in `--ctx-len`."""
        return "--" + self.name.replace("_", "-")

    @property
    def group(self) -> str:
        """Part of the spec that holds it."""
        return (self.path or "").partition(".")[0]

    @property
    def key(self) -> str:
        """Its name in that part."""
        return (self.path or "").partition(".")[2]


def option(path: str | None, text: str, **facts: Any) -> Any:
    """Declare an option: the default value of a field of a dataclass, None unless requested.

    Args:
        path: Where the spec holds it.
        text: Help of its flag.
        **facts: Other fields of `Option`.
    """
    return field(default=None, metadata={"path": path, "help": text, **facts})
