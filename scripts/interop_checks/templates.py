# SPDX-License-Identifier: Apache-2.0
"""Published chat templates: prompts of requests beside those of `apply_chat_template` in unpatched transformers."""

import copy
import importlib.resources
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from jinja2 import TemplateError
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from interop_checks.reasons import FAILS, FOREIGN, PASS
from interop_checks.sources import unpacked
from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.text.chat_template import ChatTemplate
from qeff_zoo.runtime.text.message_order import arrangements
from qeff_zoo.runtime.text.template_source import FAILURES
from qeff_zoo.serving.requests.schemas import ChatRequest
from qeff_zoo.serving.requests.tools import chat_options

#: Source distributions with templates, and parts of their paths.
SOURCES: Mapping[str, Sequence[str]] = {
    "llama-cpp-python": ("/models/templates/",),
    "vllm": ("/examples/", "/vllm/transformers_utils/chat_templates/"),
}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
Message: TypeAlias = dict[str, Any]
Form: TypeAlias = Callable[[Message], Message]


def _parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def _called(*calls: tuple[str, dict[str, Any]], **more: Any) -> Message:
    """Return a message with calls, as OpenAI's clients send it."""
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": f"call0000{number}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for number, (name, arguments) in enumerate(calls)
        ],
        **more,
    }


def _result(number: int, name: str, content: Any) -> Message:
    return {"role": "tool", "tool_call_id": f"call0000{number}", "name": name, "content": content}


_SYSTEM = {"role": "system", "content": "Be brief."}
_DEVELOPER = {"role": "developer", "content": "Be brief."}
_QUESTION = {"role": "user", "content": "Is it warm in Rome?"}
_REPLY = {"role": "assistant", "content": "It is."}
_THOUGHT = {**_REPLY, "reasoning_content": "Rome is in the south."}
_NEXT = {"role": "user", "content": "And in Oslo?"}
_LATER = {"role": "system", "content": "Answer in French."}
_ROME, _OSLO = ("get_weather", {"city": "Rome"}), ("get_weather", {"city": "Oslo"})
_NESTED = ("plan_trip", {"days": 2, "by": ["train", "bus"], "stay": {"stars": 3.5, "sea": True}})
_SUNNY, _SNOW = _result(0, "get_weather", "sunny, 24 °C"), _result(1, "get_weather", "snow")
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Call {name}.",
            "parameters": {
                "type": "object",
                "properties": {one: {"type": kind, "description": one} for one, kind in fields},
                "required": [fields[0][0]],
            },
        },
    }
    for name, fields in (
        ("get_weather", (("city", "string"),)),
        ("plan_trip", (("days", "integer"), ("by", "array"), ("stay", "object"))),
    )
]
_DOCUMENTS = [{"title": "Rome", "text": "Rome is warm."}, {"title": "Oslo", "text": "Oslo is not."}]

