# SPDX-License-Identifier: Apache-2.0
"""ollama's API, by ollama's client: chats, generated texts, tools, images, embeddings, the list of models, refusals."""

import base64
import io
import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import ollama
import pytest
from chat_templates import TEMPLATES
from checkout import TINY_LLAMA
from fixtures_serving import (
    KEY,
    MODEL,
    PROMPT,
    QUESTION,
    TIMEOUT,
    active,
    chat,
    complete,
    connect,
    post,
    running,
    wait_until,
)
from fixtures_serving_tools import CITY

import qeff_zoo
from qeff_zoo.package import Package
from qeff_zoo.runtime import Engine
from qeff_zoo.runtime.text.chat_output import Output
from qeff_zoo.runtime.text.chat_output.events import ToolCall
from qeff_zoo.runtime.text.chat_template import ChatTemplate
from qeff_zoo.serving.apis.ollama.endpoints import content_of
from qeff_zoo.serving.apis.ollama.schemas import ChatBody, GenerateBody, chat_of
from qeff_zoo.tasks.encoders.endpoints.encoder_queue import EncoderQueue

OPTIONS = {"temperature": 0, "num_predict": 16}
SCHEMA = {"type": "object", "properties": {"city": CITY}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Weather.", "parameters": SCHEMA}


def connected(url: str, key: str = KEY) -> ollama.Client:
    return ollama.Client(
        url.removesuffix("/v1"), headers={"Authorization": f"Bearer {key}"}, timeout=TIMEOUT
    )


@pytest.fixture
def client(url: str) -> Iterator[ollama.Client]:
    with connected(url) as opened:
        yield opened


def test_a_chat_is_the_one_of_the_other_api(client: ollama.Client, url: str) -> None:
    with connect(url) as other:
        expected = chat(other)
        seeded = chat(other, temperature=0.9, seed=3, top_p=0.8, stop=["a"]).choices[0].message
        (continued,) = complete(other).choices
    found = client.chat(MODEL, QUESTION, options=OPTIONS)
    assert (found.message.role, found.done) == ("assistant", True)
    assert found.message.content == expected.choices[0].message.content
    usage = expected.usage
    assert (found.prompt_eval_count, found.eval_count) == (
        usage.prompt_tokens,
        usage.completion_tokens,
    )
    assert found.done_reason == expected.choices[0].finish_reason
    assert found.total_duration >= found.eval_duration >= 0
    parts = [
        *client.chat(MODEL, QUESTION, options=OPTIONS, stream=True, keep_alive="5m", think=False)
    ]
    assert "".join(part.message.content for part in parts) == found.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert len(parts) > 2
    more = {
        "temperature": 0.9,
        "seed": 3,
        "top_p": 0.8,
        "stop": ["a"],
        "num_predict": 16,
        "num_ctx": 9,
    }
    assert client.chat(MODEL, QUESTION, options=more).message.content == seeded.content
    requested = QUESTION[0]["content"]
    assert client.generate(MODEL, requested, options=OPTIONS).response == found.message.content
    raw = client.generate(
        MODEL, PROMPT, raw=True, stream=True, options={**OPTIONS, "num_predict": 12}
    )
    assert "".join(part.response for part in raw) == continued.text
    loaded = client.generate(MODEL, "")
    assert (loaded.done_reason, loaded.response) == ("load", "")


def test_functions_are_called_and_answered(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    source = TEMPLATES["qwen3_coder"].replace("<tools>{{ tools | tojson }}</tools>", "")
    template = ChatTemplate(source, {"bos_token": "<|begin|>"})
    monkeypatch.setattr(engine.session, "chat_template", template)
    tool = {"type": "function", "function": FUNCTION}
    call = {"function": {"name": "get_weather", "arguments": {"city": "Rome"}}}
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "get_weather", "content": "12"},
    ]
    with running(engine) as url, connected(url) as client:
        assert "tools" in client.show(MODEL).capabilities
        found = client.chat(MODEL, turns, tools=[tool], options=OPTIONS)
        assert found.message.content is not None
    body = chat_of(ChatBody.model_validate({"model": MODEL, "messages": turns}))["messages"]
    assert body[1]["tool_calls"][0]["function"] == {
        "name": "get_weather",
        "arguments": {"city": "Rome"},
    }
    assert body[2]["tool_call_id"] == body[1]["tool_calls"][0]["id"]


