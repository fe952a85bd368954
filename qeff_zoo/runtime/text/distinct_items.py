# SPDX-License-Identifier: Apache-2.0
"""Reading of JSON with arrays of different items (`uniqueItems`), which a context-free grammar cannot express."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from qeff_zoo.runtime.text.schema_references import resolved

Nodes: TypeAlias = tuple[Mapping[str, Any], ...]

_ALTERNATIVES = ("anyOf", "oneOf", "allOf")
_BLANKS = b" \t\r\n"
_COMPLETE = -2


@dataclass(frozen=True)
class Container:
    """Open array or object.

    Args:
        nodes: Schemas of the container.
        is_array: Whether it is an array.
        differs: Whether its items differ.
        start: Position of the current item in the text; -1 before it, and `_COMPLETE` after it.
        least: Minimum number of items.
        count: Number of complete items.
        key: Current key of an object; None before it.
        known: Complete items of an array whose items differ: their texts, by value.
    """

    nodes: Nodes
    is_array: bool
    differs: bool
    start: int = -1
    least: int = 0
    count: int = 0
    key: str | None = None
    known: Mapping[str, bytes] | None = None


@dataclass(frozen=True)
class Reading:
    """JSON that has been read so far.

    Args:
        nodes: Schemas of the whole value.
        text: The text, without blanks outside of strings.
        opened: Open containers, outermost first.
        token: Position of the current string, number or word; -1 outside.
        escaped: Whether the next character of a string is escaped.
    """

    nodes: Nodes
    text: bytes = b""
    opened: tuple[Container, ...] = ()
    token: int = -1
    escaped: bool = False

    @property
    def in_text(self) -> bool:
        """Whether the text ends within a string."""
        return self.token >= 0 and self.text[self.token] == ord('"')

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield each complete item of the open arrays whose items differ, and the text of the incomplete one."""
        for one in self.opened:
            if one.start == _COMPLETE and one.count >= one.least:
                continue  # the array may end here
            begun = self.text[one.start :] if one.start >= 0 else b""
            for text in (one.known or {}).values():
                yield text, begun

    def is_known(self) -> bool:
        """Whether an incomplete item is the beginning of a complete one."""
        return any(text.startswith(begun) for text, begun in self.items())


class Schemas:
    """Schemas of the parts of a JSON value.

    Args:
        root: JSON Schema of the value.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self.whole = self._flat([root])

    def _flat(self, schemas: Iterable[Any]) -> Nodes:
        """Return schemas with their references and alternatives."""
        nodes: list[Mapping[str, Any]] = []
        rest, visited = [*schemas], set[int]()
        while rest:
            one = rest.pop()
            if not isinstance(one, Mapping) or id(one) in visited:
                continue
            visited.add(id(one))
            nodes.append(one)
            for name in _ALTERNATIVES:
                rest += one.get(name) or ()
            rest.append(resolved(one.get("$ref"), self._root))
        return tuple(nodes)

    def inner(self, outer: Container) -> Nodes:
        """Return the schemas of the current item or value of a container."""
        nodes: list[Any] = []
        for node in outer.nodes:
            if not outer.is_array:
                named = node.get("properties", {})
                nodes.append(named.get(outer.key, node.get("additionalProperties")))
                nodes += node.get("patternProperties", {}).values()
                continue
            items = node.get("items")
            first = items if isinstance(items, list) else node.get("prefixItems", [])
            rest = node.get("additionalItems") if isinstance(items, list) else items
            nodes.append(first[outer.count] if outer.count < len(first) else rest)
        return self._flat(nodes)

    def read(self, reading: Reading, data: bytes) -> Reading | None:
        """Return what has been read after more text; None if an item occurs twice.

        Raises:
            ValueError: The text is no JSON.
        """
        after: Reading | None = reading
        for byte in data:
            after = after and self._after(after, byte)
        return after

    def _after(self, reading: Reading, byte: int) -> Reading | None:
        at, text = len(reading.text), reading.text + bytes((byte,))
        if reading.in_text:
            if reading.escaped or byte == ord("\\"):
                return replace(reading, text=text, escaped=not reading.escaped)
            if byte != ord('"'):
                return replace(reading, text=text)
            return _complete(replace(reading, text=text, token=-1))
        if reading.token >= 0:
            if byte not in b",]}" + _BLANKS:
                return replace(reading, text=text)
            ended = _complete(replace(reading, token=-1))
            return ended and self._after(ended, byte)
        if byte in _BLANKS:
            return reading
        reading = replace(reading, text=text)
        if byte == ord(":"):
            return reading
        *outer, last = reading.opened or (None,)
        if byte == ord(","):
            if last is None:
                raise ValueError("A comma is outside of an array or object.")
            return _with(reading, replace(last, start=-1, key=None))
        if byte in b"]}":
            return _complete(replace(reading, opened=tuple(outer)))
        if last and last.start < 0:
            reading = _with(reading, last := replace(last, start=at))
        if byte not in b"[{":
            return replace(reading, token=at)
        nodes = self.inner(last) if last else self.whole
        differs = byte == ord("[") and any(node.get("uniqueItems") is True for node in nodes)
        sizes = [size for node in nodes if isinstance(size := node.get("minItems"), int)]
        opened = Container(nodes, byte == ord("["), differs, least=max(sizes, default=0))
        return replace(reading, opened=(*reading.opened, opened))


def _with(reading: Reading, last: Container) -> Reading:
    return replace(reading, opened=(*reading.opened[:-1], last))


def _complete(reading: Reading) -> Reading | None:
    """Return what has been read after the end of a value; None if it is an item that occurs twice."""
    if not reading.opened:
        return reading
    last = reading.opened[-1]
    if not last.is_array:
        if last.key is not None:
            return reading
        return _with(reading, replace(last, key=json.loads(reading.text[last.start :])))
    last = replace(last, count=last.count + 1)
    if last.differs:
        text, known = reading.text[last.start :], last.known or {}
        value = identity(text)
        if value in known:
            return None
        last = replace(last, known={**known, value: text}, start=_COMPLETE)
    return _with(reading, last)


def identity(text: bytes) -> str:
    """Return a text that is the same for equal values, as JSON Schema compares them: 1 equals 1.0, and not true."""
    try:
        return json.dumps(_plain(json.loads(text)), sort_keys=True)
    except (ValueError, RecursionError):  # thousands of digits or brackets
        return text.decode(errors="replace")


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [*map(_plain, value)]
    return (
        {key: _plain(entry) for key, entry in value.items()} if isinstance(value, dict) else value
    )
