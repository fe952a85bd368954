# SPDX-License-Identifier: Apache-2.0
"""Places of JSON values with arrays of different items in an output: arguments of calls, and an answer after reasoning.

Input: expressions of the texts before such values, and the output token by token. Output: what has been read of the
current value, for the guide of `distinct_items`.
"""

import json
import re
from dataclasses import dataclass, field, replace
from functools import cached_property

from qeff_zoo.runtime.text.distinct_items import Reading, Schemas

#: Bytes of the end of an output in which the text before a value is searched.
_TAIL = 1024
_MARK = b"\0"  # around the id of a token that is a mark


@dataclass(frozen=True, kw_only=True)
class Places:
    """Texts before JSON values; tokens that are marks are written by `mark`.

    Args:
        openings: Texts that begin calls; empty for calls that begin an output.
        calls: Expressions of the text before the arguments of a call, with the group `name`.
        argument: Expression of the text before the value of one argument, with the group `key`; empty if the arguments
            are one object.
        end: Text after such a value; empty if each value is JSON.
        texts: Functions and arguments whose values are texts up to `end`.
        schemas: Functions, their arguments ("" for the whole object), and JSON Schemas as JSON.
        answer: Expression of the text before an answer; empty if it follows reasoning, or begins the output.
        form: JSON Schema of the answer, as JSON; empty without one.
        thoughts: Texts that begin and end reasoning; None without it.
        thinks: Whether the output begins with reasoning, without the text that begins it.
        begun: Beginning of a call with which the prompt ends.
    """

    openings: tuple[bytes, ...] = ()
    calls: tuple[bytes, ...] = ()
    argument: bytes = b""
    end: bytes = b""
    texts: frozenset[tuple[str, str]] = frozenset()
    schemas: tuple[tuple[str, str, str], ...] = ()
    answer: bytes = b""
    form: str = ""
    thoughts: tuple[bytes, bytes] | None = None
    thinks: bool = False
    begun: bytes = b""


def mark(token: int) -> bytes:
    """Return the text of a token that is a mark, which no other text has."""
    return _MARK + str(token).encode() + _MARK


@dataclass(frozen=True)
class Outside:
    """Output outside of JSON values.

    Args:
        text: End of the text since the last value or mark.
        phase: Part of the output: "possible" reasoning, "thoughts", "free" text, or "calls".
        name: Function of the current call.
        in_text: Whether an argument that is a text has begun.
    """

    text: bytes = b""
    phase: str = "free"
    name: str = ""
    in_text: bool = False


@dataclass(frozen=True)
class Inside:
    """Output within a JSON value.

    Args:
        reading: The value so far.
        schemas: Schemas of the value.
        before: Output before the value.
    """

    reading: Reading
    schemas: Schemas = field(compare=False)
    before: Outside


class PlaceReader:
    """Reader of the JSON values of an output.

    Args:
        places: Texts before the values.
    """

    def __init__(self, places: Places) -> None:
        self._places = places
        self._calls = [re.compile(call + rb"\s*\Z") for call in places.calls]
        self._argument = re.compile(places.argument + rb"\s*\Z")
        self._answer = re.compile(places.answer + rb"\s*\Z")
        # First bytes of values that may have arrays, and of texts in which a mark may occur.
        of_argument = b"[{" if places.end else b'[{"'
        self._begins = of_argument if places.argument else b"{"

    @cached_property
    def _schemas(self) -> dict[tuple[str, str], Schemas]:
        return {(name, key): Schemas(json.loads(one)) for name, key, one in self._places.schemas}

    @cached_property
    def _form(self) -> Schemas:
        return Schemas(json.loads(self._places.form))

    @cached_property
    def _anything(self) -> Schemas:
        return Schemas({})

    @property
    def first(self) -> Outside:
        """Output before its first token."""
        places = self._places
        if places.begun:
            return Outside(places.begun, "calls")
        if places.thinks:
            return Outside(phase="thoughts")
        return Outside(phase="possible" if places.thoughts else self._after_thoughts)

    @property
    def _after_thoughts(self) -> str:
        return "free" if self._places.openings else "calls"

    def may_begin(self, state: Outside) -> bool:
        """Return whether a value may begin without further marks."""
        return state.phase == "calls" or bool(self._places.form)

    def after(self, state: Outside | Inside, data: bytes) -> "Outside | Inside | None":
        """Return what has been read after more text; None if an item occurs twice."""
        for number, byte in enumerate(data):
            if isinstance(state, Outside):
                state = self._outside(state, byte)
                continue
            try:
                reading = state.schemas.read(state.reading, data[number : number + 1])
            except ValueError:  # text that looks like the beginning of a value
                state = state.before
                continue
            if reading is None:
                return None
            ended = not reading.opened and reading.token < 0
            state = state.before if ended else replace(state, reading=reading)
        return state

    def _outside(self, state: Outside, byte: int) -> Outside | Inside:
        schemas = self._schemas_at(state, byte) if byte in b'[{"' else None
        if schemas is not None:
            first = schemas.read(Reading(schemas.whole), bytes((byte,)))
            assert first is not None
            return Inside(first, schemas, replace(state, text=b""))
        state = replace(state, text=(state.text + bytes((byte,)))[-_TAIL:])
        return (
            self._thinking(state) if state.phase in ("possible", "thoughts") else self._free(state)
        )

    def _thinking(self, state: Outside) -> Outside:
        """Return what has been read after another byte of possible reasoning."""
        assert self._places.thoughts
        begin, end = self._places.thoughts
        if state.phase == "thoughts":
            ended = state.text.endswith(end)
            return Outside(phase=self._after_thoughts) if ended else state
        text = state.text.lstrip()
        if text.startswith(begin):
            return Outside(phase="thoughts")
        if begin.startswith(text):
            return state
        return self._free(replace(state, phase=self._after_thoughts))

    def _free(self, state: Outside) -> Outside:
        """Return what has been read after another byte of free text or a call."""
        places, text = self._places, state.text
        if state.phase == "free" and text.endswith(places.openings):
            state = replace(state, phase="calls")
        if state.phase != "calls" or not places.argument:
            return state
        call = self._call_at(text)
        if call and (not state.in_text or _MARK in call[0]):
            return replace(state, name=call["name"].decode(), in_text=False)
        if state.in_text:
            return replace(state, in_text=False, text=b"") if text.endswith(places.end) else state
        argument = self._argument.search(text) if places.texts else None
        if argument and (state.name, argument["key"].decode()) in places.texts:
            return replace(state, in_text=True, text=b"")
        return state

    def _call_at(self, text: bytes) -> "re.Match[bytes] | None":
        return next((match for call in self._calls if (match := call.search(text))), None)

    def _schemas_at(self, state: Outside, byte: int) -> Schemas | None:
        """Return the schemas of a value that may begin; None if there is no place of one."""
        places = self._places
        if state.in_text or state.phase == "thoughts":
            return None
        is_free = state.phase != "calls" or not places.calls
        before = (
            self._answer.search(state.text) if places.answer else is_free and not state.text.strip()
        )
        if places.form and before:
            return self._form
        if state.phase != "calls" or byte not in self._begins:
            return None
        if not places.argument:
            call = self._call_at(state.text)
            return self._schemas_of(call["name"].decode(), "") if call else None
        argument = self._argument.search(state.text)
        if argument is None or not state.name:
            return None
        return self._schemas_of(state.name, argument["key"].decode())

    def _schemas_of(self, name: str, key: str) -> Schemas:
        return self._schemas.get((name, key), self._anything)
