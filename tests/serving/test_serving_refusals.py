# SPDX-License-Identifier: Apache-2.0
"""What the server refuses: parameters, bodies, keys; each with OpenAI's error object."""

import json
from typing import Any

import openai
import pytest
from fixtures_serving import (
    KEY,
    MODEL,
    PROMPT,
    QUESTION,
    complete,
    connect,
    figures,
    post,
    running,
)

from qeff_zoo.runtime import Engine
from qeff_zoo.serving.requests import schemas

TOOLS = [{"type": "function", "function": {"name": "f"}}]
REFUSED: dict[str, tuple[str, dict[str, Any], int, str | None, str]] = {
    "another model": ("completions", {"model": "gpt"}, 404, "model", "model_not_found"),
    "no prompt": ("completions", {"prompt": None}, 400, "prompt", "missing_required_parameter"),
    "empty prompt": ("completions", {"prompt": []}, 400, "prompt", "invalid_value"),
    "mixed prompt": ("completions", {"prompt": [1, "a"]}, 400, "prompt", "invalid_value"),
    "foreign token": ("completions", {"prompt": [5, 10**9]}, 400, "prompt", "invalid_value"),
    "huge token": ("completions", {"prompt": [10**400]}, 400, "prompt", "invalid_value"),
    "half a character": ("completions", {"prompt": "\ud83d"}, 400, None, "invalid_json"),
    "long prompt": ("completions", {"prompt": [5] * 128}, 400, "prompt", "context_length_exceeded"),
    "long answer": ("completions", {"max_tokens": 128}, 400, "prompt", "context_length_exceeded"),
    "no answer": ("completions", {"max_tokens": 0}, 400, "max_tokens", "invalid_value"),
    "half a token": ("completions", {"max_tokens": 1.5}, 400, "max_tokens", "invalid_value"),
    "hot": ("completions", {"temperature": 2.1}, 400, "temperature", "invalid_value"),
    "no temperature": ("completions", {"temperature": float("nan")}, 400, None, "invalid_json"),
    "no number of a tool": (
        "responses", {"input": "a", "tools": [{"type": "function", "name": "f", "parameters": {"a": float("inf")}}]},
        400, None, "invalid_json",
    ),
    "reserved variable": (
        "chat/completions", {"chat_template_kwargs": {"self": 1}}, 400, "chat_template_kwargs", "invalid_value",
    ),
    "text for a number": ("completions", {"top_p": "0.5"}, 400, "top_p", "invalid_value"),
    "more than all": ("completions", {"top_p": 1.5}, 400, "top_p", "invalid_value"),
    "penalty": ("completions", {"presence_penalty": -3}, 400, "presence_penalty", "invalid_value"),
    "unknown stream option": (
        "completions", {"stream": True, "stream_options": {"continuous": True}},
        400, "stream_options", "unsupported_parameter",
    ),
    "stream options without a stream": (
        "chat/completions", {"stream_options": {"include_usage": True}}, 400, "stream_options", "invalid_value",
    ),
    "large seed": ("completions", {"seed": 1 << 63}, 400, "seed", "invalid_value"),
    "small seed": ("chat/completions", {"seed": -(1 << 63) - 1}, 400, "seed", "invalid_value"),
    "no choice": ("completions", {"n": 0}, 400, "n", "invalid_value"),
    "many choices": ("completions", {"n": 129}, 400, "n", "invalid_value"),
    "many stops": ("completions", {"stop": [*map(str, range(65))]}, 400, "stop", "invalid_value"),
    "empty stop": ("completions", {"stop": ["a", ""]}, 400, "stop", "invalid_value"),
    "many logprobs": ("completions", {"logprobs": 6}, 400, "logprobs", "invalid_value"),
    "bias of no token": ("completions", {"logit_bias": {"a": 1}}, 400, "logit_bias", "invalid_value"),
    "large bias": ("completions", {"logit_bias": {"5": 101}}, 400, "logit_bias", "invalid_value"),
    "no allowed token": ("completions", {"allowed_token_ids": []}, 400, "allowed_token_ids", "invalid_value"),
    "foreign stop token": ("completions", {"stop_token_ids": [10**6]}, 400, "prompt", "invalid_value"),
    "least length of a grammar": (
        "completions", {"min_tokens": 2, "structured_outputs": {"choice": ["a"]}}, 400, "prompt", "invalid_value",
    ),
    "beams": ("completions", {"use_beam_search": True}, 400, "use_beam_search", "unsupported_parameter"),
    "suffix": ("completions", {"suffix": "a"}, 400, "suffix", "unsupported_parameter"),
    "unknown": ("completions", {"frobnicate": 1}, 400, "frobnicate", "unsupported_parameter"),
    "half a name": ("completions", {"\ud83d": 1}, 400, None, "invalid_json"),
    "no tool": ("chat/completions", {"tools": [{}]}, 400, "tools", "invalid_value"),
    "tools without a template": ("chat/completions", {"tools": TOOLS}, 400, "tools", "tools_not_supported"),
    "tools in a completion": ("completions", {"tools": TOOLS}, 400, "tools", "unsupported_parameter"),
    "required without tools": (
        "chat/completions", {"tool_choice": "required"}, 400, "tool_choice", "invalid_value",
    ),
    "unknown function": (
        "chat/completions", {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}},
        400, "tool_choice", "invalid_value",
    ),
    "messages as a variable": (
        "chat/completions", {"chat_template_kwargs": {"messages": []}}, 400, "chat_template_kwargs", "invalid_value",
    ),
    "unknown template": ("chat/completions", {"chat_template": "rag"}, 400, "chat_template", "invalid_value"),
    "new and continued": (
        "chat/completions", {"continue_final_message": True, "add_generation_prompt": True},
        400, "continue_final_message", "invalid_value",
    ),
    "no messages": ("chat/completions", {"messages": []}, 400, "messages", "invalid_value"),
    "a message of nothing": ("chat/completions", {"messages": [{}]}, 400, "messages", "invalid_value"),
    "an image": (
        "chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        400, "messages", "invalid_value",
    ),
    "unknown in a part": (
        "chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "cached": 1}]}]},
        400, "messages", "unsupported_parameter",
    ),
    "unknown in a URL": (
        "chat/completions",
        {"messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "data:x", "detail": "low", "width": 9}}
        ]}]},
        400, "messages", "unsupported_parameter",
    ),
    "a video": (
        "chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": "data:x"}}]}]},
        400, "messages", "invalid_value",
    ),
    "what the template cannot take": (
        "chat/completions",
        {"messages": [{"role": "assistant", "tool_calls": ["f"]}]},
        400, "messages", "invalid_value",
    ),
    "long chat": (
        "chat/completions", {"messages": [{"role": "user", "content": "a b " * 100}]},
        400, "messages", "context_length_exceeded",
    ),
    "top_logprobs alone": ("chat/completions", {"top_logprobs": 2}, 400, "top_logprobs", "invalid_value"),
    "embeddings": ("embeddings", {"input": "a"}, 404, None, "unknown_url"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_served_is_refused(url: str, case: str) -> None:
    path, changes, status, param, code = REFUSED[case]
    base = {"prompt": PROMPT} if path == "completions" else {"messages": QUESTION}
    body = json.dumps({"model": MODEL, **base, **changes}).encode()
    found, answer = post(url, path, body)
    error = answer["error"]
    assert (found, error["param"], error["code"]) == (status, param, code)
    assert error["message"].endswith(".")
    assert "--" not in error["message"]  # a client has no command line
    assert error["type"] == ("invalid_request_error" if status == 400 else "not_found_error")


def test_what_changes_no_answer_may_stand_in_a_part(url: str) -> None:
    part = {
        "type": "text",
        "text": "a",
        "image_url": None,
        "prompt_cache_breakpoint": {"mode": "explicit"},
    }
    body = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": [part]}]}
    assert post(url, "chat/completions", json.dumps(body).encode())[0] == 200


ODD = (
    None, True, -1, 0, 1.5, 1e308, 10**30, "", "\ud83d", [1], [[]], [{}], {"a": 1},
)  # fmt: skip


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_no_value_breaks_the_server(url: str, path: str) -> None:
    """Every parameter with every odd value is answered, or refused by its name."""
    base = {"model": MODEL, "max_tokens": 1}
    base |= {"prompt": "a"} if path == "completions" else {"messages": QUESTION}
    schema = schemas.CompletionRequest if path == "completions" else schemas.ChatRequest
    for name in [*schema.model_fields, "logit_bias", "tools", "user", "echo"]:
        if name != "stream":
            for value in ODD:
                body = json.dumps({**base, name: value}).encode()
                status, answer = post(url, path, body)
                if status != 200 and answer["error"]["code"] != "invalid_json":
                    assert answer["error"]["param"] in (name, "prompt", "messages")
                assert status in (200, 400, 404 if name == "model" else 400)


def test_all_mistakes_are_named(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"'n' is 0; .*'temperature' is 3; ") as wrong:
        complete(client, n=0, temperature=3)
    assert (wrong.value.param, wrong.value.type) == ("n", "invalid_request_error")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "not JSON"),
        (b"", "expected"),
        (b"[1]", r"is \[1\]; expected a JSON object"),
        (b"null", "expected"),
        (b"\xff\xfe", "expected"),
        (b"[" * 100, "not JSON|parsing"),
        (b'{"seed": ' + b"1" * 5000 + b"}", "not JSON|parsing"),
    ],
)
def test_malformed_bodies(url: str, body: bytes, message: str) -> None:
    status, answer = post(url, "completions", body)
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(answer["error"]["message"])


