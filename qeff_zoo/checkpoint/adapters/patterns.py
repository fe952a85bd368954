# SPDX-License-Identifier: Apache-2.0
"""Regular expressions of untrusted files, matched against names of modules without backtracking.

`re` may take a time that doubles with each character of a name, and holds the GIL meanwhile. Here a pattern moves a set
of positions through a name, one bit each, so that no position is visited twice, and the work of all lookups is limited.
"""

import importlib
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

#: Python's own parser of regular expressions, so that patterns have the same meaning as in peft.
_parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
_LONGEST = 4096  # characters of a pattern
_MOST_WORK = 2_000_000  # steps of all lookups in a table
_CATEGORIES: dict[str, Callable[[str], bool]] = {
    "DIGIT": str.isdecimal,
    "SPACE": str.isspace,
    "WORD": lambda char: char.isalnum() or char == "_",
}
_BEGINNINGS, _ENDS = ("AT_BEGINNING", "AT_BEGINNING_STRING"), ("AT_END", "AT_END_STRING")
_CHARACTERS = ("LITERAL", "NOT_LITERAL", "ANY", "IN")
_REPEATS = ("MAX_REPEAT", "MIN_REPEAT")


class PatternError(ValueError):
    """A pattern that is not supported: it is no regular expression, needs backtracking, or takes too much work.

    Args:
        pattern: The pattern.
        reason: The fault, as a clause.
    """

    def __init__(self, pattern: str, reason: str) -> None:
        super().__init__(reason)
        self.pattern, self.reason = pattern, reason


