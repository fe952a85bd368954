# SPDX-License-Identifier: Apache-2.0
"""Conversations of agents in published chat templates: what a template refuses is rendered in another order of roles.

The witness is transformers, which renders the same conversation as its template takes it.
"""

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import pytest
from checkout import TESTS
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.text.chat_template import ChatOptions, ChatTemplate
from qeff_zoo.serving.apis.anthropic.schemas import MessagesRequest
from qeff_zoo.serving.requests.schemas import ChatRequest

Messages = Sequence[Mapping[str, Any]]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
#: Form of the templates of Mistral: roles alternate, calls and results of tools aside.
MISTRAL = (
    "{{ bos_token }}{% set rest = messages %}{% if messages[0].role == 'system' %}"
    "[SYSTEM_PROMPT]{{ messages[0].content }}[/SYSTEM_PROMPT]{% set rest = messages[1:] %}{% endif %}"
    "{% set ns = namespace(turn=0) %}{% for m in rest %}"
    "{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
    "{% if (m.role == 'user') != (ns.turn % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set ns.turn = ns.turn + 1 %}{% endif %}"
    "{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
    "{% elif m.tool_calls %}[TOOL_CALLS]{{ m.tool_calls[0].function | tojson }}{{ eos_token }}"
    "{% elif m.role == 'assistant' %}{{ m.content }}{{ eos_token }}"
    "{% elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported') }}{% endif %}{% endfor %}"
)
#: Form of the template of Llama 2: the system message is part of the first message of the user.
LLAMA_2 = (
    "{% set rest = messages %}{% set system = '' %}{% if messages[0].role == 'system' %}"
    "{% set rest = messages[1:] %}{% set system = '<<SYS>>\\n' + messages[0].content + '\\n<</SYS>>\\n\\n' %}"
    "{% endif %}{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}{{ bos_token }}[INST] {{ (system if loop.first else '') + m.content }} [/INST]"
    "{% else %} {{ m.content }} {{ eos_token }}{% endif %}{% endfor %}"
)
#: Form of the template of Mistral Nemo: the system message comes before a question at the end alone.
NEMO = (
    "{{ bos_token }}{% set ns = namespace(system='') %}{% for m in messages %}"
    "{% if m.role == 'system' %}{% set ns.system = m.content + '\\n\\n' %}"
    "{% elif m.role == 'user' %}[INST]{{ (ns.system if loop.last else '') + m.content }}[/INST]"
    "{% elif m.tool_calls %}[TOOL_CALLS]{{ m.tool_calls[0].function | tojson }}{{ eos_token }}"
    "{% elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]"
    "{% else %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
#: A template that renders turns alone; one with a system message, and the word developer elsewhere.
TURNS = "{% for m in messages if m.role in ('user', 'assistant') %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
NAMED = "The developer wrote: {{ messages[0].content if messages[0].role == 'system' }}\n" + TURNS


def _message(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


SYSTEM, DEVELOPER = _message("system", "Be brief."), _message("developer", "Ask first.")
QUESTION, ANSWER, NEXT = (
    _message("user", "Is it warm?"),
    _message("assistant", "It is."),
    _message("user", "And now?"),
)
LATER = _message("system", "The sandbox is read-only.")
_FUNCTION = {"name": "look", "arguments": {"at": "Rome"}}
CALL = {
    **_message("assistant", ""),
    "tool_calls": [{"id": "call12345", "type": "function", "function": _FUNCTION}],
}
RESULT = {**_message("tool", "24 °C"), "tool_call_id": "call12345", "name": "look"}
BOTH = "Be brief.\n\nAsk first."
LATER_TEXT = "The sandbox is read-only.\n\nAnd now?"

#: Conversations with the one that each template takes; None if it takes them as they are.
CASES: dict[str, tuple[Messages, dict[str, Messages | None]]] = {
    "two system messages": (
        [SYSTEM, DEVELOPER, QUESTION],
        {
            "mistral": [_message("system", BOTH), QUESTION],
            "llama_2": [_message("system", BOTH), QUESTION],
            "gemma.jinja": [_message("user", f"{BOTH}\n\nIs it warm?")],
            "gemma3.jinja": [_message("system", BOTH), QUESTION],
            "qwen3_5_think.jinja": [_message("system", BOTH), QUESTION],
            "gptoss.jinja": [_message("system", BOTH), QUESTION],
            "cohere2.jinja": [SYSTEM, {**DEVELOPER, "role": "system"}, QUESTION],
        },
    ),
    "a system message": (
        [SYSTEM, QUESTION],
        {
            "gemma.jinja": [_message("user", "Be brief.\n\nIs it warm?")],
            "gptoss.jinja": None,
            "nemo": None,
            "turns": [_message("user", "Be brief.\n\nIs it warm?")],
        },
    ),
    "a developer's message": (
        [DEVELOPER, QUESTION],
        {
            "named": [{**DEVELOPER, "role": "system"}, QUESTION],
            "turns": [_message("user", "Ask first.\n\nIs it warm?")],
            "nemo": [{**DEVELOPER, "role": "system"}, QUESTION],
        },
    ),
    "the result of a tool at the end": (
        [SYSTEM, QUESTION, CALL, RESULT],
        {
            "nemo": [_message("user", "Be brief.\n\nIs it warm?"), CALL, RESULT],
            "mistral": None,
            "qwen3.jinja": None,
        },
    ),
    "a system message that only sets the template": (
        [_message("system", "/no_think"), QUESTION],
        {"flags": None},
    ),
    "no system message": ([QUESTION, CALL, RESULT], {"nemo": None, "turns": None}),
    "a later system message": (
        [SYSTEM, QUESTION, ANSWER, LATER, NEXT],
        {
            "mistral": [SYSTEM, QUESTION, ANSWER, _message("user", LATER_TEXT)],
            "llama_2": [SYSTEM, QUESTION, ANSWER, _message("user", LATER_TEXT)],
            "gemma3.jinja": [SYSTEM, QUESTION, ANSWER, _message("user", LATER_TEXT)],
            "qwen3_5_think.jinja": [SYSTEM, QUESTION, ANSWER, {**LATER, "role": "user"}, NEXT],
            "gptoss.jinja": [SYSTEM, QUESTION, ANSWER, {**LATER, "role": "user"}, NEXT],
            "qwen3.jinja": None,
        },
    ),
    "roles that do not alternate": (
        [QUESTION, NEXT, ANSWER, {**ANSWER, "content": "Still."}, QUESTION],
        {
            "gemma3.jinja": [
                _message("user", "Is it warm?\n\nAnd now?"),
                _message("assistant", "It is.\n\nStill."),
                QUESTION,
            ],
            "qwen3.jinja": None,
        },
    ),
    "images": (
        [
            SYSTEM,
            QUESTION,
            _message("user", [{"type": "image"}, {"type": "text", "text": "Here."}]),
        ],
        {
            "gemma3.jinja": [
                SYSTEM,
                _message(
                    "user",
                    [
                        {"type": "text", "text": "Is it warm?"},
                        {"type": "text", "text": "\n\n"},
                        {"type": "image"},
                        {"type": "text", "text": "Here."},
                    ],
                ),
            ]
        },
    ),
    "text after a result": (
        [SYSTEM, DEVELOPER, QUESTION, CALL, RESULT, NEXT, CALL, RESULT],
        {
            "mistral": [
                _message("system", BOTH),
                QUESTION,
                CALL,
                {**RESULT, "content": "24 °C\n\nAnd now?"},
                CALL,
                RESULT,
            ],
            "qwen3_5_think.jinja": [
                _message("system", BOTH),
                *[QUESTION, CALL, RESULT, NEXT, CALL, RESULT],
            ],
        },
    ),
}


def _source(name: str) -> str:
    known = {"mistral": MISTRAL, "llama_2": LLAMA_2, "nemo": NEMO, "turns": TURNS}
    known |= {"named": NAMED, "flags": f"{{{{ messages[0].content == '/no_think' }}}}\n{TURNS}"}
    return known.get(name) or files("trl").joinpath("chat_templates", name).read_text()


@pytest.mark.parametrize(
    ("case", "name"), [(case, name) for case, (_, forms) in CASES.items() for name in forms]
)
def test_agents_messages_are_rendered_as_the_template_takes_them(case: str, name: str) -> None:
    messages, forms = CASES[case]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE()), **TOKENS)
    source = _source(name)
    expected = tokenizer.apply_chat_template(
        [*(forms[name] or messages)],
        chat_template=source,
        tokenize=False,
        add_generation_prompt=True,
    )
    assert ChatTemplate(source, TOKENS).render(messages) == expected