#: Request of the AI SDK with npm's ollama-ai-provider-v2 3.6.0: `generateText` with a required call, after another.
WEATHER = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
AI_SDK: dict[str, Any] = {
    "model": MODEL,
    "messages": [
        {"role": "user", "content": "Is it warm in Rome?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": "abc",
                    "type": "function",
                    "function": {"name": "weather", "arguments": {"city": "Rome"}},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "abc", "content": "31 C"},
    ],
    "temperature": 0,
    "top_p": 0.9,
    "max_output_tokens": 40,
    "think": False,
    "tools": [
        {
            "type": "function",
            "function": {"name": "weather", "description": "Temperature.", "parameters": WEATHER},
        }
    ],
    "tool_choice": "required",
    "stream": False,
}


def test_parameters_beside_the_options_are_options(url: str) -> None:
    root, body = url.removesuffix("/v1"), {"messages": QUESTION, "stream": False}
    beside = {"temperature": 0, "top_p": 0.9, "max_output_tokens": 8, "think": False}
    status, found = post(root, "api/chat", json.dumps({**body, **beside}).encode())
    options = {"temperature": 0, "num_predict": 8}
    _, expected = post(root, "api/chat", json.dumps({**body, "options": options}).encode())
    assert (status, found["message"], found["eval_count"]) == (200, expected["message"], 8)
    both = {**body, **beside, "options": {"num_predict": 3}, "model": f"{MODEL}:latest"}
    status, found = post(root, "api/chat", json.dumps(both).encode())
    assert (status, found["eval_count"], found["model"]) == (200, 3, f"{MODEL}:latest")
    completion = {"prompt": PROMPT, "stop": [], "max_tokens": 4, "stream": False, "raw": True}
    assert post(root, "api/generate", json.dumps(completion).encode())[1]["eval_count"] == 4


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
def test_a_call_of_another_client_is_required(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, choice: Any
) -> None:
    source = TEMPLATES["qwen3_coder"].replace("<tools>{{ tools | tojson }}</tools>", "")
    template = ChatTemplate(source, {"bos_token": "<|begin|>"})
    monkeypatch.setattr(engine.session, "chat_template", template)
    chat = chat_of(ChatBody.model_validate({**AI_SDK, "tool_choice": choice}))
    assert chat["messages"][2] == {
        "role": "tool",
        "content": "31 C",
        "tool_call_id": "abc",
        "name": "weather",
    }
    turn = {**AI_SDK, "tool_choice": choice, "messages": AI_SDK["messages"][:1]}
    with running(engine) as url:
        status, found = post(url.removesuffix("/v1"), "api/chat", json.dumps(turn).encode())
        _, shown = post(url.removesuffix("/v1"), "api/show", json.dumps({"name": MODEL}).encode())
    assert status == 200, found
    (call,) = found["message"]["tool_calls"]
    assert call["id"]
    assert call["function"]["name"] == "weather"
    assert call["function"]["arguments"]["city"] in ("Rome", "Oslo")
    assert "tools" in shown["template"]  # by which litellm finds whether it may send functions


def test_results_without_identifiers_are_in_the_order_of_calls() -> None:
    calls = [{"function": {"name": name, "arguments": {}}} for name in "fg"]
    results = [{"role": "tool", "content": text} for text in "12"]
    turns = [{"role": "assistant", "tool_calls": calls}, *results]
    first, *others = chat_of(ChatBody.model_validate({"messages": turns}))["messages"]
    pairs = [(call["id"], call["function"]["name"]) for call in first["tool_calls"]]
    assert [(other["tool_call_id"], other["name"]) for other in others] == pairs


