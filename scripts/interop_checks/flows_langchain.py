# SPDX-License-Identifier: Apache-2.0
"""Flows of LangChain, by its integrations of OpenAI, Anthropic and ollama, and of LangGraph."""

from typing import Any

from flows import ANSWER, CALL, QUESTION, flow, get_weather
from flows_frameworks import City
from flows_openai import KEY


def _langchain(url: str, model: str = "trained", **options: Any) -> Any:
    from langchain_openai import ChatOpenAI

    usual = {"max_tokens": 60, "temperature": 0, "max_retries": 0}
    return ChatOpenAI(base_url=url, api_key=KEY, model=model, **{**usual, **options})


@flow("langchain_openai")
def langchain_invoke(urls: Any) -> None:
    answer = _langchain(urls.trained).invoke(QUESTION)
    assert answer.content
    assert answer.usage_metadata["output_tokens"] > 0


@flow("langchain_openai")
def langchain_stream(urls: Any) -> None:
    model = _langchain(urls.trained)
    text = "".join(str(chunk.content) for chunk in model.stream(QUESTION))
    assert text == model.invoke(QUESTION).content


@flow("langchain_openai")
async def langchain_async_batch(urls: Any) -> None:
    one, other = await _langchain(urls.trained).abatch([QUESTION, QUESTION])
    assert one.content == other.content


@flow("langchain_openai")
def langchain_json_schema(urls: Any) -> None:
    model = _langchain(urls.trained).with_structured_output(City, method="json_schema")
    assert isinstance(model.invoke(QUESTION), City)


@flow("langchain_openai")
def langchain_json_mode(urls: Any) -> None:
    model = _langchain(urls.scripted, "scripted").with_structured_output(City, method="json_mode")
    answer = model.invoke('say {"name": "Rome", "is_capital": true}')
    assert answer == City(name="Rome", is_capital=True)


@flow("langchain_openai")
def langchain_function_calling(urls: Any) -> None:
    model = _langchain(urls.trained).with_structured_output(City, method="function_calling")
    assert isinstance(model.invoke(QUESTION), City)


@flow("langchain_openai")
def langchain_bind_tools(urls: Any) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage

    model = _langchain(urls.scripted, "scripted").bind_tools([get_weather])
    messages: list[Any] = [HumanMessage(CALL)]
    messages.append(model.invoke(messages))
    (call,) = messages[-1].tool_calls
    messages.append(ToolMessage(get_weather(**call["args"]), tool_call_id=call["id"]))
    assert model.invoke(messages).content == ANSWER


@flow("langchain_openai")
def langchain_responses(urls: Any) -> None:
    model = _langchain(urls.scripted, "scripted", use_responses_api=True)
    assert model.invoke("say Hello").text == "Hello"
    assert model.bind_tools([get_weather]).invoke(CALL).tool_calls[0]["args"] == {"city": "Rome"}


@flow("langchain_openai")
def langchain_embeddings(urls: Any) -> None:
    from langchain_openai import OpenAIEmbeddings

    made = OpenAIEmbeddings(
        base_url=urls.embeddings,
        api_key=KEY,
        model="embeddings",
        check_embedding_ctx_length=False,
    )
    assert len(made.embed_documents(["a cat", "a kitten"])) == 2


def _use_tools(model: Any) -> None:
    """Check a call, its result, and the same in a stream."""
    from langchain_core.messages import HumanMessage, ToolMessage

    bound, messages = model.bind_tools([get_weather]), [HumanMessage(CALL)]
    messages.append(bound.invoke(messages))
    (call,) = messages[-1].tool_calls
    assert call["args"] == {"city": "Rome"}
    whole: Any = None
    for part in bound.stream(messages[:1]):
        whole = part if whole is None else whole + part
    assert [one["args"] for one in whole.tool_calls] == [{"city": "Rome"}]
    messages.append(ToolMessage(get_weather(**call["args"]), tool_call_id=call["id"]))
    assert bound.invoke(messages).text == ANSWER


def _anthropic(url: str, model: str) -> Any:
    from langchain_anthropic import ChatAnthropic

    base = url.removesuffix("/v1")
    return ChatAnthropic(base_url=base, api_key=KEY, model=model, max_tokens=200, max_retries=0)


