# SPDX-License-Identifier: Apache-2.0
"""Calls of a conversation whose arguments are no JSON object: cut at a limit, or broken by the model."""

import json
from typing import Any

import jinja2
import pytest
from chat_templates import TEMPLATES
from fixtures_serving import MODEL, post, running
from transformers.utils.chat_template_utils import render_jinja_template

from qeff_zoo.runtime import Engine
from qeff_zoo.runtime.text.chat_template import ChatTemplate
from qeff_zoo.runtime.text.template_source import RAW_ARGUMENTS, TemplateSource

CUT = '{"path": "a.txt", "text": "He said '
BROKEN = [CUT, '{"a": "b" and "c"}', "no JSON", "[1, 2]", '"a text"', "5", "[" * 5000]
EMPTY: list[Any] = ["", "  ", "null", None, "{}", {}]
#: Templates of published kinds that are not in `TEMPLATES`.
OTHERS = {
    "text or JSON": "{{ f.arguments if f.arguments is string else f.arguments | tojson }}",
    "JSON text alone": "{{ '{' + f.arguments }}",
    "an object or nothing": "{% if f.arguments is mapping %}{{ f.arguments | tojson }}{% endif %}",
    "items of an object": "{% for k, v in f.arguments | items %}{{ k }}: {{ v }}{% endfor %}",
    "refuses a text": "{% if f.arguments is string %}{{ raise_exception('an object') }}{% endif %}"
    "{{ f.arguments | tojson }}",
}
SOURCES = dict(TEMPLATES) | {
    name: "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{% set f = c.function %}"
    + written
    + "{% endfor %}{% endfor %}"
    for name, written in OTHERS.items()
}


def conversation(arguments: Any) -> list[dict[str, Any]]:
    function = {"name": "write", "arguments": arguments}
    call = {"id": "abcdefghi", "type": "function", "function": function}
    return [
        {"role": "user", "content": "Write"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefghi", "name": "write", "content": "wrong"},
    ]


def by_transformers(source: str, arguments: Any) -> str:
    texts, _ = render_jinja_template([conversation(arguments)], chat_template=source)
    return str(texts[0])


@pytest.mark.parametrize("name", SOURCES)
def test_broken_arguments_reach_a_template_as_their_text(name: str) -> None:
    """As transformers renders the text; or an object with it, where the template renders no text."""
    source = TemplateSource(SOURCES[name], {})
    for broken in BROKEN:
        try:
            expected = by_transformers(SOURCES[name], broken)
        except (TypeError, jinja2.TemplateError):
            expected = ""
        if not any(text in expected for text in (broken, json.dumps(broken)[1:-1])):
            expected = by_transformers(SOURCES[name], {RAW_ARGUMENTS: broken})
        assert source.render(conversation(broken), add_generation_prompt=False) == expected
        assert any(text in expected for text in (broken, json.dumps(broken)[1:-1]))


@pytest.mark.parametrize("name", SOURCES)
def test_absent_arguments_are_an_empty_object(name: str) -> None:
    source = TemplateSource(SOURCES[name], {})
    assert len({source.render(conversation(empty)) for empty in EMPTY}) == 1
    listed = source.render(conversation([1, 2]))
    assert listed == source.render(conversation("[1, 2]"))


CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("chat/completions", {"messages": conversation(CUT)}),
    "responses": (
        "responses",
        {
            "input": [
                {"role": "user", "content": "Write"},
                {"type": "function_call", "call_id": "c", "name": "write", "arguments": CUT},
                {"type": "function_call_output", "call_id": "c", "output": "wrong"},
            ]
        },
    ),
    "messages": (
        "messages",
        {
            "max_tokens": 1,
            "messages": [
                {"role": "user", "content": "Write"},
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "c", "name": "write", "input": CUT}],
                },
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "c", "content": "wrong"}],
                },
            ],
        },
    ),
    "ollama": (
        "api/chat",
        {
            "stream": False,
            "options": {"num_predict": 1},
            "messages": [
                {"role": "user", "content": "Write"},
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"function": {"name": "write", "arguments": CUT}}],
                },
                {"role": "tool", "tool_name": "write", "content": "wrong"},
            ],
        },
    ),
}


def test_every_api_answers_after_a_broken_call(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = ChatTemplate(TEMPLATES["hermes"], {"bos_token": "<|begin|>"})
    monkeypatch.setattr(engine.session, "chat_template", template)
    expected = len(engine.session.encode_chat(conversation(CUT)))
    found = {}
    with running(engine) as url:
        for name, (path, body) in CALLS.items():
            limit = {"chat": {"max_tokens": 1}, "responses": {"max_output_tokens": 1}}.get(name, {})
            root = url.removesuffix("/v1") if name == "ollama" else url
            content = json.dumps({"model": MODEL, **body, **limit}).encode()
            status, answer = post(root, path, content)
            assert status == 200, answer
            usage = answer.get("usage", answer)
            names = ("prompt_tokens", "input_tokens", "prompt_eval_count")
            found[name] = next(usage[key] for key in names if key in usage)
            found[name] += usage.get("cache_read_input_tokens", 0)
    assert found == dict.fromkeys(CALLS, expected)
