# SPDX-License-Identifier: Apache-2.0
"""Flows of the client `ollama`."""

import json
from typing import Any

from flows import ANSWER, CALL, CHAT, SCHEMA, TOOL, flow, get_weather
from flows_openai import KEY


def _ollama(url: str) -> Any:
    from ollama import Client

    return Client(url.removesuffix("/v1"), headers={"Authorization": f"Bearer {KEY}"})


@flow("ollama")
def ollama_list(urls: Any) -> None:
    assert "trained" in [
        model.model.removesuffix(":latest") for model in _ollama(urls.trained).list().models
    ]


@flow("ollama")
def ollama_chat(urls: Any) -> None:
    client, options = _ollama(urls.trained), {"num_predict": 8, "temperature": 0}
    whole = client.chat("trained", CHAT, options=options).message.content
    stream = client.chat("trained", CHAT, options=options, stream=True)
    assert "".join(chunk.message.content or "" for chunk in stream) == whole


@flow("ollama")
def ollama_tools(urls: Any) -> None:
    messages = [{"role": "user", "content": CALL}]
    with _ollama(urls.scripted) as client:
        whole = client.chat("scripted", messages, tools=[TOOL]).message
        parts = [*client.chat("scripted", messages, tools=[TOOL], stream=True)]
        assert parts[-1].done
        calls = [call for part in parts for call in part.message.tool_calls or ()]
        assert calls == whole.tool_calls
        (call,) = calls
        result = {"role": "tool", "tool_name": call.function.name}
        result["content"] = get_weather(**call.function.arguments)
        answer = client.chat("scripted", [*messages, whole, result], tools=[TOOL])
    assert answer.message.content == ANSWER


@flow("ollama")
def ollama_generate(urls: Any) -> None:
    answer = _ollama(urls.trained).generate("trained", "class ", options={"num_predict": 8})
    assert answer.response


@flow("ollama")
def ollama_embed(urls: Any) -> None:
    answer = _ollama(urls.embeddings).embed("embeddings", ["a cat", "a kitten"])
    assert len(answer.embeddings) == 2


@flow("ollama")
def ollama_format(urls: Any) -> None:
    client, options = _ollama(urls.trained), {"num_predict": 60, "temperature": 0}
    whole = client.chat("trained", CHAT, format=SCHEMA, options=options).message.content
    assert json.loads(whole)["city"] in ("Rome", "Oslo")
    stream = client.generate("trained", "class ", format=SCHEMA, options=options, stream=True)
    assert json.loads("".join(chunk.response for chunk in stream))["city"] in ("Rome", "Oslo")


@flow("ollama")
async def ollama_async(urls: Any) -> None:
    from ollama import AsyncClient

    headers = {"Authorization": f"Bearer {KEY}"}
    client = AsyncClient(urls.trained.removesuffix("/v1"), headers=headers)
    parts = await client.chat("trained", CHAT, options={"num_predict": 8}, stream=True)
    assert "".join([part.message.content or "" async for part in parts])
    assert (await client.ps()).models


@flow("ollama")
def ollama_functions(urls: Any) -> None:
    messages = [{"role": "user", "content": CALL}]
    answer = _ollama(urls.scripted).chat("scripted", messages, tools=[get_weather])
    (call,) = answer.message.tool_calls
    assert get_weather(**call.function.arguments) == "31 C"


@flow("ollama")
def ollama_logprobs(urls: Any) -> None:
    options = {"num_predict": 6, "temperature": 0}
    more = {"options": options, "logprobs": True, "top_logprobs": 2}
    with _ollama(urls.trained) as client:
        whole = client.chat("trained:latest", CHAT, **more)
        parts = [*client.chat("trained", CHAT, stream=True, **more)]
    assert len(whole.logprobs) == 6
    assert all(
        len(logprob.top_logprobs) == 2 and logprob.logprob <= 0 for logprob in whole.logprobs
    )
    assert "".join(logprob.token for logprob in whole.logprobs) == whole.message.content
    assert [logprob for part in parts for logprob in part.logprobs or ()] == [*whole.logprobs]


@flow("ollama")
def ollama_former_embeddings(urls: Any) -> None:
    with _ollama(urls.embeddings) as client:
        (expected,) = client.embed("embeddings", "a cat").embeddings
        found = client.embeddings("embeddings", "a cat").embedding
    scale = sum(value**2 for value in found) ** 0.5
    assert all(abs(one / scale - two) < 1e-5 for one, two in zip(found, expected, strict=True))
