# SPDX-License-Identifier: Apache-2.0
"""Formats of a chat template, detected in its renderings: the format that parses a rendered call is the template's."""

import json
from collections.abc import Mapping
from typing import Any

from qeff_zoo.runtime.text.chat_output.events import Output
from qeff_zoo.runtime.text.chat_output.formats import CALL_FORMATS, REASONING_FORMATS, CallFormat
from qeff_zoo.runtime.text.chat_output.parsing import OutputParser
from qeff_zoo.runtime.text.template_source import TemplateSource

_NAME = "qzqzq"
_ARGUMENTS: Mapping[str, Any] = {"word": "zqzqz", "count": 3}
_USER = {"role": "user", "content": "x"}
_ANSWER = {"role": "assistant", "content": ""}
_SCHEMA = {
    "type": "object",
    "properties": {
        "word": {"type": "string", "description": "A word"},
        "count": {"type": "integer"},
    },
    "required": ["word"],
}
_TOOL = {
    "type": "function",
    "function": {"name": _NAME, "description": "A function", "parameters": _SCHEMA},
}


def call_format_of(source: TemplateSource) -> str | None:
    """Return the name of the format of a template's tool calls; None if it is unknown.

    Without a rendering of a call, texts of the template's source decide.
    """
    renderings = _renderings(source)
    for text in renderings:
        for name, known in CALL_FORMATS.items():
            if _reads(known, text):
                return name
    if renderings:
        return None
    for name, known in CALL_FORMATS.items():
        if any(
            sign in source.text
            for sign in (*known.signs, *(() if known.bare or known.answer else known.openings))
        ):
            return name
    return None


def reasoning_format_of(source: TemplateSource) -> str | None:
    """Return the name of the format of a template's reasoning; None if it has none."""
    answer = {**_ANSWER, "content": "x", "reasoning_content": _NAME}
    messages = source.normalized([_USER, answer])
    rendered = source.probe(messages, add_generation_prompt=False)
    for name, known in REASONING_FORMATS.items():
        begin, end = known.begin.strip(), known.end.strip()
        # Some templates leave the beginning to the model, or remove the reasoning of earlier messages.
        if end in source.text + rendered and (begin in source.text + rendered or name == "think"):
            return name
    return None


def _renderings(source: TemplateSource) -> list[str]:
    """Return renderings of an assistant's message with a call, from its beginning on."""
    function = {"name": _NAME, "arguments": _ARGUMENTS}
    call = {"id": "qzqzq0000", "type": "function", "function": function}
    result = {"role": "tool", "content": "1", "tool_call_id": "qzqzq0000", "name": _NAME}
    calling = source.normalized([_USER, {**_ANSWER, "tool_calls": [call]}, result])
    values = {"tools": [_TOOL], "documents": None}
    renderings = []
    for messages in (calling[:2], calling):
        whole = source.probe(messages, **values, add_generation_prompt=False)
        for prompted in (True, False):
            before = source.probe(calling[:1], **values, add_generation_prompt=prompted)
            same = _common(before, whole)
            if _NAME in whole[same:] and (same == len(before) or not prompted):
                renderings.append(whole[same:])
    return renderings


def _common(first: str, second: str) -> int:
    """Return the length of the common beginning of two texts."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(first), len(second)))


def _reads(known: CallFormat, text: str) -> bool:
    """Return whether a format finds the call of a rendering."""
    parser = OutputParser(known, schemas={_NAME: _SCHEMA})
    output = Output.of([*parser.push(text), *parser.finish()])
    try:
        calls = [(call.name, json.loads(call.arguments)) for call in output.calls]
    except ValueError:
        return False
    return calls == [(_NAME, dict(_ARGUMENTS))]
