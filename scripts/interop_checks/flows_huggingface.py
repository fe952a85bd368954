# SPDX-License-Identifier: Apache-2.0
"""Flows of `InferenceClient` of the package `huggingface_hub`."""

import json
from typing import Any

from flows import ANSWER, CALL, CHAT, TOOL, flow, get_weather
from flows_openai import FORMAT, KEY


def _client(url: str) -> Any:
    from huggingface_hub import InferenceClient

    return InferenceClient(base_url=url, api_key=KEY)


@flow("huggingface_hub")
def huggingface_chat(urls: Any) -> None:
    options: Any = {"model": "trained", "max_tokens": 16, "temperature": 0}
    client = _client(urls.trained)
    whole = client.chat_completion(CHAT, **options).choices[0].message.content
    assert whole
    stream = client.chat_completion(CHAT, stream=True, **options)
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices) == whole
    )
    assert (
        client.chat.completions.create(messages=CHAT, **options).choices[0].message.content == whole
    )


@flow("huggingface_hub")
def huggingface_tools(urls: Any) -> None:
    client, messages = _client(urls.scripted), [{"role": "user", "content": CALL}]
    options: Any = {"model": "scripted", "tools": [TOOL], "tool_choice": "auto", "max_tokens": 200}
    message = client.chat_completion(messages, **options).choices[0].message
    (call,) = message.tool_calls
    content = get_weather(**json.loads(call.function.arguments))
    calls = [{"id": call.id, "type": "function", "function": vars(call.function)}]
    messages.append({"role": "assistant", "tool_calls": calls})
    messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    assert client.chat_completion(messages, **options).choices[0].message.content == ANSWER
    stream = client.chat_completion(messages[:1], stream=True, **options)
    deltas = [chunk.choices[0].delta for chunk in stream if chunk.choices]
    parts = [part.function.arguments or "" for delta in deltas for part in delta.tool_calls or ()]
    assert "".join(parts) == call.function.arguments


@flow("huggingface_hub")
def huggingface_structured_output(urls: Any) -> None:
    options: Any = {"model": "trained", "max_tokens": 100, "response_format": FORMAT}
    answer = _client(urls.trained).chat_completion(CHAT, **options)
    assert json.loads(answer.choices[0].message.content)["city"] in ("Rome", "Oslo")


@flow("huggingface_hub")
async def huggingface_async(urls: Any) -> None:
    from huggingface_hub import AsyncInferenceClient

    async with AsyncInferenceClient(base_url=urls.trained, api_key=KEY) as client:
        stream = await client.chat_completion(CHAT, model="trained", max_tokens=8, stream=True)
        parts = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    assert "".join(parts)


@flow("huggingface_hub")
def huggingface_feature_extraction(urls: Any) -> None:
    from huggingface_hub import InferenceClient

    client = InferenceClient(model=urls.embeddings.removesuffix("/v1") + "/embed", api_key=KEY)
    assert client.feature_extraction("a cat").shape == (1, 384)
    assert client.feature_extraction("a cat " * 999, truncate=True).shape == (1, 384)