#: Bodies of requests, without their model.
CONVERSATIONS: Mapping[str, dict[str, Any]] = {
    "question": {"messages": [_QUESTION]},
    "system": {"messages": [_SYSTEM, _QUESTION]},
    "turns": {"messages": [_QUESTION, _REPLY, _NEXT]},
    "system and turns": {"messages": [_SYSTEM, _QUESTION, _REPLY, _NEXT]},
    "developer": {"messages": [_DEVELOPER, _QUESTION]},
    "two system messages": {"messages": [_SYSTEM, _LATER, _QUESTION]},
    "a later system message": {"messages": [_SYSTEM, _QUESTION, _REPLY, _LATER, _NEXT]},
    "two questions": {"messages": [_QUESTION, _NEXT]},
    "scripts and spaces": {
        "messages": [{"role": "user", "content": "  Grüße, 世界 👩‍🚀 <b>&amp;</b>\n\n{{ x }} \n"}]
    },
    "empty text": {"messages": [{"role": "user", "content": ""}]},
    "one part": {"messages": [{"role": "user", "content": _parts("Is it warm?")}]},
    "two parts": {"messages": [{"role": "user", "content": _parts("Is it ", "warm?")}]},
    "parts of all roles": {
        "messages": [
            {"role": "system", "content": _parts("Be ", "brief.")},
            {"role": "user", "content": _parts("Is it ", "warm?")},
            {"role": "assistant", "content": _parts("It ", "is.")},
            _NEXT,
        ]
    },
    "reasoning": {"messages": [_QUESTION, _THOUGHT, _NEXT]},
    "tools": {"messages": [_QUESTION], "tools": _TOOLS},
    "tools and system": {"messages": [_SYSTEM, _QUESTION, _REPLY, _NEXT], "tools": _TOOLS},
    "call": {"messages": [_QUESTION, _called(_ROME), _SUNNY], "tools": _TOOLS},
    "calls": {
        "messages": [_SYSTEM, _QUESTION, _called(_ROME, _OSLO), _SUNNY, _SNOW],
        "tools": _TOOLS,
    },
    "call with a text": {
        "messages": [_QUESTION, _called(_ROME, content="I will look."), _SUNNY],
        "tools": _TOOLS,
    },
    "nested arguments": {
        "messages": [_QUESTION, _called(_NESTED), _result(0, "plan_trip", '{"price": 80}')],
        "tools": _TOOLS,
    },
    "answer after a call": {
        "messages": [_QUESTION, _called(_ROME), _SUNNY, _REPLY, _NEXT],
        "tools": _TOOLS,
    },
    "result in parts": {
        "messages": [_QUESTION, _called(_ROME), {**_SUNNY, "content": _parts("sun", "ny")}],
        "tools": _TOOLS,
    },
    "reasoning before a call": {
        "messages": [_QUESTION, _called(_ROME, reasoning_content="I must look."), _SUNNY],
        "tools": _TOOLS,
    },
    "without thinking": {
        "messages": [_QUESTION],
        "chat_template_kwargs": {"enable_thinking": False, "thinking": False},
    },
    "effort": {"messages": [_SYSTEM, _QUESTION], "reasoning_effort": "high"},
    "no generation prompt": {"messages": [_QUESTION, _REPLY], "add_generation_prompt": False},
    "continued": {"messages": [_QUESTION, _REPLY], "continue_final_message": True},
    "documents": {"messages": [_QUESTION], "documents": _DOCUMENTS},
}


def _text(message: Message) -> str:
    content = message["content"] or ""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _joined(role: str, message: Message) -> Message:
    return {**message, "content": _text(message)} if message["role"] == role else message


def _in_parts(message: Message) -> Message:
    content = message["content"]
    return {**message, "content": _parts(content) if isinstance(content, str) else content}


def _in_json(message: Message) -> Message:
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(arguments)}}
        for call in message.get("tool_calls", ())
        for arguments in [call["function"]["arguments"]]
    ]
    return {**message, "tool_calls": calls} if calls else message


def _as_system(message: Message) -> Message:
    return {**message, "role": "system"} if message["role"] == "developer" else message


_AS_SYSTEM = "the role developer is system"
#: Forms into which messages are brought for templates that do not render the usual one, with their reasons.
FORMS: Sequence[tuple[str, Form]] = (
    *(
        ("texts of parts are joined", partial(_joined, role))
        for role in ("system", "user", "assistant", "tool")
    ),
    ("a text is a part", _in_parts),
    ("arguments are JSON text", _in_json),
    (_AS_SYSTEM, _as_system),
)


def run(cache: Path, only: Sequence[str]) -> list[dict[str, Any]]:
    """Render all conversations with all templates; return a row for each.

    Args:
        cache: Folder of the distributions.
        only: Texts, one of which the name of a template has; empty for all.
    """
    folders = [unpacked(name, parts, cache / "templates") for name, parts in SOURCES.items()]
    return [
        {"result": result, "test": f"{name}: {title}", "reason": reason}
        for name, text in published([*folders, installed()])
        if not only or any(one in name for one in only)
        for title, (result, reason) in compared(text).items()
    ]


def installed() -> Path:
    """Return the folder of trl's templates."""
    return Path(str(importlib.resources.files("trl"))) / "chat_templates"