def test_logprobs_are_those_of_the_other_api(client: ollama.Client, url: str) -> None:
    with connect(url) as other:
        (choice,) = chat(other, logprobs=True, top_logprobs=2).choices
    given: Any = {"options": OPTIONS, "logprobs": True, "top_logprobs": 2}
    whole = client.chat(MODEL, QUESTION, **given).logprobs or ()
    expected = [one.model_dump(exclude={"bytes"}) for one in choice.logprobs.content]
    for one in expected:
        one["top_logprobs"] = [
            {name: top[name] for name in ("token", "logprob")} for top in one["top_logprobs"]
        ]
    assert [one.model_dump() for one in whole] == expected
    for parts in (
        client.chat(MODEL, QUESTION, stream=True, **given),
        client.generate(MODEL, QUESTION[0]["content"], stream=True, **given),
    ):
        assert [logprob for part in parts for logprob in part.logprobs or ()] == [*whole]


def test_thinking_text_and_calls_are_fields_of_a_message() -> None:
    calls = (
        ToolCall(id="c", name="f", arguments='{"x": 1}'),
        ToolCall(id="d", name="g", arguments='{"cut'),
    )
    output = Output(text="So", reasoning="hm", calls=calls)
    body = ChatBody(model=MODEL)
    message = ollama.ChatResponse(**content_of(body, output)).message
    assert (message.content, message.thinking) == ("So", "hm")
    found = [call.function for call in message.tool_calls or ()]
    assert [(one.name, one.arguments) for one in found] == [("f", {"x": 1}), ("g", {})]
    generated = ollama.GenerateResponse(**content_of(GenerateBody(model=MODEL), output))
    assert (generated.response, generated.thinking) == ("So", "hm")


