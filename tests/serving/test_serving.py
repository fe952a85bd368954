# SPDX-License-Identifier: Apache-2.0
"""The server, as OpenAI's own client meets it over a real connection: answers, streams, many at once, and its end."""

import asyncio
import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import numpy as np
import openai
import pytest
from fixtures_builds import Models
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
    dial,
    figures,
    pause,
    post,
    running,
    send,
    wait_until,
)

import qeff_zoo
from qeff_zoo.package import Package
from qeff_zoo.runtime import Engine, Request, Sampling, TextGenerationSession
from qeff_zoo.runtime.engine.answers import Answer
from qeff_zoo.runtime.text.tokenizer import Tokenizer
from qeff_zoo.serving.answers.chats import events_of
from qeff_zoo.serving.answers.logprobs import LogprobObjects
from qeff_zoo.serving.answers.objects import Reply
from qeff_zoo.tasks.encoders.endpoints.encoder_queue import EncoderQueue

pytestmark = pytest.mark.turns(2)

# --- answers --------------------------------------------------------------------------------------


def test_a_chat_is_what_the_session_answers(
    client: openai.OpenAI, alone: TextGenerationSession
) -> None:
    (expected,) = alone.generate([QUESTION[0]["content"]], chat=True, generation_len=16)
    found = chat(client)
    (choice,) = found.choices
    assert (found.object, found.model, found.system_fingerprint) == (
        "chat.completion", MODEL, "qz1-ab",
    )  # fmt: skip
    assert (choice.index, choice.message.role, choice.message.content) == (
        0, "assistant", expected.text,
    )  # fmt: skip
    assert choice.finish_reason == {"eos": "stop", "length": "length"}[expected.finish_reason]
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (
        expected.prompt_tokens, len(expected.token_ids),
    )  # fmt: skip
    assert found.usage.total_tokens == expected.prompt_tokens + len(expected.token_ids)


def test_a_conversation_is_put_into_the_template(
    client: openai.OpenAI, alone: TextGenerationSession
) -> None:
    messages = [*QUESTION, {"role": "assistant", "content": "A dict."}, QUESTION[0]]
    tokens = alone.encode_chat(messages)
    (expected,) = alone.generate([tokens], generation_len=16)
    parts = [{"type": "text", "text": part} for part in ("What is", "a dict?")]
    assert chat(client, messages=messages).choices[0].message.content == expected.text
    requested = chat(client, messages=[{"role": "user", "content": parts}], max_completion_tokens=3)
    assert requested.usage.prompt_tokens == len(
        alone.encode_chat([{"role": "user", "content": "What isa dict?"}])
    )
    assert requested.usage.completion_tokens <= 3


def test_a_prompt_may_have_four_forms(client: openai.OpenAI, alone: TextGenerationSession) -> None:
    other = "class socket."
    first, second = alone.generate([PROMPT, other], generation_len=12)
    ids, other_ids = alone.encode(PROMPT), alone.encode(other)
    for one in (PROMPT, [PROMPT], ids, [ids]):
        found = complete(client, one)
        assert [choice.text for choice in found.choices] == [first.text]
        assert (found.object, found.usage.prompt_tokens) == ("text_completion", len(ids))
    for several in ([PROMPT, other], [ids, other_ids]):
        found = complete(client, several, n=2)
        assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
        assert [choice.text for choice in found.choices] == [
            first.text, first.text, second.text, second.text,
        ]  # fmt: skip
        assert found.usage.prompt_tokens == len(ids) + len(other_ids)  # once each
    assert (
        len(
            complete(client, max_tokens=openai.omit, extra_body={"ignore_eos": True})
            .choices[0]
            .text
        )
        > 0
    )
    assert (
        complete(
            client, max_tokens=openai.omit, extra_body={"ignore_eos": True}
        ).usage.completion_tokens
        == 16
    )


def test_stop_strings_and_reasons(client: openai.OpenAI, alone: TextGenerationSession) -> None:
    (whole,) = alone.generate([PROMPT], generation_len=12)
    stop = whole.text[4:6]
    for given in (stop, ["never there", stop]):
        (choice,) = complete(client, stop=given).choices
        assert (choice.text, choice.finish_reason) == (whole.text[: whole.text.index(stop)], "stop")
    (choice,) = complete(client, max_tokens=3).choices
    assert choice.finish_reason == "length"