@pytest.mark.parametrize(
    ("name", "messages", "reason"),
    [
        ("gemma3.jinja", [QUESTION, CALL, RESULT], "roles must alternate"),  # renders no calls
        ("llama_2", [ANSWER, QUESTION], "roles must alternate"),
        ("mistral", [QUESTION, _message("critic", "No.")], "Only user and assistant"),
    ],
)
def test_a_conversation_without_such_a_form_is_refused(
    name: str, messages: Messages, reason: str
) -> None:
    with pytest.raises(GenerationError, match=f"The chat template fails: .*{reason}"):
        ChatTemplate(_source(name), TOKENS).render(messages)


@pytest.mark.parametrize("name", ["mistral", "qwen3_5_think.jinja", "gptoss.jinja"])
def test_recorded_requests_of_claude_code_keep_every_instruction(name: str) -> None:
    """Its second system message comes after the first message of the user."""
    agent = json.loads((TESTS / "agent_requests.json").read_bytes())["claude-code"]
    first, *changes = agent["bodies"]
    for body in ({**first, **change} for change in ({}, *changes)):
        messages = MessagesRequest(**body).as_chat()["messages"]
        roles = [message["role"] for message in messages]
        assert roles[:3] == ["system", "user", "system"]
        sent = [
            message.as_template_input()
            for message in ChatRequest(model="", messages=messages).messages
        ]
        prompt = ChatTemplate(_source(name), TOKENS).render(sent)
        places = [prompt.index(str(one["content"]).strip()) for one in (sent[0], sent[2])]
        assert places == sorted(places)


