# SPDX-License-Identifier: Apache-2.0
"""Parser of a chat model's output: pieces of text in, events out, the same for any pieces."""

import json
import secrets
import string
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from qeff_zoo.runtime.text.chat_output import values
from qeff_zoo.runtime.text.chat_output.events import Arguments, Call, Event, Reasoning, Text
from qeff_zoo.runtime.text.chat_output.formats import CallFormat, ReasoningFormat, holes
from qeff_zoo.runtime.text.chat_output.reader import Parsing, Reader, Sink

_NAME = {*string.ascii_letters, *string.digits, *"_-./"}
_ID_LENGTH = 9  # as Mistral's templates require
_ID = string.ascii_letters + string.digits
#: Names of the fields of a call as an object, in any format.
_NAMES = ("name", "tool_name", "function")
_ARGUMENTS = ("arguments", "parameters")
_JSON = {"{", "[", '"'}  # first characters of objects, arrays and strings
_CLOSING = {"(": ")", "[": "]", "{": "}"}


def parsed(parser: "OutputParser | None", text: str, *, ended: bool) -> list[Event]:
    """Return the events that a piece of an output completes.

    Args:
        parser: Parser of the output; None for plain text.
        text: The piece.
        ended: Whether it is the last piece.
    """
    if parser is None:
        return [Text(text)] if text else []
    return [*parser.push(text), *(parser.finish() if ended else ())]


