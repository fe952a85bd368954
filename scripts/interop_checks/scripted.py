# SPDX-License-Identifier: Apache-2.0
"""Script of a model: outputs for the chats of tests that need a model which calls, thinks or answers by itself.

The output is a message of the assistant, as the chat template of the server renders it. Chats that are not in the
script get the output of the small model.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qeff_zoo.runtime import TextGenerationSession
from qeff_zoo.runtime.text.chat_output import ChatFormat, prompt_end
from qeff_zoo.runtime.text.chat_output.formats import ANALYSIS
from qeff_zoo.runtime.text.chat_template import ChatOptions
from qeff_zoo.runtime.text.tokenizer import Tokenizer
from qeff_zoo.serving.requests.schemas import ChatRequest, NamedTool

Calls = Sequence[tuple[str, Mapping[str, Any]]]
_MARK = "qzqzq"  # a word that no template contains
_THOUGHTS = "The answer is short."


@dataclass(frozen=True, kw_only=True)
class Line:
    """Output for the last message of a chat.

    Args:
        last: Regular expression of the message's text.
        text: Text of the output; `{}` stands for the recalled text.
        recall: Regular expression of a text in earlier messages, of which the last match is recalled.
        calls: Calls of functions; those that the request does not offer are left out.
        fields: Object of a structured output; fields that its schema lacks are left out.
        thoughts: Reasoning, for templates with reasoning.
        prompt: Regular expression of the rendered prompts for which the line is.
    """

    last: str
    text: str = ""
    recall: str = ""
    calls: Calls = ()
    fields: Mapping[str, Any] = field(default_factory=dict)
    thoughts: str = _THOUGHTS
    prompt: str = ""


_EVENT = {"date": "Friday", "participants": ["Alice", "Bob"]}
_BERLIN = {"city": "Berlin", "country": "Germany", "unit": "fahrenheit"}
_FORECAST = {"city": "Berlin", "country": "Germany", "days": 5, "unit": "fahrenheit"}
_WORK = {"company": "Mill", "position": "miller"}
_EMPLOYEE = {
    "name": "Bo",
    "age": 28,
    "skills": ["milling", "baking", "rye"],
    "work_history": [_WORK],
}
#: The first line that fits is used.
SCRIPT = (
    # --- llama.cpp ------------------------------------------------------------------------------
    Line(last="weather in Istanbul", calls=[("get_current_weather", {"location": "Istanbul"})]),
    Line(last="say hello world with python", calls=[("python", {"code": 'print("hello world")'})]),
    Line(last=r"^0\.55644242476$", text="Rounded to one decimal, it is **0.5**"),
    Line(
        last="sum of 102 and 7",
        text="To find the sum of 102 and 7, add them: 109.",
        thoughts="First, I look at the numbers.",
        prompt=r"User.>.*<think>\n$",
    ),
    Line(
        last="sum of 102 and 7",
        text="To find the sum of 102 and 7, add them: 109.",
        thoughts="I need to calculate the sum of 102 and 7.",
        prompt="<think>\n$",
    ),
    Line(last="sum of 102 and 7", text="The sum of 102 and 7 is 109.", thoughts=""),
    Line(last=r"What is 2\+2\?", text="2 + 2 = 4"),
    # --- vLLM -----------------------------------------------------------------------------------
    Line(
        last="current weather is in Berlin",
        calls=[("get_current_weather", _BERLIN), ("get_forecast", _FORECAST)],
    ),
    Line(
        last="Call get_weather for Berlin and get_time for Tokyo",
        calls=[("get_weather", {"location": "Berlin"}), ("get_time", {"location": "Tokyo"})],
    ),
    Line(last="Call the get_weather function", calls=[("get_weather", {"location": "Berlin"})]),
    Line(
        last="weather like in Paris",
        text="It is warm.",
        calls=[("get_weather", {"latitude": 48.9, "longitude": 2.4})],
    ),
    Line(
        last=r"^\s*Paris\s*$",
        calls=[("get_weather", {"latitude": 48.9, "longitude": 2.4})],
    ),
    Line(last="random place", calls=[("get_place_to_travel", {})]),
    Line(
        last=r"^-?\d+\.\d$|weather in Paris is 20|temperature at \(", text="It is warm."
    ),  # a result
    Line(
        last=r"weather like in (New York|Boston)",
        calls=[("get_current_weather", {"location": "New York, Boston"})],
    ),
    Line(
        last="product id 7355608",
        calls=[("get_product_info", {"product_id": 7355608, "inserted": True})],
    ),
    Line(last="employee profile", calls=[("dummy_function_name", {**_EMPLOYEE, "name": "Ann"})]),
    Line(last="different name and age", calls=[("dummy_function_name", {**_EMPLOYEE, "age": 35})]),
    Line(last="horoscope for Aquarius", calls=[("get_horoscope", {"sign": "Aquarius"})]),
    Line(last=r"what is 1\+1\?.*format is", text="It is 2.", fields={"result": 2}),
    Line(last=r"What is 1\+1\?", text="2"),
    Line(last=r"13 \* 24", text="13 * 24 = 312. QED."),
    Line(last="Multiply the result by 2", text="30. QED."),
    Line(
        last="science fair on Friday",
        text="A fair.",
        fields={"event_name": "science fair", "name": "science fair", **_EVENT},
    ),
    Line(last=r"my (real )?name again", recall=r"name is (?!not)(\w+)", text="{}"),
    Line(last=r"my (real )?name is \w+", text="Hello."),
    Line(last=r"^(Hello|how are you)[.!?]*$|Say hello", text="Hello, it is nice to meet you."),
    Line(last=r"123 \* 456|\d+ \* \d+ and explain|both numbers|Divide", text="It is a number."),
    Line(last="capital of South Korea", text="Seoul."),
    Line(last="story about a cat in 20 words", text="A cat slept."),
)


class Output:
    """Scripted output.

    Args:
        tokenizer: Tokenizer of the model.
        thoughts: Reasoning with its marks.
        answer: Text after it.
        mark: Text between the two.
    """

    def __init__(self, tokenizer: Tokenizer, thoughts: str, answer: str, mark: str) -> None:
        self._tokenizer, self._mark = tokenizer, mark
        self._answer = self._encode(answer)
        self._tokens = [*self._encode(thoughts), *self._answer]

    def _encode(self, text: str) -> list[int]:
        return [*self._tokenizer.encode(text, special_tokens=False)]

    def next(self, generated: Sequence[int], end: Sequence[int]) -> Sequence[int]:
        """Return the likeliest next tokens; none while a budget ends the reasoning.

        Args:
            generated: Generated tokens.
            end: EOS tokens.
        """
        tokens, place = self._tokens, len(generated)
        if [*generated] != tokens[:place]:  # a budget has ended the reasoning
            _, found, rest = self._tokenizer.spelled(generated).rpartition(self._mark)
            if not found:
                return ()
            tokens, place = self._answer, len(self._encode(rest.lstrip()))
        return tokens[place : place + 1] or end


def _texts(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for message in messages:
        content = message.get("content") or ""
        parts = content if isinstance(content, list) else [{"text": content}]
        yield "".join(str(part.get("text", "")) for part in parts)


def line_of(messages: Sequence[Mapping[str, Any]], prompt: str) -> Line | None:
    """Return the line of the script for a chat; None if there is none.

    Args:
        messages: Messages of the chat.
        prompt: Rendered messages.
    """
    *_, last = _texts(messages)
    texts = ("last", last), ("prompt", prompt)
    fitting = (
        line
        for line in SCRIPT
        if all(re.search(getattr(line, name), text, re.DOTALL) for name, text in texts)
    )
    return next(fitting, None)


def scripted(
    session: TextGenerationSession,
    body: ChatRequest,
    known: ChatFormat,
    prompt: Sequence[int],
    options: ChatOptions,
    grammar: str = "",
) -> "Output | None":
    """Return the scripted output for a chat; None if it is not in the script.

    Args:
        session: Session of the model.
        body: Body of the request.
        known: Format of the outputs of the template.
        prompt: Token ids of the prompt.
        options: Options of the chat template.
        grammar: Source of the grammar of a structured output; empty for free text.
    """
    assert session.tokenizer
    assert session.chat_template
    messages = [message.as_template_input() for message in body.messages]
    source = session.chat_template.source(options)
    values = {**options.values(source), "add_generation_prompt": False}

    def rendered(*answer: Mapping[str, Any], **more: Any) -> str:
        return source.probe(source.normalized([*messages, *answer]), **{**values, **more})

    before = rendered(add_generation_prompt=True)
    line = line_of(messages, before)
    if line is None:
        return None
    text, calls = _said(line, messages, body, grammar)
    answer = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
    whole = rendered(answer)
    plain = rendered({"role": "assistant", "content": _MARK})
    tail = re.search(r"[<\[\n].*$|$", _ended_alike(plain, whole), re.DOTALL)
    assert tail
    begun = re.sub(r"[<\[][^<>\[\]]*$", "", whole[: _common(before, whole)])  # whole marks
    output = whole[len(begun) :].removesuffix(tail[0]).lstrip("\n")
    end = prompt_end(session.tokenizer, prompt)
    mark = (ANALYSIS if _has_channels(known) else known.reasoning or ANALYSIS).end.strip()
    return Output(session.tokenizer, _thoughts(line, known, end), output, mark)


def _said(
    line: Line, messages: Sequence[Mapping[str, Any]], body: ChatRequest, grammar: str
) -> tuple[str, list[dict[str, Any]]]:
    """Return the text and the calls of a line."""
    offered = {tool.function.name for tool in body.offered}
    if isinstance(body.tool_choice, NamedTool):
        offered = {body.tool_choice.function.name}
    calls = [
        {
            "id": f"call0000{number}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for number, (name, arguments) in enumerate(line.calls)
        if name in offered
    ]
    if grammar and line.fields:
        schema = json.loads(grammar)["grammars"][0]["json_schema"]
        properties = schema.get("properties", line.fields)
        kept = {key: value for key, value in line.fields.items() if key in properties}
        return json.dumps(kept), []
    recalled = re.findall(line.recall, " ".join(_texts(messages))) if line.recall else [""]
    return "" if calls else line.text.format(recalled[-1]) or "Done.", calls


def _thoughts(line: Line, known: ChatFormat, prompt: str) -> str:
    """Return the reasoning of a line with its marks."""
    reasoning = ANALYSIS if _has_channels(known) else known.reasoning
    if reasoning is None or known.thoughts(prompt) == "ended":
        return ""
    is_open = known.is_open(prompt)
    if not (line.thoughts or is_open):
        return ""
    begin = "" if is_open else reasoning.begin
    return f"{begin}{line.thoughts}{reasoning.end}"


def _ended_alike(first: str, second: str) -> str:
    """Return the common end of two texts."""
    return first[len(first) - _common(first[::-1], second[::-1]) :]


def _has_channels(known: ChatFormat) -> bool:
    return known.calls is not None and known.calls.channels


def _common(first: str, second: str) -> int:
    """Return the length of the common beginning of two texts."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(first), len(second)))
