# SPDX-License-Identifier: Apache-2.0
"""Flows of the client `openai`."""

import base64
from pathlib import Path
from typing import Any

from flows import ANSWER, CALL, CHAT, FUNCTION, QUESTION, SCHEMA, TOOL, flow, get_weather

KEY = "sesame"
RECORDING = Path(__file__).parents[2] / "examples" / "speech.wav"
FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}


def _client(url: str, **options: Any) -> Any:
    from openai import OpenAI

    return OpenAI(base_url=url, api_key=KEY, max_retries=0, timeout=120, **options)


def _ask(urls: Any, **options: Any) -> Any:
    body = {"model": "trained", "messages": CHAT, "max_tokens": 16, "temperature": 0, **options}
    return _client(urls.trained).chat.completions.create(**body)


@flow("openai")
def chat(urls: Any) -> None:
    answer = _ask(urls)
    assert answer.choices[0].message.content
    assert answer.choices[0].message.role == "assistant"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@flow("openai")
async def chat_async(urls: Any) -> None:
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=urls.trained, api_key=KEY, max_retries=0) as client:
        options: Any = {"model": "trained", "messages": CHAT, "max_tokens": 8, "temperature": 0}
        answer = await client.chat.completions.create(**options)
        stream = await client.chat.completions.create(**options, stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == answer.choices[0].message.content


@flow("openai")
def stream_equals_whole(urls: Any) -> None:
    chunks = list(_ask(urls, stream=True, stream_options={"include_usage": True}))
    whole = _ask(urls)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage


@flow("openai")
def stream_helper(urls: Any) -> None:
    options: Any = {"model": "scripted", "messages": [{"role": "user", "content": "say Hello"}]}
    with _client(urls.scripted).chat.completions.stream(**options) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        message = stream.get_final_completion().choices[0].message
    assert "".join(deltas) == message.content == "Hello"


@flow("openai")
def parse_pydantic(urls: Any) -> None:
    from pydantic import BaseModel

    class Answer(BaseModel):
        is_class: bool

    answer = _client(urls.trained).chat.completions.parse(
        model="trained", messages=CHAT, response_format=Answer, max_tokens=80, temperature=0
    )
    assert isinstance(answer.choices[0].message.parsed.is_class, bool)


@flow("openai")
def json_schema_stream(urls: Any) -> None:
    import json

    stream = _ask(urls, stream=True, response_format=FORMAT, max_tokens=60)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert json.loads(text)["city"] in ("Rome", "Oslo")


@flow("openai")
def json_object(urls: Any) -> None:
    import json

    client = _client(urls.scripted)
    answer = client.chat.completions.create(
        model="scripted",
        messages=[{"role": "user", "content": 'say {"name": "Ada"}'}],
        response_format={"type": "json_object"},
    )
    assert json.loads(answer.choices[0].message.content) == {"name": "Ada"}


@flow("openai")
def completions(urls: Any) -> None:
    options = {"model": "trained", "prompt": "class collections.", "max_tokens": 8}
    client = _client(urls.trained)
    whole = client.completions.create(**options, temperature=0)
    stream = client.completions.create(**options, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text
    pair = client.completions.create(**{**options, "prompt": ["class ", "def "]}, n=2)
    assert [choice.index for choice in pair.choices] == [0, 1, 2, 3]


@flow("openai")
def completions_of_token_ids(urls: Any) -> None:
    options: Any = {"model": "trained", "prompt": [7, 8, 9], "max_tokens": 4}
    assert _client(urls.trained).completions.create(**options).usage.prompt_tokens == 3


@flow("openai")
def echo(urls: Any) -> None:
    answer = _client(urls.trained).completions.create(
        model="trained", prompt="class collections.", echo=True, logprobs=1, max_tokens=0
    )
    assert answer.choices[0].text == "class collections."
    assert answer.choices[0].logprobs.token_logprobs[0] is None
    assert all(logprob < 0 for logprob in answer.choices[0].logprobs.token_logprobs[1:])


@flow("openai")
def logprobs(urls: Any) -> None:
    answer = _ask(urls, logprobs=True, top_logprobs=3)
    assert all(len(one.top_logprobs) == 3 for one in answer.choices[0].logprobs.content)


@flow("openai")
def several_choices_with_seed(urls: Any) -> None:
    first, again = (_ask(urls, n=3, seed=5, temperature=1) for _ in range(2))
    assert len(first.choices) == 3
    assert [choice.message.content for choice in first.choices] == [
        choice.message.content for choice in again.choices
    ]


@flow("openai")
def stop_and_logit_bias(urls: Any) -> None:
    text = _ask(urls).choices[0].message.content
    stopped = _ask(urls, stop=[text[4:8]])
    assert stopped.choices[0].message.content == text[: text.index(text[4:8])]
    assert stopped.choices[0].finish_reason == "stop"
    ended = _ask(urls, logit_bias={"1": 100, "3": 100})
    assert ended.usage.completion_tokens == 1


@flow("openai")
def errors_have_types(urls: Any) -> None:
    import openai

    cases: list[tuple[type[Exception], dict[str, Any]]] = [
        (openai.NotFoundError, {"model": "absent"}),
        (openai.BadRequestError, {"temperature": 9}),
        (openai.BadRequestError, {"messages": [{"role": "user", "content": "word " * 9000}]}),
    ]
    for kind, options in cases:
        try:
            _ask(urls, **options)
        except kind as error:
            assert error.body["message"]  # type: ignore[attr-defined]
        else:
            raise AssertionError(kind)
    try:
        _client(urls.trained).with_options(api_key="wrong").models.list()
    except openai.AuthenticationError:
        return
    raise AssertionError("a wrong key is accepted")


@flow("openai")
def models(urls: Any) -> None:
    client = _client(urls.trained)
    names = [one.id for one in client.models.list()]
    assert {"trained", "vision", "reranker"} <= {*names}
    assert client.models.retrieve("trained").id == "trained"


@flow("openai")
def embeddings(urls: Any) -> None:
    client = _client(urls.embeddings)
    texts = ["a cat", "a kitten", "interest rates"]
    usual = client.embeddings.create(model="embeddings", input=texts)
    floats = client.embeddings.create(model="embeddings", input=texts, encoding_format="float")
    for one, other in zip(usual.data, floats.data, strict=True):
        assert max(abs(a - b) for a, b in zip(one.embedding, other.embedding, strict=True)) < 1e-6
    cat, kitten, rates = (entry.embedding for entry in usual.data)
    assert _dot(cat, kitten) > _dot(cat, rates)


def _dot(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


@flow("openai")
def embeddings_in_base64(urls: Any) -> None:
    import struct

    create = _client(urls.embeddings).embeddings.create
    options: Any = {"model": "embeddings", "input": "a cat", "dimensions": 32}
    packed: Any = create(**options, encoding_format="base64").data[0].embedding
    floats = create(**options, encoding_format="float").data[0].embedding
    for one, other in zip(struct.unpack("<32f", base64.b64decode(packed)), floats, strict=True):
        assert abs(one - other) < 1e-6


@flow("openai")
def embeddings_of_fewer_dimensions(urls: Any) -> None:
    answer = _client(urls.embeddings).embeddings.create(
        model="embeddings", input="a cat", dimensions=32
    )
    vector = answer.data[0].embedding
    assert len(vector) == 32
    assert abs(_dot(vector, vector) - 1) < 1e-5


def _transcribe(urls: Any, **options: Any) -> Any:
    create = _client(urls.speech).audio.transcriptions.create
    with RECORDING.open("rb") as file:
        return create(model="speech", file=file, **options)


@flow("openai")
def transcription(urls: Any) -> None:
    assert "wind" in _transcribe(urls).text
    assert "wind" in _transcribe(urls, response_format="text")


@flow("openai")
def transcription_with_segments(urls: Any) -> None:
    answer = _transcribe(urls, response_format="verbose_json")
    assert answer.duration > 0
    assert "wind" in "".join(segment.text for segment in answer.segments)
    assert " --> " in _transcribe(urls, response_format="srt")


@flow("openai")
def transcription_in_a_stream(urls: Any) -> None:
    *parts, done = _transcribe(urls, stream=True)
    assert done.type == "transcript.text.done"
    assert "".join(part.delta for part in parts) == done.text
    assert "wind" in done.text


@flow("openai")
def image(urls: Any) -> None:
    image = sorted((RECORDING.parent / "tiny-vlm" / "images").glob("*.png"))[0]
    url = f"data:image/png;base64,{base64.b64encode(image.read_bytes()).decode()}"
    parts = [
        {"type": "text", "text": "What is in the picture?"},
        {"type": "image_url", "image_url": {"url": url}},
    ]
    answer = _client(urls.vision).chat.completions.create(
        model="vision", messages=[{"role": "user", "content": parts}], max_tokens=8
    )
    assert answer.choices[0].message.content


@flow("openai")
def required_and_named_tools(urls: Any) -> None:
    import json

    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        answer = _ask(urls, tools=[TOOL], tool_choice=choice, max_tokens=80)
        call = answer.choices[0].message.tool_calls[0].function
        assert call.name == "get_weather"
        assert json.loads(call.arguments)["city"] in ("Rome", "Oslo")


@flow("openai")
def tool_loop(urls: Any) -> None:
    import json

    client, messages = _client(urls.scripted), [{"role": "user", "content": CALL}]
    while True:
        answer = client.chat.completions.create(model="scripted", messages=messages, tools=[TOOL])
        message = answer.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            result = get_weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    assert message.content == ANSWER


@flow("openai")
def ten_turns_of_two_tools(urls: Any) -> None:
    import json

    def move(direction: str) -> str:
        assert direction in ("left", "right")
        return direction

    def wait(seconds: int) -> str:
        return str(int(seconds))

    tools: dict[str, Any] = {"move": move, "wait": wait}
    schemas: dict[str, dict[str, Any]] = {
        "move": {"direction": {"enum": ["left", "right"]}},
        "wait": {"seconds": {"enum": [1, 2]}},
    }
    offered = [
        {
            "type": "function",
            "function": {
                "name": name,
                "parameters": {
                    "type": "object",
                    "properties": properties,
                    "required": [*properties],
                    "additionalProperties": False,
                },
            },
        }
        for name, properties in schemas.items()
    ]
    messages: list[Any] = [{"role": "user", "content": "Walk."}]
    client = _client(urls.trained)
    for turn in range(10):
        named = {"type": "function", "function": {"name": [*tools][turn % 2]}}
        answer = client.chat.completions.create(
            model="trained",
            messages=messages,
            tools=offered,
            tool_choice=named,
            max_tokens=200,
            temperature=0,
            parallel_tool_calls=False,
        )
        messages.append(answer.choices[0].message)
        calls: Any = answer.choices[0].message.tool_calls
        (call,) = calls
        result = tools[call.function.name](**json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    assert len(messages) == 21


@flow("openai")
def parallel_calls_in_a_stream(urls: Any) -> None:
    plan = 'call get_weather {"city": "Rome"} & call get_weather {"city": "Oslo"}'
    options: Any = {"messages": [{"role": "user", "content": plan}], "tools": [TOOL]}
    with _client(urls.scripted).chat.completions.stream(model="scripted", **options) as stream:
        calls = stream.get_final_completion().choices[0].message.tool_calls
    assert [call.function.arguments for call in calls] == ['{"city": "Rome"}', '{"city": "Oslo"}']
    assert calls[0].id != calls[1].id


@flow("openai")
def parsed_tool(urls: Any) -> None:
    import openai
    from pydantic import BaseModel

    class Weather(BaseModel):
        city: str

    tool = openai.pydantic_function_tool(Weather, name="get_weather")
    answer = _client(urls.scripted).chat.completions.parse(
        model="scripted", messages=[{"role": "user", "content": CALL}], tools=[tool]
    )
    calls = answer.choices[0].message.tool_calls
    assert calls[0].function.parsed_arguments == Weather(city="Rome")


@flow("openai")
def reasoning_effort(urls: Any) -> None:
    assert _ask(urls, reasoning_effort="low").choices[0].message.content


@flow("openai")
def responses(urls: Any) -> None:
    client = _client(urls.trained)
    answer = client.responses.create(model="trained", input=QUESTION, max_output_tokens=16)
    assert answer.output_text
    assert answer.status in ("completed", "incomplete")


@flow("openai")
def responses_in_a_stream(urls: Any) -> None:
    with _client(urls.scripted).responses.stream(model="scripted", input="say Hello") as stream:
        deltas = [chunk.delta for chunk in stream if chunk.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text == "Hello"


@flow("openai")
def responses_with_tools(urls: Any) -> None:
    import json

    client, tool = _client(urls.scripted), {"type": "function", **FUNCTION}
    first = client.responses.create(model="scripted", input=CALL, tools=[tool])
    (call,) = first.output
    result = get_weather(**json.loads(call.arguments))
    output = {"type": "function_call_output", "call_id": call.call_id, "output": result}
    second = client.responses.create(
        model="scripted", input=[output], tools=[tool], previous_response_id=first.id
    )
    assert second.output_text == ANSWER


@flow("openai")
def responses_parsed(urls: Any) -> None:
    from pydantic import BaseModel

    class Answer(BaseModel):
        is_class: bool

    answer = _client(urls.trained).responses.parse(
        model="trained", input=QUESTION, text_format=Answer, max_output_tokens=80, temperature=0
    )
    assert isinstance(answer.output_parsed.is_class, bool)


@flow("openai")
def responses_with_tools_in_a_stream(urls: Any) -> None:
    import json

    client, tool = _client(urls.scripted), {"type": "function", **FUNCTION}
    options: Any = {"model": "scripted", "tools": [tool]}
    with client.responses.stream(input=CALL, **options) as stream:
        deltas = [
            chunk.delta
            for chunk in stream
            if chunk.type == "response.function_call_arguments.delta"
        ]
        first = stream.get_final_response()
    (call,) = first.output
    assert "".join(deltas) == call.arguments
    result = get_weather(**json.loads(call.arguments))
    output = {"type": "function_call_output", "call_id": call.call_id, "output": result}
    options |= {"input": [output], "previous_response_id": first.id}
    with client.responses.stream(**options) as stream:
        assert stream.get_final_response().output_text == ANSWER