def published(folders: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """Yield names and texts of the different templates in folders."""
    known = set()
    for folder in folders:
        for path in sorted(folder.rglob("*.jinja")):
            text = path.read_text(encoding="utf-8")
            if text not in known:
                known.add(text)
                yield f"{folder.name}/{path.name}", text


def compared(template: str) -> dict[str, tuple[str, str]]:
    """Return the result and the reason of each conversation with a template."""
    ours = ChatTemplate(template, TOKENS)
    theirs = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE()), **TOKENS)
    theirs.chat_template = template
    return {title: _compared(ours, theirs, body) for title, body in CONVERSATIONS.items()}


def _compared(
    ours: ChatTemplate, theirs: PreTrainedTokenizerFast, body: Mapping[str, Any]
) -> tuple[str, str]:
    request = ChatRequest(model="", **body)
    messages = [message.as_template_input() for message in request.messages]
    prompt = _tried(lambda: ours.render(messages, chat_options(request)))
    usual = _tried(lambda: _expected(theirs, body))
    if isinstance(prompt, Exception):
        if not isinstance(usual, Exception):
            return FAILS, str(prompt)
        return PASS, "both refuse"
    if prompt == usual:
        return PASS, ""
    for forms in _subsets(FORMS):
        reasons = dict(forms).keys()
        if (reasons == {_AS_SYSTEM} or not _is_rendered(usual, body)) and prompt == _tried(
            lambda forms=forms: _expected(theirs, body, forms)  # type: ignore[misc]
        ):
            return PASS, f"equal if {' and '.join(reasons)}"
    if isinstance(usual, TemplateError) or not _is_rendered(usual, body):
        for one, forms in itertools.product(arrangements(body["messages"]), ((), *_subsets(FORMS))):
            arranged = {**body, "messages": one}
            if prompt == _tried(
                lambda arranged=arranged, forms=forms: _expected(theirs, arranged, forms)  # type: ignore[misc]
            ):
                return PASS, "equal in an order of roles that the template takes"
    if isinstance(usual, TypeError):
        return FOREIGN, f"transformers fails: {usual}"
    return FAILS, f"{prompt!r} is not {usual!r}"


def _tried(render: Callable[[], str]) -> str | Exception:
    try:
        return render()
    except (GenerationError, *FAILURES) as error:
        return error


def _is_rendered(prompt: str | Exception, body: Mapping[str, Any]) -> bool:
    """Return whether a prompt has every text of a conversation, and no printed list."""
    if isinstance(prompt, Exception) or re.search("['\"]type['\"]: ['\"]text['\"]", prompt):
        return False
    texts = [_text(message).strip() for message in body["messages"]]
    calls = [call for message in body["messages"] for call in message.get("tool_calls", ())]
    return all(one in prompt for one in texts + [call["function"]["name"] for call in calls])


def _subsets(forms: Sequence[tuple[str, Form]]) -> Iterator[Sequence[tuple[str, Form]]]:
    for size in range(1, len(forms) + 1):
        yield from itertools.combinations(forms, size)


def _expected(
    tokenizer: PreTrainedTokenizerFast,
    body: Mapping[str, Any],
    forms: Sequence[tuple[str, Form]] = (),
) -> str:
    """Return the prompt of transformers.

    Args:
        tokenizer: Tokenizer with the template.
        body: Body of the request.
        forms: Forms into which the messages are brought.
    """
    messages = [_plain(message) for message in body["messages"]]
    for _, form in forms:
        messages = [form(message) for message in messages]
    given = {"add_generation_prompt": not body.get("continue_final_message"), **body}
    del given["messages"]
    effort = given.pop("reasoning_effort", None)
    given |= given.pop("chat_template_kwargs", {})
    if effort:
        given |= {"reasoning_effort": effort, "enable_thinking": True, "thinking": True}
    return str(tokenizer.apply_chat_template(messages, tokenize=False, **given))


def _plain(message: Message) -> Message:
    """Return a message without nulls, and with arguments as objects: the form that templates are written for."""
    found = copy.deepcopy({**message, "content": message["content"] or ""})
    for call in found.get("tool_calls", ()):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return found
