# SPDX-License-Identifier: Apache-2.0
"""Whatever a body of any API holds, the server refuses it by name or answers, quickly, and never with status 500.

QEFF_ZOO_TEST_CASES=1000 tries that many bodies with each endpoint.
"""

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest
from fixtures_fuzz_bodies import Posts, calling, encoding, functions, looking
from fuzzing import CASES, changed, changes, example_count
from hypothesis import given, settings
from hypothesis import strategies as st

__all__ = ["calling", "encoding", "looking"]

FEW = settings(CASES, max_examples=example_count(120))
SECONDS = 5.0  # for one body, on a machine that does other things, too
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
URL = f"data:image/png;base64,{PNG}"
SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "string"}, "b": {"anyOf": [{"$ref": "#/$defs/c"}, {"enum": [1]}]}},
    "required": ["a"],
    "$defs": {"c": {"type": ["integer", "null"]}},
}
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
MESSAGES: Mapping[str, Any] = {
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "a", "signature": ""},
                {"type": "text", "text": "a"},
                {"type": "tool_use", "id": "a", "name": "f", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "b"}]}],
        },
    ],
    "system": [{"type": "text", "text": "a"}],
    "tools": [{"name": "f", "description": "a", "input_schema": SCHEMA}],
    "tool_choice": {"type": "tool", "name": "f"},
    "thinking": {"type": "enabled", "budget_tokens": 5},
}  # fmt: skip
#: Bodies that the server answers, by path.
BODIES: Mapping[str, Any] = {
    "/v1/chat/completions": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "a", "content": "b"},
        ],
        "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}, "max_completion_tokens": 2,
        "temperature": 0, "stop": ["z"], "logit_bias": {"1": 1}, "chat_template_kwargs": {"a": 1},
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
    },
    "/v1/responses": {
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "a"}], "summary": []},
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "a"}]},
        ],
        "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}], "max_output_tokens": 2,
        "tool_choice": {"type": "function", "name": "f"}, "metadata": {"a": "b"}, "instructions": "a",
        "reasoning": {"effort": "low"}, "text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}},
    },
    "/v1/messages": {**MESSAGES, "max_tokens": 2, "temperature": 0, "stop_sequences": ["z"]},
    "/v1/messages/count_tokens": MESSAGES,
    "/api/chat": {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "a", "thinking": "b", "tool_calls": [{"function": {"name": "f"}}]},
            {"role": "tool", "content": "a", "tool_name": "f"},
        ],
        "tools": [TOOL], "options": {"num_predict": 2, "temperature": 0, "stop": ["z"]}, "stream": False,
    },
    "/api/generate": {"prompt": "a", "system": "b", "options": {"num_predict": 2}, "format": SCHEMA, "stream": False},
    "/v1/completions": {
        "prompt": ["a", "b"], "max_tokens": 2, "logprobs": 1, "echo": True, "bad_words": ["z"], "stop_token_ids": [1],
        "structured_outputs": {"choice": ["a", "b"]},
    },
    "/tokenize": {"messages": [{"role": "user", "content": "a"}], "tools": [TOOL]},
    "/apply-template": {"messages": [{"role": "user", "content": "a", "extra": {"a": 1}}], "tools": [TOOL]},
    "/invocations": {"prompt": "a", "max_tokens": 2, "metadata": {"a": "b"}},
}  # fmt: skip
#: Bodies with an image, which a vision-language model reads.
SHOWN: Mapping[str, Any] = {
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": URL}}]}],
        "max_tokens": 1,
    },
    "/v1/responses": {
        "input": [{"role": "user", "content": [{"type": "input_image", "image_url": URL}]}],
        "max_output_tokens": 1,
    },
    "/v1/messages": {"messages": [{"role": "user", "content": [IMAGE]}], "max_tokens": 1},
    "/api/chat": {
        "messages": [{"role": "user", "content": "a", "images": [PNG]}],
        "options": {"num_predict": 1},
        "stream": False,
    },
    "/api/generate": {"prompt": "a", "images": [PNG], "options": {"num_predict": 1}, "stream": False},
}  # fmt: skip
_CHAT: Mapping[str, Any] = {
    "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "assistant", "content": "a"}],
    "chat_template_kwargs": {"a": 1}, "add_special_tokens": True, "add_generation_prompt": False,
    "continue_final_message": True, "truncate": "END", "truncate_prompt_tokens": 5,
}  # fmt: skip
_PART = {"content": [{"type": "text", "text": "a"}]}
#: Bodies for a text encoder with a chat template.
ENCODED: Mapping[str, Any] = {
    "/v1/embeddings": {**_CHAT, "dimensions": 2, "encoding_format": "base64"},
    "/pooling": {**_CHAT, "task": "embed", "use_activation": True},
    "/invocations": {"input": ["a", [5]], "truncation_side": "left", "add_special_tokens": False},
    "/score": {"queries": _PART, "documents": ["a", _PART], "truncate_prompt_tokens": 5},
    "/rerank": {"query": _PART, "documents": ["a", {"text": "a"}, _PART], "top_n": 1, "max_tokens_per_doc": 1},
    "/embed": {"inputs": ["a", [5]], "truncate": True, "truncation_direction": "left", "normalize": True},
    "/v2/embed": {"inputs": [_PART], "embedding_types": ["float"], "output_dimension": 1},
    "/tokenize": {"messages": _CHAT["messages"], "add_special_tokens": True, "return_token_strs": True},
    "/apply-template": {"messages": _CHAT["messages"], "chat_template_kwargs": {"a": 1}},
}  # fmt: skip
#: Texts that are no JSON of Python's: nested more deeply than it writes, and half a character.
RAW = st.sampled_from((None, "@90@", "@120@", "@500@", "@5000@", "@surrogate@"))


