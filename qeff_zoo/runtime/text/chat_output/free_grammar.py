# SPDX-License-Identifier: Apache-2.0
"""Grammar of outputs whose text is free and whose calls are not: it holds from the mark on that begins a call.

A parser takes whatever stands after such a mark for a call. Free text therefore has no mark of a call, and what follows
one is a call of a known function, with arguments of its schema.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from qeff_zoo.runtime.text.chat_output.call_grammar import ANYTHING, CallRules
from qeff_zoo.runtime.text.chat_output.formats import (
    ANALYSIS,
    CallFormat,
    ReasoningFormat,
    Thoughts,
    holes,
)
from qeff_zoo.runtime.text.chat_output.marks import Marks
from qeff_zoo.runtime.text.chat_output.values import resolved, types_of
from qeff_zoo.runtime.text.grammar import Grammar

_NAME = r"[A-Za-z0-9_.\/-]+"


def free_grammar(
    calls: CallFormat,
    reasoning: ReasoningFormat | None,
    marks: Marks,
    *,
    schemas: Mapping[str, Any],
    thoughts: Thoughts = "possible",
    several: bool = True,
    prompt: str = "",
) -> Grammar:
    """Return the grammar of reasoning, free text, and calls.

    Args:
        calls: Format of the calls.
        reasoning: Format of the reasoning; None without one.
        marks: Tokens of both formats.
        schemas: JSON Schemas of the arguments by function.
        thoughts: Whether the output begins with reasoning.
        several: Whether there may be more than one call.
        prompt: End of the prompt, which may begin the first call or the answer.
    """
    rules = _FreeRules(calls, marks, schemas, several=several)
    if calls.channels:
        rules.add("start", rules.channels())
    else:
        begin = reasoning.begin.strip() if reasoning and thoughts == "possible" else ""
        drops = (*(reasoning.drops if reasoning else ()), *calls.drops)
        rules.drops = [symbols for drop in drops if "<[" in (symbols := rules.exactly(drop))]
        body = rules.bare() if calls.bare else rules.body(begin, calls.begun(prompt))
        thought = rules.thought(reasoning, body, thoughts) if reasoning else ""
        alone = thoughts == "begun" and reasoning is not None
        rules.add("start", " | ".join(filter(None, [thought, "" if alone else body])) or '""')
    begun = "" if calls.channels or calls.bare else calls.begun(prompt)
    places = rules.places(ANALYSIS if calls.channels else reasoning, thoughts, begun)
    return replace(Grammar.lark(rules.source), marks=marks.ids, places=places)


def loosened(calls: CallFormat, schema: Any) -> Any:
    """Return the schema of a function whose arguments are free: any object.

    A format with a mark for each argument gets the names and the types of the arguments, which the marks need.

    Args:
        calls: Format of the calls.
        schema: JSON Schema of the arguments.
    """
    if not calls.argument and calls.values == "json":
        return None
    properties = resolved(schema, schema).get("properties") or {}
    kinds = {name: sorted(types_of(value, schema)) for name, value in properties.items()}
    loose = {name: {"type": found} if found else {} for name, found in kinds.items()}
    return {"type": "object", "properties": loose}


class _FreeRules(CallRules):
    """Lark rules of free text and calls.

    Args:
        calls: Format of the calls.
        marks: Tokens of the format.
        schemas: JSON Schemas of the arguments by function.
        several: Whether there may be more than one call.
    """

    def __init__(
        self, calls: CallFormat, marks: Marks, schemas: Mapping[str, Any], *, several: bool
    ) -> None:
        super().__init__(calls, marks)
        self._calls, self._several = calls, several
        self._schemas, self._free_marks = schemas, marks
        #: Symbols of tokens that text may have, and that a parser drops.
        self.drops: list[str] = []

    def blank(self, _: str) -> str:
        """Return the symbols of blanks of any kind, as a parser takes them from a model that is free."""
        return r"/\s{1,8}/?"

    def body(self, begin: str, begun: str) -> str:
        """Return the symbols of text and calls.

        Args:
            begin: Beginning of reasoning, with which the text does not begin; empty without one.
            begun: Beginning of a call or an answer with which the prompt ends.
        """
        openings = self._calls.openings
        later = self._chunks(openings, "")
        tail = f"{later}*" if self._several else ""
        text = self._text(openings, "")
        if begun:
            rest = self._after(begun)
            return f"{rest} {tail} {text}"
        first = self._chunks(openings, begin)
        return f"({first} {tail} {text} | {self._text(openings, begin)})"

    def bare(self) -> str:
        """Return the symbols of calls without a mark, with which an output begins, or of a text."""
        calls = self._calls
        (begin, hole), (after, _), *_ = holes(calls.begin + calls.call)
        drops = f"({' | '.join(self.drops)})*" if self.drops else ""
        more = f"({self.text(calls.join)} {self._call})*" if self._several else ""
        rest = f"{more} {self._end}"
        if hole == "call":
            pattern = r"\s*\{"
            section = rf"/\s{{0,4}}/? {self.text(calls.begin)} {self._call} {rest}"
        else:  # one lexeme up to the arguments: the name alone may begin a text
            bracket = after[:1]
            pattern = rf"\s*{re.escape(begin)}\s*{_NAME}\s*{re.escape(bracket)}"
            _, _, row = calls.call.partition(f"{{name}}{bracket}")
            first = []
            for name, schema in self._schemas.items():
                mark = rf"/\s{{0,4}}/ {json.dumps(begin + name + bracket)}"
                first.append(f"{self.new(mark, terminal=True)} {self.row(row, name, schema)}")
            section = f"{self.new(' | '.join(first))} {rest}"
        text = self.new(rf"/(?s:.+)/ & ~(/{pattern}(?s:.*)/)", terminal=True)
        return f"{drops} ({section} | {text}?)"

    def channels(self) -> str:
        """Return the symbols of messages with channels: analyses and preambles, and then a call or an answer."""
        begin, end = self.exactly("<|channel|>"), self.until("<|end|>")
        message, start = self.exactly("<|message|>"), self.exactly("<|start|>assistant")
        self.add("before", f'{begin} ("analysis" | "commentary") {message} {end} {start}')
        more = (
            f"({self.exactly('<|call|>')} {start} before* {self._call})*" if self._several else ""
        )
        marks = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")
        text = self.new(f"/(?s:.+)/ & {self._without(marks)}", terminal=True)
        return f'before* ({self._call} {more} | {begin} "final" {message} {text}?)'

    def thought(self, reasoning: ReasoningFormat, body: str, thoughts: Thoughts) -> str:
        """Return the symbols of reasoning with what follows it, also of reasoning that has no end."""
        if thoughts == "ended":
            return ""
        begin, end = reasoning.begin.strip(), reasoning.end.strip()
        opening = "" if thoughts == "begun" else self.exactly(begin)
        endless = self.new(f"/(?s:.+)/ & {self._without((end,))}", terminal=True)
        if "<[" in opening or not opening:
            return f"{opening} ({self.until(end)} {body} | {endless}?)"
        # One lexeme begins with the mark: a lexer would take the mark alone for the beginning of free text.
        first, *rest = self._free_marks.pieces(end)
        if not rest and isinstance(first, str):
            whole = self.new(f"{opening} {ANYTHING}", f"[suffix={json.dumps(end)}]")
            return f"({whole} {body} | {self._begun(opening, end)})"
        return f"{self._begun(opening, end)} ({self.exactly(end)} {body})?"

    def _begun(self, opening: str, end: str) -> str:
        """Return the name of the lexeme of reasoning without its end."""
        return self.new(f"({opening} {ANYTHING}) & {self._without((end,))}", terminal=True)

    def _chunks(self, openings: Sequence[str], begin: str) -> str:
        """Return the name of the rule of a text up to a call, and of the call."""
        chunks = []
        for opening in openings:
            first, *_ = self._free_marks.pieces(opening)
            if isinstance(first, int):
                before = f"{self._text(openings, begin)} {self.exactly(opening)}"
            else:
                text = self.new(f"{ANYTHING} & {self._without(openings, begin)}", terminal=True)
                skipped = self._text(openings, begin, drops=True)
                before = f"{skipped} {self.new(text, f'[suffix={json.dumps(first)}]')}"
                before += f" {self.exactly(opening[len(first) :])}" if opening != first else ""
            chunks.append(f"{before} {self._after(opening)}")
        return self.new(" | ".join(chunks))

    def _after(self, opening: str) -> str:
        """Return the symbols of calls, or of a marked answer, after their beginning."""
        calls = self._calls
        if calls.begin:
            more = f"({self.text(calls.join)} {self._call})*" if self._several else ""
            return f"{self.text(calls.begin[len(opening) :])} {self._call} {more} {self._end}"
        rows = [row for row in (calls.call, *calls.also) if row.startswith(opening)]
        symbols = [self._each(partial(self.row, row[len(opening) :])) for row in rows]
        if calls.answer:
            symbols.append(self.exactly(calls.answer[len(opening) :]))
        return f"({' | '.join(symbols)})"

    @cached_property
    def _call(self) -> str:
        """Name of the rule of a whole call."""
        return self._each(self.call)

    @property
    def _end(self) -> str:
        """Symbols after the last call."""
        return f"{self.blank('')} {self.text(self._calls.end)}" if self._calls.end else ""

    def _each(self, call: Callable[[str, Any], str]) -> str:
        """Return the name of the rule of a call of any function."""
        return self.new(" | ".join(call(name, schema) for name, schema in self._schemas.items()))

    def _text(self, openings: Sequence[str], begin: str, *, drops: bool = False) -> str:
        """Return the symbols of free text, which may be absent.

        Args:
            openings: Marks of calls.
            begin: Beginning of reasoning.
            drops: Whether the text ends with a token that a parser drops.
        """
        if drops and not self.drops:
            return ""
        text = self.new(f"/(?s:.+)/ & {self._without(openings, begin)}", terminal=True)
        dropped = f"({text}? ({' | '.join(self.drops)}))*" if self.drops else ""
        return dropped if drops else f"{dropped} {text}?"

    @staticmethod
    def _without(marks: Sequence[str], begin: str = "") -> str:
        """Return the expression of a text without marks, which does not begin as reasoning does."""
        parts = [
            f"~({ANYTHING} {json.dumps(mark, ensure_ascii=False)} {ANYTHING})" for mark in marks
        ]
        if begin:
            parts.append(rf"~(/\s*/ {json.dumps(begin, ensure_ascii=False)} {ANYTHING})")
        return " & ".join(parts)
