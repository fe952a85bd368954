# SPDX-License-Identifier: Apache-2.0
"""Agents on a real server with a scripted program: two tools and ten turns, over each API."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import jsonschema
import pytest
from fixtures_serving import MODEL, TIMEOUT, connect, running
from scripted_program import TEMPLATE, opening

from qeff_zoo.package import Package
from qeff_zoo.runtime import Engine
from qeff_zoo.runtime.text.chat_template import ChatTemplate
from qeff_zoo.serving.requests.tools import ChatFormats
from qeff_zoo.sessions import open_session

pytestmark = pytest.mark.turns(2)

LEVELS = ("auto", "function", "parameter")
NAMES = ("double", "add_one")
TURNS = 10
PLAN = "\n".join(
    [
        'call double {"n": 1}',
        *(f'call {NAMES[turn % 2]} {{"n": RESULT}}' for turn in range(1, TURNS)),
        "say It is RESULT.",
    ]
)
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
FUNCTIONS = [{"name": name, "parameters": SCHEMA} for name in NAMES]
TOOLS: list[Any] = [{"type": "function", "function": function} for function in FUNCTIONS]
#: Arguments and answer of the ten turns.
EXPECTED = [1, 2, 3, 6, 7, 14, 15, 30, 31, 62], "It is 63."


@pytest.fixture(scope="module")
def wayward(trained: Package) -> Iterator[Engine]:
    """Give an engine with the scripted program."""
    session: Any = open_session(trained, opening=opening(trained))
    session.chat_template = ChatTemplate(TEMPLATE, {"bos_token": "<|begin|>"})
    with Engine(session) as engine:
        yield engine


@pytest.fixture(scope="module")
def scripted(wayward: Engine) -> Iterator[str]:
    """Give the URL of a server with the scripted program."""
    with running(wayward) as url:
        yield url


class Tools:
    """The two tools, which note their arguments."""

    def __init__(self) -> None:
        self.arguments: list[int] = []

    def run(self, name: str, arguments: Any) -> str:
        known = json.loads(arguments) if isinstance(arguments, str) else arguments
        self.arguments.append(known["n"])
        return str({"double": 2 * known["n"], "add_one": known["n"] + 1}[name])


def by_chat(url: str, tools: Tools) -> str:
    messages: list[Any] = [{"role": "user", "content": PLAN}]
    with connect(url) as client:
        while True:
            answer = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
            message = answer.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                return message.content or ""
            for call in message.tool_calls:
                assert call.type == "function"
                result = tools.run(call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def by_streams(url: str, tools: Tools) -> str:
    messages: list[Any] = [{"role": "user", "content": PLAN}]
    with connect(url) as client:
        while True:
            with client.chat.completions.stream(
                model=MODEL, messages=messages, tools=TOOLS
            ) as stream:
                message = stream.get_final_completion().choices[0].message
            messages.append(message)
            if not message.tool_calls:
                return message.content or ""
            for call in message.tool_calls:
                result = tools.run(call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def by_responses(url: str, tools: Tools) -> str:
    offered: list[Any] = [{"type": "function", **function} for function in FUNCTIONS]
    new: Any = PLAN
    before = None
    with connect(url) as client:
        while True:
            answer = client.responses.create(
                model=MODEL, input=new, tools=offered, previous_response_id=before
            )
            before, new = answer.id, []
            for call in answer.output:
                if call.type == "function_call":
                    result = tools.run(call.name, call.arguments)
                    new += [
                        {"type": "function_call_output", "call_id": call.call_id, "output": result}
                    ]
            if not new:
                return answer.output_text


def by_messages(url: str, tools: Tools) -> str:
    offered: list[Any] = [{"name": name, "input_schema": SCHEMA} for name in NAMES]
    messages: list[Any] = [{"role": "user", "content": PLAN}]
    server = url.removesuffix("/v1")
    with anthropic.Anthropic(base_url=server, api_key="any", timeout=TIMEOUT) as client:
        while True:
            with client.messages.stream(
                model=MODEL, messages=messages, tools=offered, max_tokens=100
            ) as stream:
                answer = stream.get_final_message()
            messages.append({"role": "assistant", "content": answer.content})
            results = [
                {
                    "type": "tool_result",
                    "tool_use_id": block.id,
                    "content": tools.run(block.name, block.input),
                }
                for block in answer.content
                if block.type == "tool_use"
            ]
            if not results:
                return "".join(block.text for block in answer.content if block.type == "text")
            messages.append({"role": "user", "content": results})


@pytest.mark.parametrize("loop", [by_chat, by_streams, by_responses, by_messages])
def test_an_agent_calls_two_tools_in_ten_turns(
    scripted: str, loop: Callable[[str, Tools], str]
) -> None:
    tools = Tools()
    assert loop(scripted, tools) == EXPECTED[1]
    assert tools.arguments == EXPECTED[0]


def test_calls_of_one_turn_are_made_together(scripted: str) -> None:
    plan = 'call double {"n": 1} & call add_one {"n": 1}\nsay RESULT'
    with connect(scripted) as client:
        answer = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": plan}], tools=TOOLS
        )
    calls: Any = answer.choices[0].message.tool_calls
    assert [(call.function.name, call.function.arguments) for call in calls] == [
        ("double", '{"n": 1}'),
        ("add_one", '{"n": 1}'),
    ]
    assert answer.choices[0].finish_reason == "tool_calls"


CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
}
#: What the model wants to call, and the levels at which the call is as it wants it.
WANTED = (
    ('get_weather {"city": 5}', {("auto", False), ("function", False)}),
    ('burn {"city": "Rome"}', {("auto", False)}),
    (
        'get_weather {"city": "Rome"}',
        {(level, strict) for level in LEVELS for strict in (True, False)},
    ),
)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("level", LEVELS)
def test_calls_of_strict_functions_match_where_an_answer_is_free(
    wayward: Engine, level: Any, strict: bool
) -> None:
    function: Any = {
        "name": "get_weather",
        "parameters": {**CITY, "additionalProperties": False},
        "strict": strict,
    }
    tools: Any = [{"type": "function", "function": function}]
    formats = ChatFormats(tool_strict_level=level)
    with running(wayward, formats=formats) as url, connect(url) as client:

        def message(plan: str) -> Any:
            body: Any = {"messages": [{"role": "user", "content": plan}], "max_tokens": 200}
            answer = client.chat.completions.create(model=MODEL, **body, tools=tools)
            return answer.choices[0].message

        assert message("say It is {5}.").content == "It is {5}."
        for wanted, free in WANTED:
            (call,) = message(f"call {wanted}").tool_calls
            made = f"{call.function.name} {call.function.arguments}"
            assert (made == wanted) == ((level, strict) in free), (made, wanted)
            if strict or level == "parameter":
                jsonschema.validate(json.loads(call.function.arguments), function["parameters"])
            if strict or level != "auto":
                assert call.function.name == "get_weather"


def test_objects_are_closed_by_an_option(wayward: Engine) -> None:
    """A model that invents a key writes it, unless the server has the option."""
    plan: Any = [{"role": "user", "content": 'say {"city": "Rome", "more": 1}'}]
    form: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    for closes in (False, True):
        with (
            running(wayward, formats=ChatFormats(closes_objects=closes)) as url,
            connect(url) as client,
        ):
            answer = client.chat.completions.create(
                model=MODEL, messages=plan, response_format=form
            )
            found = json.loads(answer.choices[0].message.content or "")
            assert found == {"city": "Rome"} | ({} if closes else {"more": 1})