def test_the_example_of_the_guide(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = (TINY_LLAMA.parents[1] / "docs" / "serving.md").read_text()
    code = page.partition("<!-- ollama: ")[2].partition("```python\n")[2].partition("```")[0]
    code = code.replace("http://127.0.0.1:8000", url.removesuffix("/v1"))
    names: dict[str, Any] = {}
    exec(code.replace("tiny-llama", MODEL), names)
    assert capsys.readouterr().out.endswith("['chat', 'completion']\n")


def test_an_output_has_the_form_of_its_schema(client: ollama.Client) -> None:
    schema = {**SCHEMA, "additionalProperties": False}
    options = {**OPTIONS, "num_predict": 40}
    found = client.chat(MODEL, QUESTION, format=schema, options=options)
    assert json.loads(found.message.content or "")["city"] in ("Rome", "Oslo")
    assert client.generate(MODEL, "A", format="json", options=OPTIONS).response.startswith("{")


def test_a_client_that_leaves_frees_its_slot(client: ollama.Client, engine: Engine) -> None:
    for _ in client.chat(MODEL, QUESTION, stream=True, options={"num_predict": 100}):
        break
    wait_until(lambda: active(engine) == (0, 0))


def test_models_are_listed(client: ollama.Client) -> None:
    (listed,) = client.list().models
    assert listed.model == MODEL
    assert [model.model for model in client.ps().models] == [MODEL]
    shown = client.show(MODEL)
    assert {"chat", "completion"} <= {*shown.capabilities}
    assert shown.modelinfo["qeff-zoo.context_length"] == 128
    with pytest.raises(ollama.ResponseError, match="no model 'other'"):
        client.show("other")


def test_embeddings_have_length_1(encoder_package: Package) -> None:
    session: Any = qeff_zoo.load(encoder_package, threads=1)
    with (
        closing(EncoderQueue(session, max_waiting=8)) as queue,
        running(queue) as url,
        connected(url) as client,
    ):
        found = client.embed(MODEL, ["a cat sat", "two dogs"])
        (short,) = client.embed(MODEL, "a cat sat", dimensions=4).embeddings
        assert client.show(MODEL).capabilities == ["embedding", "rerank"]
        former = client.embeddings(f"{MODEL}:latest", "two dogs").embedding
        assert client.embeddings(MODEL, "").embedding == []
        with pytest.raises(ollama.ResponseError, match="dimensions"):
            client.embed(MODEL, "a", dimensions=10**6)
        expected = np.array(session.embed(["a cat sat", "two dogs"]))
    vectors = np.array(found.embeddings)
    assert np.allclose(
        vectors, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-5
    )
    assert np.allclose(former, expected[1], atol=1e-5)
    assert np.allclose(short, vectors[0, :4] / np.linalg.norm(vectors[0, :4]), atol=1e-5)
    assert found.prompt_eval_count


def test_images_are_read(seeing: Package) -> None:
    from PIL import Image

    stream = io.BytesIO()
    Image.new("RGB", (24, 24), "red").save(stream, "PNG")
    session: Any = qeff_zoo.load(seeing, threads=1)
    with Engine(session) as engine, running(engine) as url, connected(url) as client:
        image = {"url": f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"}
        parts = [{"type": "image_url", "image_url": image}, {"type": "text", "text": "What is it?"}]
        with connect(url) as other:
            expected = chat(other, messages=[{"role": "user", "content": parts}], max_tokens=8)
        options = {**OPTIONS, "num_predict": 8}
        found = client.generate(MODEL, "What is it?", images=[stream.getvalue()], options=options)
    assert found.response == expected.choices[0].message.content


def test_a_body_is_json_whatever_it_is_declared_as(client: ollama.Client, url: str) -> None:
    """`curl -d` declares a form; a web page that does so has an origin, which is refused."""
    root, messages = url.removesuffix("/v1"), QUESTION
    body = json.dumps({"model": MODEL, "messages": messages, "stream": False, "options": OPTIONS})
    expected = client.chat(MODEL, messages, options=OPTIONS).message.content
    for kind in ("application/x-www-form-urlencoded", "multipart/form-data; boundary=a", ""):
        status, answer = post(root, "api/chat", body.encode(), **{"Content-Type": kind})
        assert (status, answer["message"]["content"]) == (200, expected)
    foreign = {"Content-Type": "text/plain", "Origin": "https://a.example"}
    assert post(root, "api/chat", body.encode(), **foreign)[0] == 403
    deep = {"Content-Type": "multipart/form-data; boundary=a"}
    assert post(root, "api/chat", b"[" * 200, **deep)[0] == 413


def test_errors_have_the_form_of_the_api(client: ollama.Client, engine: Engine, url: str) -> None:
    with (
        running(engine, api_keys=["other"]) as guarded,
        connected(guarded) as stranger,
        pytest.raises(ollama.ResponseError) as caught,
    ):
        stranger.list()
    assert caught.value.status_code == 401
    with pytest.raises(ollama.ResponseError, match="no model 'other'"):
        client.chat("other", QUESTION)
    root = url.removesuffix("/v1")
    hi = {"messages": QUESTION}
    for path, body, output in (
        ("chat", {**hi, "options": {"mirostat": 3}}, "mirostat"),
        ("chat", {**hi, "options": {"temperature": 9}}, "temperature"),
        ("chat", {**hi, "options": {"num_predict": 0}}, "max_completion_tokens"),
        ("chat", {**hi, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("chat", {**hi, "max_output_tokens": "many"}, "max_completion_tokens"),
        ("chat", {**hi, "tool_choice": "maybe"}, "tool_choice"),
        ("chat", {"messages": [{"role": "user", "images": ["a"]}]}, "reads no images"),
        ("chat", {"messages": [{"role": "user", "other": 1}]}, "other"),
        ("generate", {"prompt": "a", "context": [1]}, "context"),
        ("generate", {"prompt": "a " * 600}, "tokens"),
        ("generate", {"prompt": "a", "suffix": "b"}, "suffix"),
    ):
        status, answer = post(root, f"api/{path}", json.dumps({"model": MODEL, **body}).encode())
        assert status == 400, body
        assert output in answer["error"], answer