def test_the_same_seed_gives_the_same_answer(
    client: openai.OpenAI, alone: TextGenerationSession
) -> None:
    def texts(**choices: Any) -> list[str]:
        found = complete(client, temperature=openai.omit, **choices)  # 1 by default
        return [choice.text for choice in found.choices]

    expected = [
        alone.generate(
            [PROMPT], generation_len=12, sampling=Sampling(temperature=1, seed=seed)
        )[0].text
        for seed in (7, 8, 9)
    ]  # fmt: skip
    assert len(set(expected)) == 3
    assert texts(seed=7, n=3) == expected
    assert texts(seed=8) == expected[1:2]
    assert len({*texts(n=4)}) > 1
    sharp = Sampling(temperature=1, seed=7, top_k=2, min_p=0.2, repetition_penalty=1.3, top_p=0.9)
    (same,) = alone.generate([PROMPT], generation_len=12, sampling=sharp)
    beyond = {"top_k": 2, "min_p": 0.2, "repetition_penalty": 1.3}
    assert texts(seed=7, top_p=0.9, extra_body=beyond) == [same.text]


def test_penalties_reach_the_sampler(client: openai.OpenAI, alone: TextGenerationSession) -> None:
    sampling = Sampling(presence_penalty=1.5, frequency_penalty=2)
    (expected,) = alone.generate([PROMPT], generation_len=40, sampling=sampling)
    found = complete(client, max_tokens=40, presence_penalty=1.5, frequency_penalty=2)
    assert found.choices[0].text == expected.text
    assert complete(client, max_tokens=40).choices[0].text != expected.text


def test_neutral_arguments_of_qefficient_are_accepted(client: openai.OpenAI) -> None:
    neutral = {
        "tools": [],
        "logit_bias": {},
        "response_format": {"type": "text"},
        "functions": None,
    }
    found = chat(client, user="me", store=False, tool_choice="none", extra_body=neutral)
    assert found.choices == chat(client).choices


def test_models(client: openai.OpenAI) -> None:
    (listed,) = client.models.list().data
    assert (listed.id, listed.object, listed.owned_by) == (MODEL, "model", "qeff-zoo")
    assert listed.max_model_len == 128  # type: ignore[attr-defined]
    assert client.models.retrieve(MODEL) == listed
    with pytest.raises(openai.NotFoundError, match="no model 'gpt'"):
        client.models.retrieve("gpt")


# --- log-probabilities ----------------------------------------------------------------------------


def test_chat_logprobs(client: openai.OpenAI, alone: TextGenerationSession) -> None:
    (expected,) = alone.generate(
        [QUESTION[0]["content"]], chat=True, generation_len=16, sampling=Sampling(logprobs=3)
    )
    (choice,) = chat(client, logprobs=True, top_logprobs=3).choices
    assert expected.finish_reason == "eos"
    entries = choice.logprobs.content
    assert expected.logprobs is not None
    assert [one.logprob for one in entries] == [
        logprob.logprob for logprob in expected.logprobs[:-1]
    ]
    assert b"".join(bytes(one.bytes) for one in entries).decode() == expected.text
    assert "".join(one.token for one in entries) == expected.text
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        assert (entry.top_logprobs[0].token, entry.top_logprobs[0].logprob) == (
            entry.token,
            entry.logprob,
        )
    (bare,) = chat(client, logprobs=True).choices
    assert [one.top_logprobs for one in bare.logprobs.content] == [[]] * len(entries)
    assert chat(client).choices[0].logprobs is None


@pytest.mark.parametrize("stream", [False, True])
def test_completion_logprobs(client: openai.OpenAI, stream: bool) -> None:
    found = complete(client, [PROMPT, "class socket."], logprobs=2, stream=stream)
    chunks = list(found) if stream else [found]
    for number in range(2):
        choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == number]
        text = "".join(choice.text for choice in choices)
        tokens = [token for choice in choices for token in choice.logprobs.tokens]
        places = [place for choice in choices for place in choice.logprobs.text_offset]
        values = [value for choice in choices for value in choice.logprobs.token_logprobs]
        tops = [top for choice in choices for top in choice.logprobs.top_logprobs]
        assert "".join(tokens) == text
        assert places == [len("".join(tokens[:count])) for count in range(12)]
        assert [max(top, key=lambda token: top[token]) for top in tops] == tokens  # greedy
        assert [top[token] for top, token in zip(tops, tokens, strict=True)] == values
        assert {len(top) for top in tops} == {2}