class Patterns:
    """Table of regular expressions, of which the first that matches the end of a name counts.

    The match starts after a dot or at the beginning of the name, as in peft for `rank_pattern` and `alpha_pattern`.

    Args:
        patterns: The expressions, in order.

    Raises:
        PatternError: A pattern is no regular expression, or requires backtracking.

    Example:
        >>> Patterns(["q_proj", "layers.1.(k|v)_proj"]).first("model.layers.1.v_proj")
        'layers.1.(k|v)_proj'
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = [_Pattern.parse(pattern) for pattern in patterns]
        self._work = 0

    def first(self, name: str) -> str | None:
        """Return the first pattern that matches a name; None if none matches.

        Raises:
            PatternError: All lookups together take too much work.
        """
        match = _Match(name, self._work)
        for pattern in self._patterns:
            try:
                fits = pattern.fits(match)
            except _TooMuchWorkError as error:
                raise PatternError(pattern.text, "it takes too long to match") from error
            self._work = match.work
            if fits:
                return pattern.text
        return None


class _TooMuchWorkError(Exception):
    """Error of lookups whose work exceeds the limit."""


class _Match:
    """Match of one name with expressions.

    Positions are bits of a number: bit 0 is before the first character.

    Args:
        name: The name.
        work: Number of steps taken before.
    """

    def __init__(self, name: str, work: int) -> None:
        self.name, self.work = name, work
        self.starts = 1 | sum(2 << place for place, char in enumerate(name) if char == ".")
        self._end = 1 << len(name)
        self._masks: dict[int, int] = {}

    def fits(self, tree: Any) -> bool:
        """Return whether an expression reaches the end of the name."""
        return bool(self._after(tree, self.starts) & self._end)

    def _after(self, tree: Any, positions: int) -> int:
        """Return the positions after an expression, from any of some positions."""
        for item in tree:
            if not positions:
                break
            self.work += 1
            if self.work > _MOST_WORK:
                raise _TooMuchWorkError
            positions = self._after_one(item, positions)
        return positions

    def _after_one(self, item: tuple[Any, Any], positions: int) -> int:
        value, name = item[1], item[0].name
        if name in _CHARACTERS:
            return (positions & self._mask(item)) << 1
        if name in _REPEATS:
            return self._after_repeat(value, positions)
        if name == "SUBPATTERN":
            return self._after(value[3], positions)
        if name == "BRANCH":
            ends = 0
            for branch in value[1]:
                ends |= self._after(branch, positions)
            return ends
        return positions & (1 if value.name in _BEGINNINGS else self._end)

    def _after_repeat(self, repeat: tuple[int, int, Any], positions: int) -> int:
        least, most, body = repeat
        for _ in range(least):
            after = self._after(body, positions)
            if after == positions:  # so it is after any further round
                break
            positions = after
        ends = fresh = positions
        for _ in range(most - least):
            fresh = self._after(body, fresh) & ~ends
            if not fresh:
                break
            ends |= fresh
        return ends

    def _mask(self, item: tuple[Any, Any]) -> int:
        """Return the positions whose next character an item matches."""
        if id(item) not in self._masks:
            self.work += len(self.name)
            bits = (_takes(item, char) << place for place, char in enumerate(self.name))
            self._masks[id(item)] = sum(bits)
        return self._masks[id(item)]


@dataclass(frozen=True, kw_only=True)
class _Pattern:
    """One expression, parsed.

    Args:
        text: The expression.
        tree: The parser's output.
        plain: Characters of the expression, None for any; None for an expression that is more than characters.
        tail: Known characters at its end.
    """

    text: str
    tree: Any
    plain: tuple[str | None, ...] | None
    tail: str

    @classmethod
    def parse(cls, text: str) -> "_Pattern":
        """Parse an expression.

        Raises:
            PatternError: The text is not a pattern, or is more than a regular expression.
        """
        if len(text) > _LONGEST:
            raise PatternError(text, f"it has {len(text):,} characters, more than {_LONGEST:,}")
        try:
            tree = _parser.parse(text)
            beyond = "FLAGS" if tree.state.flags & ~re.UNICODE else _beyond(tree)
        except (re.error, OverflowError, RecursionError) as error:
            raise PatternError(text, f"it is no regular expression: {error}") from error
        if beyond:
            raise PatternError(text, f"{beyond} cannot be matched without backtracking")
        plain = None
        if all(op.name in ("LITERAL", "ANY") for op, _ in tree):
            plain = tuple(chr(value) if op.name == "LITERAL" else None for op, value in tree)
        tail = "".join("\n" if char is None else char for char in plain or ()).rpartition("\n")[2]
        return cls(text=text, tree=tree, plain=plain, tail=tail)

    def fits(self, match: _Match) -> bool:
        """Return whether the expression matches the end of a name."""
        if self.plain is None:
            return match.fits(self.tree)
        begin = len(match.name) - len(self.plain)
        if begin < 0 or not match.name.endswith(self.tail) or not match.starts >> begin & 1:
            return False
        pairs = zip(self.plain, match.name[begin:], strict=True)
        return all(one in (None, char) for one, char in pairs)


def _beyond(tree: Any) -> str:
    """Return the name of the element that makes an expression more than a regular one; "" if there is none."""
    for op, value in tree:
        inner: Iterable[Any] = ()
        if op.name in _REPEATS:
            inner = (value[2],)
        elif op.name == "BRANCH":
            inner = value[1]
        elif op.name == "SUBPATTERN" and not (value[1] or value[2]):
            inner = (value[3],)
        elif op.name == "AT" and value.name not in (*_BEGINNINGS, *_ENDS):
            return str(value.name)
        elif op.name not in (*_CHARACTERS, "AT"):
            return "FLAGS" if op.name == "SUBPATTERN" else str(op.name)
        if element := next(filter(None, map(_beyond, inner)), ""):
            return element
    return ""


def _takes(item: tuple[Any, Any], char: str) -> bool:
    """Return whether an item of an expression matches a character."""
    op, value = item
    if op.name == "IN":
        negated = value[0][0].name == "NEGATE"
        return bool(any(_takes(one, char) for one in value[negated:]) != negated)
    if op.name == "RANGE":
        return bool(value[0] <= ord(char) <= value[1])
    if op.name == "CATEGORY":
        kind = value.name.removeprefix("CATEGORY_")
        return bool(_CATEGORIES[kind.removeprefix("NOT_")](char) != kind.startswith("NOT_"))
    if op.name == "ANY":
        return char != "\n"
    return bool((ord(char) == value) != (op.name == "NOT_LITERAL"))