class OutputParser:
    """Incremental parser of one output.

    Args:
        calls: Format of tool calls; None if the output has none.
        reasoning: Format of reasoning; None if the output has none.
        is_open: Whether the prompt ends within reasoning.
        schemas: JSON Schemas of the arguments by function, for formats whose values have no types.
        most: Maximum number of calls; further ones are dropped.
        begun: Beginning of a call or an answer with which the prompt ends.
        structured: Whether a grammar constrains the answer: marks in the strings of its JSON are text.
    """

    def __init__(
        self,
        calls: CallFormat | None,
        reasoning: ReasoningFormat | None = None,
        *,
        is_open: bool = False,
        schemas: Mapping[str, Any] | None = None,
        most: int | None = None,
        begun: str = "",
        structured: bool = False,
    ) -> None:
        self._structured = structured
        self._format, self._reasoning, self._is_open = calls, reasoning, is_open
        self._schemas = schemas or {}
        self._most = most
        self._count = 0
        self._begun, self._reader = begun, Reader()
        self._reader.feed(begun)
        steps = self._channels() if calls and calls.channels else self._message()
        self._steps: Generator[Event | None, None, Any] = steps

    def push(self, text: str) -> list[Event]:
        """Add text; return the events that it completes."""
        self._reader.feed(text)
        return self._advance()

    def finish(self) -> list[Event]:
        """End the output; return the remaining events."""
        self._reader.closed = True
        return self._advance()

    def _advance(self) -> list[Event]:
        events: list[Event] = []
        for event in self._steps:
            if event is not None:
                events.append(event)
            elif not self._reader.closed:
                break
        return events

    # --- messages -------------------------------------------------------------------------------

    def _message(self) -> Parsing[None]:
        """Parse an output whose reasoning and calls stand between marks, or whose calls begin it."""
        reader, thinks, calls = self._reader, self._reasoning, self._format
        text = _Trimmed(Text)
        begin = thinks.begin.strip() if thinks else ""
        drops = [*(thinks.drops if thinks else ()), *(calls.drops if calls else ())]
        openings = calls.openings if calls and not calls.bare else []
        begun = self._begun
        if self._is_open:
            yield from self._reason(text)
        while True:
            if calls and calls.bare and text.empty and (yield from self._bare(calls)):
                text.pause()
            marks = [*filter(None, [begin]), *drops, *openings]
            if text.empty and (yield from self._is_json(marks)):
                yield from reader.until([], text)
                break
            mark = yield from reader.until(marks, text)
            if mark is None:
                break
            if mark == begin:
                yield from self._reason(text)
            elif mark in openings and calls:
                reader.at -= len(mark)
                reader.ended = False
                answers = calls.answer and (yield from self._word(calls.answer))
                if answers or (yield from self._section(calls)):
                    text.pause()
                elif reader.ended:  # within the beginning of a call
                    return
                else:
                    reader.at += len(mark)
                    yield text(mark[len(begun) :])
            begun = ""
        yield text.rest()

    def _is_json(self, marks: Sequence[str] = ()) -> Parsing[bool]:
        """Return whether JSON comes next, and is all of a structured answer; none of some marks is JSON."""
        if not self._structured:
            return False
        reader, start = self._reader, self._reader.at
        reader.held = True
        yield from reader.skip_blanks()
        first = yield from reader.peek()
        is_json = first in _JSON and not (yield from self._first_of(marks))
        reader.at, reader.held = start, False
        return is_json

    def _word(self, text: str) -> Parsing[bool]:
        """Advance over a text with whitespace at its end; return False where it differs."""
        reader, start = self._reader, self._reader.at
        reader.held = True
        is_word = (yield from reader.literal(text)) and reader.text[reader.at - 1].isspace()
        reader.at, reader.held = reader.at if is_word else start, False
        return is_word

    def _bare(self, calls: CallFormat) -> Parsing[bool]:
        """Parse calls without a mark; return whether the output begins with some."""
        start = self._reader.at
        yield from self._reader.skip_blanks()
        if (yield from self._section(calls)):
            return True
        self._reader.at = start
        return False

    def _reason(self, text: "_Trimmed") -> Parsing[None]:
        """Parse reasoning up to its end; the text after it begins without whitespace."""
        assert self._reasoning
        text.pause()
        yield from self._reader.until(
            [self._reasoning.end.strip()], _Trimmed(Reasoning, leading=False)
        )

    def _channels(self) -> Parsing[None]:
        """Parse messages of gpt-oss, each with a channel and perhaps a recipient in its header."""
        reader = self._reader
        text = _Trimmed(Text)
        while True:
            header, mark = yield from self._gathered(["<|message|>"])
            if mark is None:
                if not self._count and text.empty and "<|" not in header:
                    yield text(header)
                break
            _, to, recipient = header.partition("to=functions.")
            name = "".join(_leading(recipient, _NAME))
            ends = ["<|end|>", "<|call|>", "<|return|>", "<|start|>"]
            if to and name:
                yield self._call(name, "", "")
                yield from reader.until(ends, self._arguments)
            elif "analysis" in header or "to=" in header:
                yield from reader.until(ends, _Trimmed(Reasoning, leading=False))
            else:
                is_json = yield from self._is_json()
                yield from reader.until([] if is_json else ends, text)
        yield text.rest()

    # --- calls ----------------------------------------------------------------------------------

    def _section(self, calls: CallFormat) -> Parsing[bool]:
        """Parse calls with the text around them; return whether there are some, else nothing was read."""
        reader, start = self._reader, self._reader.at
        reader.held, has_calls = True, False
        ok = yield from reader.literal(calls.begin)
        while ok and (yield from self._one_of(calls)):
            has_calls, reader.held, start = True, True, reader.at
            if calls.end and (yield from reader.literal(f" {calls.end}")):
                start = reader.at
                break
            ok = yield from reader.literal(calls.join)
        reader.at, reader.held = start, False
        return has_calls

    def _one_of(self, calls: CallFormat) -> Parsing[bool]:
        """Parse a call in one of the texts of its format."""
        start = self._reader.at
        for row in (calls.call, *calls.also):
            if (yield from self._one(calls, row)):
                return True
            self._reader.at, self._reader.held = start, True
        return False

    def _one(self, calls: CallFormat, row: str) -> Parsing[bool]:
        """Parse a call; return False where it differs before its arguments begin. Then no event was yielded."""
        reader, parts = self._reader, holes(row)
        name, read, begun = "", {"id": "", "index": ""}, False
        for (text, hole), (after, _) in zip(parts, [*parts[1:], ("", "")], strict=True):
            if not (yield from reader.literal(text)):
                return begun
            ends = _Ends.of(calls, after)
            if hole == "name":
                name = yield from reader.run(_NAME.__contains__)
                if not name:
                    return False
            elif hole in read:
                read[hole] = yield from reader.run(lambda one: one in _NAME or one == ":")
            elif hole == "call":
                begun = yield from self._object(ends)
            elif hole == "args":
                begin = partial(self._call, name, read["id"], read["index"])
                if calls.argument:
                    schema = self._schemas.get(name)
                    begun = yield from self._tagged(calls, after, begin, schema, ends)
                elif calls.values == "json":
                    begun = yield from self._json(begin, ends)
                else:
                    begun = yield from self._literals(calls, begin)
            if hole in ("call", "args") and not begun:
                return False
        return True

    def _call(self, name: str, given: str, index: str) -> Call | None:
        """Count a call, and return its first event.

        Args:
            name: Name of the function.
            given: Identifier in the output.
            index: Number of the call in the output.
        """
        self._reader.held = False
        number, self._count = self._count, self._count + 1
        form = self._format.id if self._format else ""
        random = "".join(secrets.choice(_ID) for _ in range(_ID_LENGTH))
        named = form.format(name=name, index=index) or given or random
        return None if self._is_over else Call(number, named, name)

    @property
    def _is_over(self) -> bool:
        return self._most is not None and self._count > self._most

    def _arguments(self, text: str) -> Arguments | None:
        return Arguments(self._count - 1, text) if text and not self._is_over else None

    def _json(self, begin: partial[Call | None], ends: "_Ends") -> Parsing[bool]:
        """Parse arguments that are a JSON object."""
        yield from self._reader.skip_blanks()
        if (yield from self._reader.peek()) != "{":
            return False
        yield begin()
        yield from self._reader.json_value(self._arguments, ends.mark, ends.followers)
        return True

    def _object(self, ends: "_Ends") -> Parsing[bool]:
        """Parse a JSON object with the name and the arguments of a call, in any order."""
        reader, name, arguments, begun = self._reader, "", "", False
        yield from reader.skip_blanks()
        if (yield from reader.peek()) != "{":
            return False
        while (one := (yield from self._next_field())) == '"':
            key = yield from self._string()
            yield from reader.skip_blanks()
            if (yield from reader.peek()) != ":":
                return begun
            reader.at += 1
            yield from reader.skip_blanks()
            first = yield from reader.peek()
            if key in _NAMES and first == '"' and not name:
                name = (yield from self._string()) or ""
            elif key in _ARGUMENTS and first == "{" and name and not begun:
                yield self._call(name, "", "")
                begun = True
                yield from reader.json_value(self._arguments, ends.mark, ends.followers)
            else:
                value = yield from self._value(ends)
                if key in _ARGUMENTS and not begun:
                    arguments = value
        if one != "}":
            return begun
        reader.at += 1
        if not begun and name and set(name) <= _NAME:
            yield self._call(name, "", "")
            yield self._arguments(_unquoted(arguments))
            begun = True
        return begun

    def _next_field(self) -> Parsing[str]:
        """Advance over the opening brace or a comma; return the next character."""
        reader = self._reader
        yield from reader.skip_blanks()
        if (yield from reader.peek()) in ("{", ","):
            reader.at += 1
            yield from reader.skip_blanks()
        return (yield from reader.peek())

    def _value(self, ends: "_Ends | None" = None) -> Parsing[str]:
        """Return the text of a JSON value."""
        pieces: list[str] = []
        marks = (ends.mark, ends.followers) if ends else ()
        yield from self._reader.json_value(lambda piece: pieces.append(piece), *marks)
        return "".join(pieces)

    def _string(self) -> Parsing[str | None]:
        """Return a JSON string; None if it is malformed."""
        try:
            value = json.loads((yield from self._value()))
        except ValueError:
            return None
        return value if isinstance(value, str) else None

    def _tagged(
        self,
        calls: CallFormat,
        after: str,
        begin: partial[Call | None],
        schema: Any,
        ends: "_Ends",
    ) -> Parsing[bool]:
        """Parse arguments that are marked one by one.

        Args:
            calls: Format of the calls.
            after: Text after the last argument.
            begin: Function that returns the first event of the call.
            schema: JSON Schema of the arguments.
            ends: Marks after a call whose last argument has no end.
        """
        reader, parts = self._reader, holes(calls.argument)
        (first, _), *others, (end, _) = parts
        has_some = yield from reader.literal(first)
        if not has_some:
            start = reader.at
            is_over = yield from reader.literal(after)
            reader.at = start
            if not (is_over or reader.closed):
                return False
        yield begin()
        separator = "{"
        while has_some:
            key = (yield from reader.run(lambda one: one not in '"><|\n')).strip()
            kind = ""
            for text, hole in others:
                yield from reader.literal(text.rstrip("\n"))
                if hole in ("type", "string"):
                    kind = yield from reader.run(lambda one: one != '"')
                elif text.endswith("\n") and (yield from reader.peek()) == "\n":
                    reader.at += 1
            yield self._arguments(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
            if not (yield from self._tagged_value(end, self._types(kind, key, schema), ends)):
                return True
            separator = ", "
            yield from reader.skip_blanks()
            has_some = yield from reader.literal(first)
        yield self._arguments("{}" if separator == "{" else "}")
        return True

    def _types(self, kind: str, key: str, schema: Any) -> frozenset[str]:
        """Return the JSON types of an argument by its own mark, or by the schema."""
        if kind:
            return frozenset({"string"}) if kind in ("string", "true") else frozenset()
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        property_ = properties.get(key) if isinstance(properties, Mapping) else None
        return values.types_of(property_, schema)

    def _tagged_value(self, end: str, types: frozenset[str], ends: "_Ends") -> Parsing[bool]:
        """Parse the value of an argument; return whether it is complete."""
        mark = end.strip()
        marks = [f"\n{mark}", mark] if end.startswith("\n") else [mark]
        if types == {"string"}:
            yield self._arguments('"')
            complete = yield from self._until(
                marks,
                ends,
                lambda piece: self._arguments(json.dumps(piece, ensure_ascii=False)[1:-1]),
            )
            yield self._arguments('"' if complete else "")
            return complete
        pieces: list[str] = []
        complete = yield from self._until(marks, ends, lambda piece: pieces.append(piece))
        yield self._arguments(values.from_text("".join(pieces), types) if complete else "")
        return complete

    def _until(self, marks: Sequence[str], ends: "_Ends", sink: Sink) -> Parsing[bool]:
        """Pass the text of a value on up to a mark, or to the end of its call; return whether there is one."""
        reader = self._reader
        while (mark := (yield from reader.until([*marks, *ends.marks], sink))) not in marks:
            if mark is None:
                return False
            at, reader.held = reader.at, True
            yield from reader.skip_blanks()
            ended = not (yield from reader.peek()) or (yield from self._first_of(ends.followers))
            reader.at, reader.held = at, False
            if ended:
                reader.at -= len(mark)
                reader.ended = False
                return True
            if event := sink(mark):  # a text that only looks like the end
                yield event
        return True

    def _gathered(self, marks: Sequence[str]) -> Parsing[tuple[str, str | None]]:
        """Return the text up to the first of some marks, and the mark."""
        pieces: list[str] = []
        mark = yield from self._reader.until(marks, lambda piece: pieces.append(piece))
        return "".join(pieces), mark

    def _literals(self, calls: CallFormat, begin: partial[Call | None]) -> Parsing[bool]:
        """Parse arguments in Python's or Gemma's language, which become JSON at their end."""
        text = yield from self._enclosed(calls)
        is_python = calls.values == "python"
        arguments = (
            values.from_keywords(text) if is_python else values.from_unquoted(text, calls.quote)
        )
        if arguments is None:
            return False
        yield begin()
        yield self._arguments(arguments)
        return True

    def _enclosed(self, calls: CallFormat) -> Parsing[str]:
        """Return text up to the bracket that closes an earlier one, or after its own brackets."""
        reader, start, quoted = self._reader, self._reader.at, ""
        quotes = (calls.quote,) if calls.quote else ('"', "'")
        open_: list[str] = []
        while one := (yield from reader.peek()):
            if quoted:
                if one == "\\" and not calls.quote:
                    reader.at += 1
                elif (yield from reader.literal(quoted)):
                    quoted = ""
                    continue
            elif quote := (yield from self._first_of(quotes)):
                quoted = quote
                continue
            elif one in _CLOSING:
                open_.append(_CLOSING[one])
            elif one in ")]}":
                if not open_ or open_.pop() != one:
                    break
                if not open_ and calls.values == "unquoted":
                    reader.at += 1
                    break
            reader.at += 1
        return reader.text[start : reader.at]

    def _first_of(self, texts: Sequence[str]) -> Parsing[str]:
        """Advance over the first text that comes next; return it, or nothing."""
        for text in texts:
            if (yield from self._reader.literal(text)):
                return text
        return ""


@dataclass(frozen=True)
class _Ends:
    """What ends a call whose arguments have no end of their own.

    Args:
        marks: Texts after a call, the longest first.
        followers: Texts of which one follows such a mark within a string, or the output ends.
    """

    marks: tuple[str, ...] = ()
    followers: tuple[str, ...] = ()

    @classmethod
    def of(cls, calls: CallFormat, after: str) -> "_Ends":
        """Return the ends of a call of a format.

        Args:
            calls: The format.
            after: Text after the arguments; brackets and fences at its beginning may be a value's.
        """
        text = (after.strip() or calls.end.strip()).lstrip("]})`\n ")
        last = text.rpartition("\n")[2]
        marks = [f"\n{text}", text, f"\n{last}", last] if text else []
        row, _ = holes(calls.call)[0]
        followers = (*calls.openings, calls.end.strip(), calls.join.strip(), row.strip())
        return cls(tuple(dict.fromkeys(marks)), tuple(filter(None, dict.fromkeys(followers))))

    @property
    def mark(self) -> str:
        """The last of them; empty without one."""
        return self.marks[-1] if self.marks else ""


class _Trimmed:
    """Function that returns events of text without the whitespace around it.

    Args:
        kind: Class of the events.
        leading: Whether whitespace at the very beginning is kept.
    """

    def __init__(self, kind: type[Text] | type[Reasoning], *, leading: bool = True) -> None:
        self._kind, self._leading, self._held = kind, leading, ""
        #: Whether there was no text.
        self.empty = True

    def __call__(self, piece: str) -> Event | None:
        """Return the event of a piece, whose trailing whitespace is held back."""
        text = self._held + piece
        text = text if self._leading else text.lstrip()
        body = text.rstrip()
        self._held = text[len(body) :]
        if not body:
            return None
        self._leading, self.empty = True, False
        return self._kind(body)

    def pause(self) -> None:
        """Drop whitespace before and after something that is no text."""
        self._held, self._leading = "", False

    def rest(self) -> Event | None:
        """Return the event of whitespace at the end."""
        return self._kind(self._held) if self._held else None


def _unquoted(arguments: str) -> str:
    """Return the JSON of arguments that may be JSON text, or absent."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return "{}"
    if isinstance(value, str):
        return value
    return "{}" if value is None else arguments


def _leading(text: str, allowed: set[str]) -> list[str]:
    """Return the first characters of a text that are allowed."""
    end = next((place for place, one in enumerate(text) if one not in allowed), len(text))
    return [*text[:end]]