@pytest.mark.parametrize("kind", ["chat", "completion"])
@pytest.mark.parametrize("stop", ["", "好c", "b"])
def test_logprobs_index_the_text(models: Models, kind: Any, stop: str) -> None:
    """Each token is a byte here. What is said of tokens is said when their text is, and only of those that it has."""
    tokenizer = Tokenizer(models.llama)
    ids = [*tokenizer.encode("aé你b好c", special_tokens=False), 256]
    request = Request(
        prompt=(5,),
        limit=50,
        sampling=Sampling(logprobs=1),
        stop=(stop,) if stop else (),
        eos_token_ids=frozenset({256}),
    )
    reply = Reply(kind, MODEL, "", LogprobObjects(tokenizer), logprobs=True)
    chunks: list[Any] = []
    answer = Answer(
        request,
        tokenizer,
        lambda delta: chunks.append(delta and reply.chunk(0, delta, events_of(None, delta.text))),
    )
    for token in ids:
        if not answer.ended:
            answer.extend(np.eye(257, dtype=np.float32)[token])
    text = {"": "aé你b好c", "好c": "aé你b", "b": "aé你"}[stop]
    assert (answer.ended, answer.text) == (True, text)
    spelled = len(text.encode())
    shown = ids[:spelled]
    offsets = [place for place, one in enumerate(text) for _ in one.encode()]
    length, tokens = 0, []
    for chunk in filter(None, chunks):
        (choice,) = chunk["choices"]
        if kind == "completion":
            places = choice["logprobs"]["text_offset"]
            assert places == offsets[len(tokens) : len(tokens) + len(places)]
            assert all(length <= place < length + len(choice["text"]) for place in places)
            length += len(choice["text"])
            tokens += choice["logprobs"]["tokens"]
        else:
            content = choice["delta"].get("content", "")
            entries = choice["logprobs"]["content"]
            assert len(entries) == len(content.encode())
            tokens += [entry["token"] for entry in entries]
    assert tokens == [tokenizer.piece(token) for token in shown]


def test_logprobs_end_with_the_text(client: openai.OpenAI) -> None:
    whole = complete(client).choices[0].text
    for stop in (whole[4:6], whole[-3:]):
        for stream in (False, True):
            found = complete(client, stop=stop, logprobs=1, stream=stream)
            choices = [chunk.choices[0] for chunk in (found if stream else [found])]
            text = "".join(choice.text for choice in choices)
            assert text == whole[: whole.index(stop)]
            places = [place for choice in choices for place in choice.logprobs.text_offset]
            tokens = [token for choice in choices for token in choice.logprobs.tokens]
            for place, token in zip(places, tokens, strict=True):
                assert place < len(text)
                assert whole.startswith(token, place)


def test_tokens_have_the_text_that_they_add(alone: TextGenerationSession) -> None:
    assert alone.tokenizer is not None
    ids = alone.encode("def f(a, b): return 'é'")
    assert "".join(map(alone.tokenizer.piece, ids[-3:])).endswith("'")
    assert all(alone.tokenizer.piece(end) for end in alone.eos_token_ids)  # by their names


# --- streams --------------------------------------------------------------------------------------


def test_a_streamed_chat_is_the_whole_one(client: openai.OpenAI) -> None:
    whole = chat(client, logprobs=True, top_logprobs=1)
    chunks = list(chat(client, logprobs=True, top_logprobs=1, stream=True))
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)
    (choices,) = zip(*(chunk.choices for chunk in chunks), strict=True)
    assert (choices[0].delta.role, choices[0].delta.content) == ("assistant", "")
    text = "".join(choice.delta.content or "" for choice in choices)
    assert text == whole.choices[0].message.content
    reasons = [choice.finish_reason for choice in choices]
    assert reasons == [None] * (len(choices) - 1) + [whole.choices[0].finish_reason]
    entries = [one for choice in choices[1:] for one in choice.logprobs.content]
    assert entries == whole.choices[0].logprobs.content