def attempt(posts: Posts, path: str, body: Any, raw: str | None) -> None:
    """Send a changed body; the response is a result, or a refusal that says why."""
    content = json.dumps(body)
    if raw:
        depth = raw.strip("@")
        value = '{"a":' * int(depth) + "[]" + "}" * int(depth) if depth.isdecimal() else '"\\ud800"'
        content = content.replace('"a"', value, 1) if '"a"' in content else value
    begun = time.process_time()
    response = posts.send(path, content.encode())
    assert time.process_time() - begun < SECONDS
    assert response.status_code in (200, 400, 404, 413, 422), response.text
    if response.status_code != 200:
        error = response.json()["error"]
        assert 20 < len(error if isinstance(error, str) else error["message"]) < 6000


@pytest.mark.parametrize("path", BODIES)
@FEW
@given(data=st.data())
def test_unexpected_bodies(path: str, calling: Posts, data: st.DataObject) -> None:
    made = data.draw(changes(BODIES[path]))
    attempt(calling, path, changed(BODIES[path], made), data.draw(RAW))


@pytest.mark.parametrize("path", SHOWN)
@FEW
@given(data=st.data())
def test_unexpected_images(path: str, looking: Posts, data: st.DataObject) -> None:
    made = data.draw(changes(SHOWN[path]))
    attempt(looking, path, changed(SHOWN[path], made), data.draw(RAW))


@pytest.mark.parametrize("path", ENCODED)
@FEW
@given(data=st.data())
def test_unexpected_texts(path: str, encoding: Posts, data: st.DataObject) -> None:
    made = data.draw(changes(ENCODED[path]))
    attempt(encoding, path, changed(ENCODED[path], made), data.draw(RAW))


def test_what_is_genuine_is_answered(calling: Posts, looking: Posts, encoding: Posts) -> None:
    for posts, bodies in ((calling, BODIES), (looking, SHOWN), (encoding, ENCODED)):
        for path, body in bodies.items():
            response = posts.send(path, json.dumps(body).encode())
            assert response.status_code == 200, (path, response.text)


def nested(depth: int) -> bytes:
    return b'{"prompt": "a", "metadata": ' + b'{"a":' * depth + b"1" + b"}" * depth + b"}"


@pytest.mark.parametrize(
    ("body", "status", "problem"),
    [
        (nested(90), 200, ""),
        (nested(120), 413, "100 lists and objects within each other"),
        (nested(100_000), 413, "100 lists and objects within each other"),
        (b'"' + b"[" * 1000 + b'"', 400, "expected a JSON object"),
        (b'{"prompt": "\\ud83d\\ude00 \\\\ud800"}', 200, ""),
        (b'{"prompt": "\\ud83d"}', 400, "half a character, '\\\\ud83d'"),
        (b'{"prompt": "a", "user": "\\ude00\\ud83d"}', 400, "half a character"),
    ],
    ids=["90", "120", "100000", "in a text", "characters", "half", "turned"],
)
def test_json_is_checked_before_it_is_parsed(
    body: bytes, status: int, problem: str, calling: Posts
) -> None:
    begun = time.process_time()
    response = calling.send("/v1/completions", body)
    assert (response.status_code, problem in response.text.replace("\\\\", "\\")) == (status, True)
    assert time.process_time() - begun < SECONDS


def blocks(kind: str, count: int) -> bytes:
    """Return an assistant's message of many short blocks, or ollama's messages of many calls."""
    call = {"function": {"name": "a", "arguments": {}}}
    if kind == "calls":
        messages: list[Any] = [{"role": "assistant", "tool_calls": [call] * 6}] * (count // 20)
        return json.dumps({"messages": messages}).encode()
    message = {"role": "assistant", "content": [{"type": kind, kind: "a" * 40}] * count}
    return json.dumps({"messages": [message], "max_tokens": 1}).encode()


@pytest.mark.parametrize("kind", ["text", "thinking", "calls"])
def test_many_blocks_take_time_in_proportion(kind: str, calling: Posts) -> None:
    begun = time.process_time()
    path = "/api/chat" if kind == "calls" else "/v1/messages"
    assert calling.send(path, blocks(kind, 60_000)).status_code in (200, 400)
    assert time.process_time() - begun < SECONDS


@pytest.mark.parametrize("kind", ["references", "definitions"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_schemas_of_functions_are_bounded(kind: str, path: str, calling: Posts) -> None:
    schema, user = functions(kind), [{"role": "user", "content": "a"}]
    body: Any = {"messages": user, "max_tokens": 1, "tools": [{"name": "f", "input_schema": schema}]}  # fmt: skip
    body["tool_choice"] = {"type": "any"}
    if path == "/v1/chat/completions":
        tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
        body |= {"tools": tools, "tool_choice": "required"}
    elif path == "/v1/responses":
        tool = {"type": "function", "name": "f", "parameters": schema}
        body = {"input": user, "max_output_tokens": 1, "tools": [tool], "tool_choice": "required"}
    begun = time.process_time()
    response = calling.send(path, json.dumps(body).encode())
    assert time.process_time() - begun < SECONDS
    assert response.status_code in ({200, 400} if kind == "references" else {400})


def test_parameters_that_exclude_every_token_are_the_clients_fault(calling: Posts) -> None:
    body = {"prompt": "a", "allowed_token_ids": [1], "structured_outputs": {"choice": ["a", "b"]}}
    response = calling.send("/v1/completions", json.dumps(body).encode())
    assert (response.status_code, response.json()["error"]["code"]) == (400, "no_token")
