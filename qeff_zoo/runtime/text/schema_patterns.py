# SPDX-License-Identifier: Apache-2.0
"""Regular expressions of JSON Schemas (`pattern`) for llguidance, which has those of Rust."""

from collections.abc import Iterator, Mapping

from qeff_zoo.runtime.text.pattern_negation import without_beginning
from qeff_zoo.runtime.text.schema_alternatives import also
from qeff_zoo.runtime.text.schema_negation import Schema


def with_look_ahead(schema: Schema) -> None:
    """Replace look-ahead at the beginning of a pattern: patterns that hold together."""
    pattern = schema.get("pattern")
    if not isinstance(pattern, str):
        return
    start, looked_ahead = 1, list[Schema]()
    while pattern.startswith("^") and pattern.startswith(("(?=", "(?!"), start):
        end = _group_end(pattern, start)
        if end is None:
            return
        ahead = pattern[start + 3 : end]
        wanted = f"^(?:{ahead})" if pattern[start + 2] == "=" else without_beginning(ahead)
        if wanted is None:
            return
        looked_ahead.append({"pattern": wanted})
        start = end + 1
    if looked_ahead:
        schema["pattern"] = f"^(?:{pattern[start:]})"
        also(schema, looked_ahead)


def _group_end(pattern: str, start: int) -> int | None:
    """Return the position of the bracket that closes the one at `start`."""
    depth = 0
    for at, mark in _marks(pattern, start):
        depth += (mark == "(") - (mark == ")")
        if not depth:
            return at
    return None


def _marks(pattern: str, start: int = 0) -> Iterator[tuple[int, str]]:
    """Yield the characters of a pattern with their positions, without escapes and what is in a class."""
    in_class, at = False, start
    while at < len(pattern):
        mark = pattern[at]
        if not in_class and mark != "\\":
            yield at, mark
        at += 2 if mark == "\\" else 1
        in_class = mark != "]" if in_class else mark == "["


def with_classes(schema: Schema) -> None:
    """Exclude NUL by negated classes: of one with all control characters, llguidance 1.9 accepts quotes too.

    Keys of an object that has a schema for all others get one for NUL. An object that takes any other key stays: there
    a key with quotes only has to match too much.
    """
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        schema["pattern"] = _without_nul(pattern)
    by_pattern, rest = schema.get("patternProperties"), schema.get("additionalProperties", True)
    if not isinstance(by_pattern, Mapping) or rest is True or rest == {}:
        return
    changed = {key: value for key, value in by_pattern.items() if _without_nul(key) != key}
    if not changed:
        return
    patterns = {_without_nul(key): value for key, value in by_pattern.items()}
    if rest is not False:
        patterns[r"\x00"] = {"allOf": [*changed.values(), rest]}
    schema["patternProperties"] = patterns


def _without_nul(pattern: str) -> str:
    if "[^" not in pattern:
        return pattern
    begins = [at for at, mark in _marks(pattern) if mark == "[" and pattern[at + 1 : at + 2] == "^"]
    for at in reversed(begins):
        pattern = f"{pattern[: at + 2]}\\x00{pattern[at + 2 :]}"
    return pattern