def test_streams_count_tokens_on_request(client: openai.OpenAI) -> None:
    whole = complete(client, [PROMPT, PROMPT], n=2)
    chunks = list(
        complete(client, [PROMPT, PROMPT], n=2, stream=True, stream_options={"include_usage": True})
    )
    texts = [""] * 4
    for chunk in chunks[:-1]:
        assert chunk.usage is None
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]
    assert chunks[-1].choices == []
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert getattr(chunks[-1].usage, name) == getattr(whole.usage, name)


def test_events_as_they_are_on_the_wire(url: str) -> None:
    body = {"model": MODEL, "messages": QUESTION, "max_tokens": 2, "stream": True}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        events = answer.read().decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(event.startswith("data: {") for event in events[:-2])
    assert json.loads(events[0][6:])["choices"][0]["delta"]["role"] == "assistant"


def test_text_comes_while_it_is_generated(client: openai.OpenAI, paused: threading.Event) -> None:
    """The second token is not there yet when the first one has come."""
    with complete(client, stream=True) as stream:
        first = next(stream)
        assert first.choices[0].text
        paused.set()
        assert len(list(stream)) == 11


# --- many at once ---------------------------------------------------------------------------------


def test_64_clients_get_what_they_get_alone(
    url: str, engine: Engine, alone: TextGenerationSession
) -> None:
    prompts = [f"class {name}{number}." for number in range(16) for name in ("a", "B", "io", "x_")]
    expected = [one.text for one in alone.generate(prompts, generation_len=12)]
    before = engine.stats()

    async def request(number: int, together: asyncio.Barrier) -> str:
        async with openai.AsyncOpenAI(
            base_url=url, api_key=KEY, max_retries=0, timeout=TIMEOUT
        ) as client:
            await together.wait()
            choices: Any = {"prompt": prompts[number], "max_tokens": 12, "temperature": 0}
            if number % 2:
                found = await client.completions.create(model=MODEL, **choices)
                return found.choices[0].text
            stream = await client.completions.create(model=MODEL, stream=True, **choices)
            return "".join([chunk.choices[0].text async for chunk in stream])

    async def main() -> list[str]:
        together = asyncio.Barrier(64)
        return await asyncio.gather(*(request(number, together) for number in range(64)))

    assert asyncio.run(main()) == expected
    after = engine.stats()
    assert sum(after.finished.values()) - sum(before.finished.values()) == 64
    assert (after.running, after.waiting) == (0, 0)


def test_clients_that_leave_free_their_rows(
    url: str, engine: Engine, paused: threading.Event
) -> None:
    """Streams and whole answers, begun and waiting: all clients leave, and nothing more is computed for them."""
    before = engine.stats().finished.get("cancelled", 0)
    with ExitStack() as clients:
        for count, stream in enumerate([True, False, True, False, True, False], 1):
            body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 100, "stream": stream}
            send(clients.enter_context(closing(dial(url))), json.dumps(body))
            wait_until(lambda count=count: sum(active(engine)) == count)  # type: ignore[misc]
        found = figures(url)
        assert found["requests_running"] >= 1
        assert found["requests_running"] + found["requests_waiting"] == 6
    wait_until(lambda: len(engine._leaving) >= 6)
    paused.set()
    wait_until(lambda: active(engine) == (0, 0))
    assert engine.stats().finished["cancelled"] == before + 6
    found = figures(url)
    assert (found["requests_running"], found["requests_waiting"]) == (0, 0)
    assert found["http_responses_total:/v1/completions:499"] >= 3


def test_a_client_that_stops_reading_a_stream(
    client: openai.OpenAI, engine: Engine, paused: threading.Event
) -> None:
    with complete(client, stream=True, max_tokens=100) as stream:
        next(stream)
    wait_until(lambda: bool(engine._leaving))
    paused.set()
    wait_until(lambda: active(engine) == (0, 0))


def test_the_server_answers_while_the_model_computes(
    url: str, client: openai.OpenAI, paused: threading.Event
) -> None:
    with complete(client, stream=True) as stream:
        next(stream)
        with urllib.request.urlopen(url.replace("/v1", "/health"), timeout=TIMEOUT) as answer:
            assert json.load(answer) == {"status": "ok"}
        assert client.models.list().data
        paused.set()