def test_a_message_that_joins_another_is_continued() -> None:
    first, last = {**ANSWER, "content": "It is"}, {**ANSWER, "content": "not"}
    options = ChatOptions(continue_final_message=True)
    found = ChatTemplate(MISTRAL, TOKENS).render([QUESTION, first, last], options)
    assert found == "<s>[INST]Is it warm?[/INST]It is\n\nnot"


def test_a_template_that_fails_is_rendered_once() -> None:
    """Only a refusal has other forms: a template that exceeds its budget, or is wrong, does so in each."""
    source = "{% for m in messages %}{{ m.content.wrong.name }}{% endfor %}"
    template = ChatTemplate(source, TOKENS).source()
    calls = []
    rendered = template._sandbox.rendered
    template._sandbox.rendered = lambda *args: calls.append(1) or rendered(*args)  # type: ignore[method-assign, func-returns-value]
    template.normalized([QUESTION])  # probes of the forms of messages
    before = len(calls)
    with pytest.raises(GenerationError, match="fails"):
        template.render([QUESTION, QUESTION])
    assert len(calls) == before + 1


@pytest.mark.parametrize(
    ("names", "expected"),
    [(("ann", "ann"), "ann"), (("ann", "bob"), None), ((None, "bob"), None), (("ann", None), None)],
)
def test_joined_messages_have_the_name_of_both(
    names: tuple[str | None, str | None], expected: str | None
) -> None:
    source = (
        "{% for m in messages %}{% if loop.index0 %}{{ raise_exception('roles must alternate') }}{% endif %}"
        "{{ m.name or 'user' }}: {{ m.content }}{% endfor %}"
    )
    turns = [{**QUESTION, **({"name": name} if name else {})} for name in names]
    found = ChatTemplate(source, TOKENS).render(turns)
    assert found == f"{expected or 'user'}: Is it warm?\n\nIs it warm?"