@flow("langchain_anthropic")
def langchain_anthropic_messages(urls: Any) -> None:
    answer = _anthropic(urls.trained, "trained").invoke(QUESTION)
    assert answer.text
    assert answer.usage_metadata["output_tokens"] > 0


@flow("langchain_anthropic")
def langchain_anthropic_stream(urls: Any) -> None:
    parts = [*_anthropic(urls.scripted, "scripted").stream("say Hello there")]
    assert "".join(part.text for part in parts) == "Hello there"


@flow("langchain_anthropic")
def langchain_anthropic_tools(urls: Any) -> None:
    _use_tools(_anthropic(urls.scripted, "scripted"))


@flow("langchain_anthropic")
def langchain_anthropic_structured_output(urls: Any) -> None:
    model = _anthropic(urls.trained, "trained")
    assert isinstance(model.with_structured_output(City).invoke(QUESTION), City)


def _ollama(url: str, model: str) -> Any:
    from langchain_ollama import ChatOllama

    headers = {"headers": {"Authorization": f"Bearer {KEY}"}}
    base = url.removesuffix("/v1")
    return ChatOllama(
        base_url=base, model=model, client_kwargs=headers, num_predict=200, temperature=0
    )


@flow("langchain_ollama")
def langchain_ollama_chat(urls: Any) -> None:
    answer = _ollama(urls.trained, "trained").invoke(QUESTION)
    assert answer.content
    assert answer.usage_metadata["output_tokens"] > 0


@flow("langchain_ollama")
async def langchain_ollama_stream(urls: Any) -> None:
    model = _ollama(urls.scripted, "scripted")
    parts = [part.content async for part in model.astream("say Hello there")]
    assert "".join(parts) == "Hello there"


@flow("langchain_ollama")
def langchain_ollama_tools(urls: Any) -> None:
    _use_tools(_ollama(urls.scripted, "scripted"))


@flow("langchain_ollama")
def langchain_ollama_structured_output(urls: Any) -> None:
    model = _ollama(urls.trained, "trained")
    assert isinstance(model.with_structured_output(City).invoke(QUESTION), City)


@flow("langchain_ollama")
def langchain_ollama_embeddings(urls: Any) -> None:
    from langchain_ollama import OllamaEmbeddings

    made = OllamaEmbeddings(
        base_url=urls.embeddings.removesuffix("/v1"),
        model="embeddings",
        client_kwargs={"headers": {"Authorization": f"Bearer {KEY}"}},
    )
    assert len(made.embed_documents(["a cat", "a kitten"])) == 2


def _graph(model: Any, **options: Any) -> Any:
    from langgraph.prebuilt import create_react_agent

    return create_react_agent(model, [get_weather], **options)


_ASKED = {"messages": [{"role": "user", "content": CALL}]}


@flow("langgraph")
def langgraph_agents(urls: Any) -> None:
    for model in (
        _langchain(urls.scripted, "scripted"),
        _langchain(urls.scripted, "scripted", use_responses_api=True),
        _anthropic(urls.scripted, "scripted"),
        _ollama(urls.scripted, "scripted"),
    ):
        messages = _graph(model).invoke(_ASKED)["messages"]
        assert [message.type for message in messages] == ["human", "ai", "tool", "ai"], model
        assert messages[-1].text == ANSWER, model


@flow("langgraph")
async def langgraph_in_a_stream(urls: Any) -> None:
    stream = _graph(_langchain(urls.scripted, "scripted")).astream(_ASKED, stream_mode="messages")
    parts = [message.text async for message, _ in stream if message.type.startswith("AI")]
    assert "".join(parts) == ANSWER


@flow("langgraph")
def langgraph_goes_on(urls: Any) -> None:
    from langgraph.checkpoint.memory import InMemorySaver

    agent = _graph(_langchain(urls.scripted, "scripted"), checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": "1"}}
    agent.invoke(_ASKED, thread)
    after = agent.invoke({"messages": [{"role": "user", "content": "say Bye"}]}, thread)
    assert len(after["messages"]) == 6
    assert after["messages"][-1].text == "Bye"
