# SPDX-License-Identifier: Apache-2.0
"""Declaration of an option of a package: its flag, its place in the spec, and how packages that differ in it rank."""

from dataclasses import dataclass, field
from typing import Any, Literal, NewType, TypeAlias

#: exact     another value changes the results, or fails
#: at least  a larger value gives the same results
#: covering  the package has all of these names, or is for any
#: any       the value changes the speed, not the results; the requested one is preferred
Match: TypeAlias = Literal["exact", "covering", "at least", "any"]

#: JSON object as canonical text; the flag takes the path of the file.
JsonText = NewType("JsonText", str)

HARDEST, HARD, SOFT = 100, 10, 1


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option of a build.

    Args:
        name: Field of `Request`; the flag is `--` and this name, with `-` for `_`.
        kind: Type of the value: str, int, float, bool, `JsonText`, or a tuple of these: `tuple[int, ...]`.
        path: Path in the spec, `group.name`; None for an option that stands for others.
        help: Help text of the flag.
        of: Role or result kind of the tasks that use the option; None for every task.
        targets: Targets that use the option; empty for every target.
        fixed: Whether the option applies only to targets with fixed shapes.
        allowed: Allowed values; empty if other code checks them.
        joint: Separator of several allowed values in one; None for one value alone.
        least: Minimum of a number; None if other code checks it.
        most: Maximum of a number; None if other code checks it.
        default: Value if neither user, checkpoint nor recipe sets one.
        sharing: Rule by which shared packages match a requested value, see `qeff_zoo.hub.resolve.axes`.
        distance: Distance between two packages that differ in this option.
        short: Prefix of the value in a package's name; None for the whole name of the option.
        spelling: Name of the option for the target's compiler, if it is not derived from `name`.
    """

    name: str
    kind: Any
    path: str | None
    help: str
    of: str | None = None
    targets: tuple[str, ...] = ()
    fixed: bool = False
    allowed: tuple[Any, ...] = ()
    joint: str | None = None
    least: float | None = None
    most: float | None = None
    default: Any = None
    match: Match = "exact"
    distance: int = HARD
    short: str | None = None
    spelling: str | None = None

    @property
    def flag(self) -> str:
        """Flag of the command line, such as `--ctx-len`."""
        return flag_of(self.name)

    @property
    def group(self) -> str:
        """Part of the spec that has the option."""
        return (self.path or "").partition(".")[0]

    @property
    def key(self) -> str:
        """Name of the option in that part."""
        return (self.path or "").partition(".")[2]


def flag_of(name: str) -> str:
    """Return the flag of an option."""
    return "--" + name.replace("_", "-")


def option(path: str | None, text: str, **facts: Any) -> Any:
    """Declare an option as the default value of a dataclass field; None unless requested.

    Args:
        path: Path in the spec.
        text: Help of its flag.
        **facts: Other fields of `Option`.
    """
    return field(default=None, metadata={"path": path, "help": text, **facts})
