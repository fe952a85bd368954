# SPDX-License-Identifier: Apache-2.0
"""Rules of which package serves which request: for each option, the values that serve as a substitute.

In: an axis, the requested value, and the value of a package. Out: None for a match, otherwise the reason in words. By
the rules of `qeff_zoo.plan.request`, a package matches if it has

    exact       the same value: another value changes the results, as do cores, devices, mxfp6 and other hardware
    at least    the same value or more: equal results, and room for longer texts, padding rows or free slots; of
                several lengths the longest counts
    covering    all of the names, or none at all, which stands for any: layers that adapters may change
    any         any value: it changes the speed, not the results; the requested value is preferred

Of several packages that match, the smallest is chosen.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, get_args

from qeff_zoo.package.option import HARD, Match
from qeff_zoo.plan.request import OPTIONS


@dataclass(frozen=True)
class Rule:
    """How an axis is compared.

    Args:
        kind: One of `KINDS`.
        distance: Distance between packages that differ here, for choosing the nearest of those that do not match.
    """

    kind: Match
    distance: int


#: In the order in which axes are compared where several packages will do.
KINDS: tuple[Match, ...] = get_args(Match)
#: What is declared of every choice of a build, sizes that must be large enough before those that need not.
RULES: Mapping[str, Rule] = MappingProxyType(
    {
        option.name: Rule(option.match, option.distance)
        for option in sorted(OPTIONS.values(), key=lambda one: KINDS.index(one.match))
        if option.path
    }
)
_OTHER = Rule("exact", HARD)


def rule_of(axis: str) -> Rule:
    """Return the rule of an axis; axes without an option (hardware, …) are compared exactly."""
    return RULES.get(axis, _OTHER)


def refusal(axis: str, requested: Any, actual: Any) -> str | None:
    """Explain why a package does not match; None if it does.

    Args:
        axis: Name of the axis.
        requested: Requested value.
        actual: Value of the package; None for none.
    """
    kind = rule_of(axis).kind
    if kind == "any" or (kind == "exact" and _same(requested, actual)):
        return None
    if kind == "at least" and actual is not None and _most(actual) >= _most(requested):
        return None
    if kind == "covering" and set(requested or ()) <= set(actual or requested or ()):
        return None
    wanted = f"at least {_most(requested)}" if kind == "at least" else _text(requested)
    if actual is None:
        return f"{axis} does not apply to it, asked for {wanted}"
    has = _most(actual) if kind == "at least" else _text(actual)
    return f"{axis} is {has}, asked for {wanted}"


def excess(axis: str, requested: Any, actual: Any) -> int:
    """Return by how much a package's size exceeds the requested one; 1 for another accepted value."""
    kind = rule_of(axis).kind
    if kind == "at least" and actual is not None:
        return max(0, _most(actual) - _most(requested))
    return int(kind == "any" and not _same(requested, actual))


def lack(axis: str, requested: Any, actual: Any) -> float:
    """Return the share of a requested size that a package lacks."""
    if rule_of(axis).kind != "at least" or actual is None:
        return 0.0
    return max(0, _most(requested) - _most(actual)) / max(1, _most(requested))


def apart(preferred: Any, actual: Any) -> tuple[bool, int]:
    """Return whether a package differs from what is preferred, and for sizes by how much."""
    if _same(preferred, actual):
        return False, 0
    sizes = preferred is not None and actual is not None and not isinstance(preferred, str)
    return True, abs(_most(preferred) - _most(actual)) if sizes else 0


def _same(requested: Any, actual: Any) -> bool:
    if isinstance(requested, bool) or isinstance(actual, bool):
        return bool(requested) is bool(actual)  # what is not said is not so
    return bool(_listed(requested) == _listed(actual))


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, list | tuple) else value


def _most(value: Any) -> int:
    return int(max(value, default=0) if isinstance(value, list | tuple) else value)


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