def test_a_full_queue_is_reported_at_once(
    trained: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    session: Any = qeff_zoo.load(trained, threads=1)
    gate = pause(session, monkeypatch)
    with Engine(session, max_waiting=1) as engine, running(engine) as url, connect(url) as client:
        with pytest.raises(openai.BadRequestError, match="6 choices; expected at most 5") as never:
            complete(client, n=6)
        assert never.value.param == "n"
        with complete(client, n=4, stream=True) as stream:
            next(stream)
            with pytest.raises(openai.RateLimitError, match=r"[45] requests run") as full:
                complete(client, n=2)
            assert (full.value.status_code, full.value.code) == (429, "queue_full")
            assert full.value.response.headers["Retry-After"] == "1"
            gate.set()
            list(stream)
        wait_until(lambda: active(engine) == (0, 0))
        assert complete(client, n=5).usage.completion_tokens > 0


# --- what goes wrong ------------------------------------------------------------------------------


def test_a_failure_reveals_nothing_to_the_client(
    url: str,
    client: openai.OpenAI,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(_: Any) -> Any:
        raise MemoryError("secret")

    with monkeypatch.context() as patch:
        patch.setattr(engine.session.decoder, "prefill", fail)
        with pytest.raises(openai.InternalServerError) as failed:
            complete(client)
        stream = chat(client, stream=True)
        with pytest.raises(openai.APIError, match="failed to answer") as broken:
            list(stream)
    assert "secret" not in str(failed.value)
    assert "secret" not in str(broken.value.body)
    assert caplog.text.count("MemoryError: secret") == 2
    assert complete(client).choices[0].text


def test_an_unexpected_failure_has_an_error_object(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> Any:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr("qeff_zoo.serving.apis.openai.generation.prepare_completion", fail)
    status, answer = post(url, "completions", json.dumps({"model": MODEL, "prompt": "a"}).encode())
    assert (status, answer["error"]["code"]) == (500, "internal_error")
    assert "secret" not in str(answer)
    wait_until(lambda: "ZeroDivisionError: secret" in caplog.text)
    assert figures(url)["http_responses_total:/v1/completions:500"] >= 1


@pytest.mark.parametrize("patience", [TIMEOUT, 0])
def test_shutdown_waits_for_requests_or_rejects_them(
    trained: Package, monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    session: Any = qeff_zoo.load(trained, threads=1)
    decode = session.decoder.decode

    def slowly(pieces: Any) -> Any:
        time.sleep(0.01)
        return decode(pieces)

    monkeypatch.setattr(session.decoder, "decode", slowly)
    with Engine(session) as engine:
        app_running = running(engine, engine.close, patience)
        url = app_running.__enter__()
        with connect(url) as client:
            stream = complete(client, stream=True, max_tokens=100, extra_body={"ignore_eos": True})
            next(stream)
            ender = threading.Thread(target=app_running.__exit__, args=(None, None, None))
            ender.start()
            if patience:
                assert len(list(stream)) > 50
            else:
                with pytest.raises(openai.APIError, match="server is shutting down"):
                    list(stream)
            ender.join(TIMEOUT)
            with pytest.raises(openai.APIConnectionError):
                complete(client)


# --- figures --------------------------------------------------------------------------------------


def test_figures(url: str, client: openai.OpenAI) -> None:
    complete(client, "import collections, socket, json, os, sys, re, io, abc")
    before = figures(url)
    found = complete(client, "import collections, socket, json, os, sys, re, io, abc", n=2)
    after, deadline = before, time.monotonic() + TIMEOUT
    counted = "prompt_tokens_total"  # after the last token
    while after[counted] == before[counted] and time.monotonic() < deadline:
        after = figures(url)
    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert grown["prompt_tokens_total"] == 2 * found.usage.prompt_tokens
    assert grown["generated_tokens_total"] == found.usage.completion_tokens
    assert grown["reused_tokens_total"] > 0
    reasons = ("length", "eos")  # one that nobody had yet is not there
    assert sum(grown.get(f"requests_finished_total:{reason}", 0) for reason in reasons) == 2
    assert grown["time_to_first_token_seconds_count"] == 2
    assert grown["inter_token_seconds_count"] == found.usage.completion_tokens - 2
    assert grown["http_responses_total:/v1/completions:200"] == 1
    assert after["rows"] == 4
    assert found.usage.prompt_tokens_details.cached_tokens > 0


# --- embeddings -----------------------------------------------------------------------------------


def test_embeddings(encoder_package: Package) -> None:
    session: Any = qeff_zoo.load(encoder_package, threads=1)
    texts = ["the lazy dog", "fox", "a text of words that are there twice or thrice"]
    expected = session.embed(texts)
    with (
        closing(EncoderQueue(session, max_waiting=4)) as queue,
        running(queue) as url,
        connect(url) as client,
    ):
        for encoding in ({}, {"encoding_format": "float"}):  # the client's own choice is base64
            found = client.embeddings.create(model=MODEL, input=texts, **encoding)  # type: ignore[call-overload]
            assert [entry.index for entry in found.data] == [0, 1, 2]
            assert np.allclose([entry.embedding for entry in found.data], expected, atol=1e-5)
        tokens = session.encode(texts)
        assert found.usage.prompt_tokens == sum(map(len, tokens))
        by_ids = client.embeddings.create(model=MODEL, input=tokens[0])
        assert np.allclose(by_ids.data[0].embedding, expected[0], atol=1e-5)
        with pytest.raises(openai.BadRequestError, match="expected 1 to 40") as empty:
            client.embeddings.create(model=MODEL, input=[[]])
        assert empty.value.param == "input"
        with pytest.raises(openai.NotFoundError):
            complete(client)
        assert figures(url)["prompt_tokens_total"] == 2 * found.usage.prompt_tokens + len(tokens[0])


def test_an_embedding_of_a_truncated_text_is_marked(encoder_package: Package) -> None:
    session: Any = qeff_zoo.load(encoder_package, threads=1)
    with (
        closing(EncoderQueue(session, max_waiting=4)) as queue,
        running(queue) as url,
        connect(url) as client,
    ):

        def request(*texts: str, **choices: Any) -> Any:
            return client.embeddings.create(model=MODEL, input=[*texts], extra_body=choices)

        found = request("fox", "the lazy dog " * 20, "the")
        assert [entry.model_extra for entry in found.data] == [{}, {"truncated": True}, {}]
        assert request("the lazy dog " * 20, truncate="END").usage.total_tokens == 40
        assert request("fox", truncate="NONE").data
        with pytest.raises(openai.BadRequestError, match="Text 1 has more than 40 tokens") as long:
            request("fox", "the lazy dog " * 20, truncate="NONE")
        assert (long.value.param, long.value.code) == ("input", "context_length_exceeded")
        with pytest.raises(openai.BadRequestError, match="expected 'START', 'END' or 'NONE'"):
            request("fox", truncate="MIDDLE")


@pytest.fixture
def held(
    encoder_package: Package, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Any, threading.Event]]:
    """Give a session, and an event without which it embeds nothing."""
    session: Any = qeff_zoo.load(encoder_package, threads=1)
    gate, run = threading.Event(), session.run
    monkeypatch.setattr(session, "run", lambda *a, **k: gate.wait(TIMEOUT) and run(*a, **k))
    yield session, gate
    gate.set()


def embed(url: str) -> int:
    """Ask for one embedding; give the status."""
    return post(url, "embeddings", json.dumps({"model": MODEL, "input": "fox"}).encode())[0]


def test_embeddings_wait_their_turn(held: tuple[Any, threading.Event]) -> None:
    session, gate = held
    with (
        closing(EncoderQueue(session, max_waiting=1)) as queue,
        running(queue) as url,
        ThreadPoolExecutor() as clients,
    ):
        taken = [clients.submit(embed, url)]
        wait_until(lambda: active(queue) == (1, 0))
        taken.append(clients.submit(embed, url))  # which is not in the call that runs
        wait_until(lambda: active(queue) == (1, 1))
        assert embed(url) == 429
        gate.set()
        assert [one.result(TIMEOUT) for one in taken] == [200, 200]
        assert active(queue) == (0, 0)


def test_embeddings_end_with_the_server(held: tuple[Any, threading.Event]) -> None:
    session, gate = held
    queue = EncoderQueue(session, max_waiting=1)

    def release_at_end() -> None:
        wait_until(lambda: queue._closing)
        gate.set()

    with ThreadPoolExecutor() as clients:
        with running(queue, queue.close) as url:
            taken = [clients.submit(embed, url)]
            wait_until(lambda: active(queue) == (1, 0))
            taken.append(clients.submit(embed, url))  # which is not in the call that runs
            wait_until(lambda: active(queue) == (1, 1))
            clients.submit(release_at_end)
        assert sorted(one.result(TIMEOUT) for one in taken) == [200, 503]