def test_a_body_that_is_not_declared_as_json(url: str) -> None:
    """A web page can send text to any server without asking; it cannot send JSON."""
    body = json.dumps({"model": MODEL, "prompt": PROMPT}).encode()
    status, answer = post(url, "completions", body, **{"Content-Type": "text/plain"})
    assert (status, answer["error"]["code"]) == (400, "invalid_body")


def test_a_body_that_is_too_large(engine: Engine) -> None:
    body = json.dumps({"model": MODEL, "prompt": "a" * 5000}).encode()
    with running(engine, max_body_bytes=4000) as url:
        for headers in ({}, {"Transfer-Encoding": "chunked"}):
            given: Any = body if not headers else iter([body[:3000], body[3000:]])
            status, answer = post(url, "completions", given, **headers)
            assert (status, answer["error"]["code"]) == (413, "body_too_large")
            assert "expected at most 4,000 bytes" in answer["error"]["message"]
        assert post(url, "completions", body[:100] + b'"}')[0] == 200


def test_unknown_paths_and_methods(url: str) -> None:
    status, answer = post(url, "engines", b"{}")
    assert (status, answer["error"]["code"]) == (404, "unknown_url")
    status, answer = post(url, "models", b"{}")
    assert (status, answer["error"]["code"]) == (405, "method_not_supported")


@pytest.mark.parametrize(
    "path", ["responses/compact", "batches", "batches/batch_1/cancel", "files"]
)
def test_endpoints_of_openai_that_are_missing(url: str, path: str) -> None:
    status, answer = post(url, path, b"{}")
    assert (status, answer["error"]["code"]) == (404, "unknown_url")
    assert "This server has no /v1/" in answer["error"]["message"]


def test_without_the_key_there_is_no_answer(engine: Engine) -> None:
    with running(engine, api_keys=["schlüssel"]) as url:
        for given in ("wrong", "schl", ""):
            with connect(url, given or "x") as client:
                with pytest.raises(openai.AuthenticationError) as refused:
                    complete(client)
                assert (refused.value.status_code, refused.value.code) == (401, "invalid_api_key")
        assert post(url, "models", b"{}")[0] == 401
        assert post(url, "completions", b"{}", Authorization="Basic schl")[0] == 401
        found = figures(url)  # which need no key
        assert found["http_responses_total:/v1/completions:401"] == 4
    with running(engine, api_keys=[KEY]) as url, connect(url) as client:
        assert complete(client).choices[0].text
