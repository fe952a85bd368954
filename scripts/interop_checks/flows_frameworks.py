# SPDX-License-Identifier: Apache-2.0
"""Flows of frameworks: LiteLLM, OpenAI's agents, Instructor, LlamaIndex, Pydantic AI and smolagents."""

from typing import Any, Literal

from flows import ANSWER, CALL, CHAT, QUESTION, TOOL, flow, get_weather
from flows_openai import KEY
from pydantic import BaseModel


class City(BaseModel):
    """A city with its country."""

    name: Literal["Rome", "Oslo"]
    is_capital: bool


def _litellm(url: str, model: str, **options: Any) -> Any:
    import litellm

    litellm.telemetry = False
    usual = {"messages": CHAT, "max_tokens": 16, "temperature": 0}
    return litellm.completion(model=model, api_base=url, api_key=KEY, **{**usual, **options})


@flow("litellm")
def litellm_openai(urls: Any) -> None:
    assert _litellm(urls.trained, "openai/trained").choices[0].message.content


@flow("litellm")
def litellm_stream(urls: Any) -> None:
    chunks = _litellm(urls.trained, "openai/trained", stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == _litellm(urls.trained, "openai/trained").choices[0].message.content


@flow("litellm")
def litellm_tools(urls: Any) -> None:
    answer = _litellm(
        urls.scripted,
        "hosted_vllm/scripted",
        messages=[{"role": "user", "content": CALL}],
        tools=[TOOL],
        max_tokens=200,
    )
    assert answer.choices[0].message.tool_calls[0].function.arguments == '{"city": "Rome"}'


@flow("litellm")
def litellm_embeddings(urls: Any) -> None:
    import litellm

    answer = litellm.embedding(
        model="hosted_vllm/embeddings", input=["a cat"], api_base=urls.embeddings, api_key=KEY
    )
    assert len(answer.data[0]["embedding"]) == 384


@flow("litellm")
def litellm_rerank(urls: Any) -> None:
    import litellm

    answer = litellm.rerank(
        model="hosted_vllm/reranker",
        query="a cat",
        documents=["a kitten", "interest rates"],
        api_base=urls.reranker,
        api_key=KEY,
    )
    assert len(answer.results) == 2


@flow("litellm")
async def litellm_router_in_a_stream(urls: Any) -> None:
    from litellm import Router

    target = {"model": "openai/trained", "api_base": urls.trained, "api_key": KEY}
    router = Router(model_list=[{"model_name": "gpt-4o", "litellm_params": target}], num_retries=0)
    stream = await router.acompletion("gpt-4o", CHAT, stream=True, max_tokens=16, temperature=0)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == _litellm(urls.trained, "openai/trained").choices[0].message.content


@flow("litellm")
def litellm_tools_of_ollama(urls: Any) -> None:
    import litellm

    base = urls.scripted.removesuffix("/v1")
    info = litellm.get_model_info("ollama_chat/scripted", api_base=base, api_key=KEY)
    assert info["supports_function_calling"]
    assert info["max_input_tokens"]
    messages = [{"role": "user", "content": CALL}]
    options = {"messages": messages, "tools": [TOOL], "max_tokens": 200}
    answer = _litellm(base, "ollama_chat/scripted", **options)
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "get_weather"


def _litellm_chats(provider: str, path: str) -> None:
    """Register a flow of a provider: a chat, and the same in a stream.

    Args:
        provider: Prefix of its models.
        path: Path of its URL on a server.
    """

    def chats(urls: Any) -> None:
        usual = _litellm(urls.trained, "openai/trained").choices[0].message.content
        base, model = urls.trained.removesuffix("/v1") + path, f"{provider}/trained"
        assert _litellm(base, model).choices[0].message.content == usual
        chunks = _litellm(base, model, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == usual

    chats.__name__ = f"litellm_{provider}"
    flow("litellm")(chats)


for _provider in (
    *("hosted_vllm", "custom_openai", "lm_studio", "llamafile", "litellm_proxy"),
    *("docker_model_runner", "xinference", "deepseek", "mistral", "together_ai", "openrouter"),
):
    _litellm_chats(_provider, "/v1")
for _provider in ("ollama_chat", "anthropic"):
    _litellm_chats(_provider, "")


@flow("litellm")
def litellm_text_completions(urls: Any) -> None:
    import litellm

    for model in ("text-completion-openai/trained", "hosted_vllm/trained"):
        answer = litellm.text_completion(
            "class ", model, api_base=urls.trained, api_key=KEY, max_tokens=8, temperature=0
        )
        assert answer.choices[0].text, model


@flow("litellm")
def litellm_generate_of_ollama(urls: Any) -> None:
    base = urls.trained.removesuffix("/v1")
    whole = _litellm(base, "ollama/trained").choices[0].message.content
    chunks = _litellm(base, "ollama/trained", stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole != ""


def _litellm_embeddings(provider: str, path: str) -> None:
    def embeddings(urls: Any) -> None:
        import litellm

        base = urls.embeddings.removesuffix("/v1")
        texts = ["a cat", "a kitten"]
        options = {"api_base": base + path, "api_key": KEY}
        answer = litellm.embedding(f"{provider}/embeddings", texts, **options)
        assert [len(entry["embedding"]) for entry in answer.data] == [384, 384]

    embeddings.__name__ = f"litellm_embeddings_of_{provider}"
    flow("litellm")(embeddings)


for _provider, _path in (
    *((one, "/v1") for one in ("openai", "lm_studio", "xinference", "infinity", "jina_ai")),
    *(("ollama", ""), ("cohere", "/v2/embed")),
):
    _litellm_embeddings(_provider, _path)


def _litellm_rerank(provider: str, path: str, **options: Any) -> None:
    def rerank(urls: Any) -> None:
        import litellm

        answer = litellm.rerank(
            f"{provider}/reranker",
            "a cat",
            ["a kitten", "interest rates"],
            api_base=urls.reranker.removesuffix("/v1") + path,
            api_key=KEY,
            **options,
        )
        assert sorted(result["index"] for result in answer.results) == [0, 1]

    rerank.__name__ = f"litellm_rerank_of_{provider}"
    flow("litellm")(rerank)


for _provider in ("cohere", "jina_ai", "litellm_proxy"):
    _litellm_rerank(_provider, "")
# Infinity's documents are texts; those of the same path in vLLM and here are objects.
_litellm_rerank("infinity", "", return_documents=False)


@flow("litellm")
def litellm_responses(urls: Any) -> None:
    import litellm

    answer = litellm.responses(
        model="openai/scripted", input="say Hello", api_base=urls.scripted, api_key=KEY
    )
    assert answer.output[-1].content[0].text == "Hello"


def _agents(url: str, *, chat: bool, **options: Any) -> Any:
    import agents
    from openai import AsyncOpenAI

    agents.set_tracing_disabled(True)
    kind = agents.OpenAIChatCompletionsModel if chat else agents.OpenAIResponsesModel
    client = AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0)
    name = "trained" if "trained" in options.pop("name", "scripted") else "scripted"
    model = kind(model=name, openai_client=client)
    return agents.Agent(name="Guide", instructions="Help.", model=model, **options)


def _run(agent: Any, text: str) -> Any:
    import agents

    return agents.Runner.run_sync(agent, text, max_turns=12).final_output


@flow("agents")
def agents_chat(urls: Any) -> None:
    assert _run(_agents(urls.scripted, chat=True), "say Hello") == "Hello"


@flow("agents")
def agents_chat_with_tools(urls: Any) -> None:
    import agents

    agent = _agents(urls.scripted, chat=True, tools=[agents.function_tool(get_weather)])
    assert _run(agent, CALL) == ANSWER


@flow("agents")
def agents_responses_with_tools(urls: Any) -> None:
    import agents

    agent = _agents(urls.scripted, chat=False, tools=[agents.function_tool(get_weather)])
    assert _run(agent, CALL) == ANSWER


@flow("agents")
async def agents_in_a_stream(urls: Any) -> None:
    import agents

    agent = _agents(urls.scripted, chat=False, tools=[agents.function_tool(get_weather)])
    result = agents.Runner.run_streamed(agent, CALL)
    kinds = [event.type async for event in result.stream_events()]
    assert result.final_output == ANSWER
    assert "raw_response_event" in kinds


@flow("agents")
def agents_structured_output(urls: Any) -> None:
    agent = _agents(urls.scripted, chat=False, output_type=City)
    answer = _run(agent, 'say {"name": "Rome", "is_capital": true}')
    assert answer == City(name="Rome", is_capital=True)


@flow("agents")
def agents_handoff(urls: Any) -> None:
    other = _agents(urls.scripted, chat=False).clone(name="Other")
    agent = _agents(urls.scripted, chat=False, handoffs=[other])
    assert _run(agent, "call transfer_to_other {}\nsay Handed over") == "Handed over"


@flow("agents")
def agents_ten_turns_of_two_tools(urls: Any) -> None:
    import agents

    def double(n: int) -> int:
        return 2 * n

    def add_one(n: int) -> int:
        return n + 1

    plan = ['call double {"n": 1}']
    plan += [f'call {"add_one" if turn % 2 else "double"} {{"n": RESULT}}' for turn in range(1, 10)]
    tools = [agents.function_tool(double), agents.function_tool(add_one)]
    agent = _agents(urls.scripted, chat=False, tools=tools)
    assert _run(agent, "\n".join([*plan, "say RESULT"])) == "63"


def _instructor(urls: Any, mode: str, text: str, model: str) -> Any:
    import instructor
    from flows_openai import _client

    client = instructor.from_openai(_client(getattr(urls, model)), mode=instructor.Mode[mode])
    return client.chat.completions.create(
        model=model,
        response_model=City,
        messages=[{"role": "user", "content": text}],
        max_retries=0,
        max_tokens=200,
        temperature=0,
    )


@flow("instructor")
def instructor_tools(urls: Any) -> None:
    assert isinstance(_instructor(urls, "TOOLS", QUESTION, "trained"), City)


@flow("instructor")
def instructor_json_schema(urls: Any) -> None:
    assert isinstance(_instructor(urls, "JSON_SCHEMA", QUESTION, "trained"), City)


@flow("instructor")
def instructor_json(urls: Any) -> None:
    text = 'say {"name": "Rome", "is_capital": true}'
    answer = _instructor(urls, "JSON", text, "scripted")
    assert (answer.name, answer.is_capital) == ("Rome", True), answer


@flow("instructor")
def instructor_partial(urls: Any) -> None:
    import instructor
    from flows_openai import _client

    client = instructor.from_openai(_client(urls.trained), mode=instructor.Mode.TOOLS)
    parts = list(
        client.chat.completions.create_partial(
            model="trained",
            response_model=City,
            messages=[{"role": "user", "content": QUESTION}],
            max_tokens=200,
        )
    )
    assert parts[-1].is_capital in (True, False)


def _llama_index(url: str, model: str) -> Any:
    from llama_index.llms.openai_like import OpenAILike

    return OpenAILike(
        model=model,
        api_base=url,
        api_key=KEY,
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=2048,
        max_tokens=100,
        temperature=0,
        max_retries=0,
    )


@flow("llama_index")
def llama_index_chat(urls: Any) -> None:
    from llama_index.core.llms import ChatMessage

    assert _llama_index(urls.trained, "trained").chat([ChatMessage(QUESTION)]).message.content


@flow("llama_index")
def llama_index_stream(urls: Any) -> None:
    model = _llama_index(urls.trained, "trained")
    text = "".join(chunk.delta or "" for chunk in model.stream_complete(QUESTION))
    assert text == model.complete(QUESTION).text


@flow("llama_index")
def llama_index_tools(urls: Any) -> None:
    from llama_index.core.tools import FunctionTool

    model = _llama_index(urls.scripted, "scripted")
    tool = FunctionTool.from_defaults(get_weather)
    answer = model.predict_and_call([tool], CALL)
    assert str(answer) == "31 C", answer


def _pydantic_ai(url: str, **options: Any) -> Any:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("scripted", provider=OpenAIProvider(base_url=url, api_key=KEY))
    return Agent(model, **options)


@flow("pydantic_ai")
def pydantic_ai_chat(urls: Any) -> None:
    result = _pydantic_ai(urls.scripted, instructions="Help.").run_sync("say Hello")
    assert result.output == "Hello"
    assert result.usage.output_tokens > 0


@flow("pydantic_ai")
def pydantic_ai_tools(urls: Any) -> None:
    agent = _pydantic_ai(urls.scripted, tools=[get_weather])
    result = agent.run_sync(CALL)
    assert result.output == ANSWER
    again = agent.run_sync("say Bye", message_history=result.all_messages())
    assert again.output == "Bye"


@flow("pydantic_ai")
async def pydantic_ai_in_a_stream(urls: Any) -> None:
    async with _pydantic_ai(urls.scripted, tools=[get_weather]).run_stream(CALL) as result:
        parts = [part async for part in result.stream_text(delta=True)]
    assert "".join(parts) == ANSWER


@flow("pydantic_ai")
def pydantic_ai_structured_output(urls: Any) -> None:
    from pydantic_ai import NativeOutput, PromptedOutput, ToolOutput

    answer = '{"name": "Rome", "is_capital": true}'
    for output, step in (
        (ToolOutput(City, name="answer"), f"call answer {answer}"),
        (NativeOutput(City), f"say {answer}"),
        (PromptedOutput(City), f"say {answer}"),
    ):
        result = _pydantic_ai(urls.scripted, output_type=output).run_sync(step)
        assert result.output == City(name="Rome", is_capital=True), output


@flow("pydantic_ai")
async def pydantic_ai_responses(urls: Any) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=urls.scripted, api_key=KEY)
    agent = Agent(OpenAIResponsesModel("scripted", provider=provider), tools=[get_weather])
    assert (await agent.run(CALL)).output == ANSWER
    async with agent.run_stream(CALL) as result:
        assert await result.get_output() == ANSWER


def _smolagents(url: str, **options: Any) -> Any:
    from smolagents import OpenAIServerModel, ToolCallingAgent, tool

    model = OpenAIServerModel("scripted", api_base=url, api_key=KEY)
    return ToolCallingAgent(tools=[tool(get_weather)], model=model, verbosity_level=-1, **options)


_FINAL = 'call final_answer {"answer": "It is warm."}'


@flow("smolagents")
def smolagents_tools_and_a_second_turn(urls: Any) -> None:
    agent = _smolagents(urls.scripted, max_steps=1)
    agent.run('call get_weather {"city": "Rome"}')
    assert "31 C" in str(agent.write_memory_to_messages())
    assert agent.run(_FINAL, reset=False) == "It is warm."


@flow("smolagents")
def smolagents_in_a_stream(urls: Any) -> None:
    *_, last = _smolagents(urls.scripted, stream_outputs=True).run(_FINAL, stream=True)
    assert last.output == "It is warm."
