# SPDX-License-Identifier: Apache-2.0
"""The engine: one session for many threads and coroutines, each with an answer of its own."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fixtures_runtime import LENGTH, PROMPTS

from qeff_zoo.errors import BusyError, GenerationError
from qeff_zoo.runtime import (
    Delta,
    Engine,
    Generation,
    Handle,
    Sampling,
    TextGenerationSession,
    stream_deltas,
)

LONG = 40  # tokens, of which a request can be deprived


@pytest.fixture
def session(sessions: dict[str, TextGenerationSession]) -> TextGenerationSession:
    return sessions["slots"]


@pytest.fixture
def engine(session: TextGenerationSession) -> Iterator[Engine]:
    with Engine(session) as opened:
        yield opened


@pytest.fixture
def paused(session: TextGenerationSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Give an event without which no step is made."""
    gate = threading.Event()
    decode = session.decoder.decode

    def wait(pieces: Any) -> Any:
        assert gate.wait(60)
        return decode(pieces)

    monkeypatch.setattr(session.decoder, "decode", wait)
    yield gate
    gate.set()


def alone(session: TextGenerationSession) -> list[Generation]:
    return [session.generate([prompt], generation_len=LENGTH)[0] for prompt in PROMPTS]


def text_of(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


def test_threads_get_what_they_get_alone(session: TextGenerationSession) -> None:
    expected = alone(session) * 4
    with Engine(session) as engine, ThreadPoolExecutor(16) as pool:

        def request(prompt: str) -> tuple[Generation, list[Delta]]:
            handle = engine.submit(session.request(prompt, generation_len=LENGTH))
            deltas = list(handle)
            return handle.result(), deltas

        found = list(pool.map(request, PROMPTS * 4))
        stats = engine.stats()
    assert [generation for generation, _ in found] == expected
    assert [text_of(deltas) for _, deltas in found] == [one.text for one in expected]
    assert [deltas[-1].finish_reason for _, deltas in found] == [
        one.finish_reason for one in expected
    ]
    assert (stats.rows, stats.running, stats.waiting) == (2, 0, 0)
    assert sum(stats.finished.values()) == len(expected)
    assert stats.prompt_tokens == sum(one.prompt_tokens for one in expected)
    assert stats.generated_tokens == sum(len(one.token_ids) for one in expected)
    assert stats.reused_tokens == sum(one.reused_tokens for one, _ in found) > 0


def test_an_event_loop_is_woken_once_a_step(
    session: TextGenerationSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever a loop runs, the engine's thread waits to continue. Only a first token is passed on within a step."""
    steps, woken, decode = list[int](), list[int](), session.decoder.decode

    def counted(pieces: Any) -> Any:
        steps.append(len(pieces))
        return decode(pieces)

    monkeypatch.setattr(session.decoder, "decode", counted)
    request = session.request("a", generation_len=8, ignore_eos=True)

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        wake = loop.call_soon_threadsafe

        def waking(*given: Any) -> Any:
            woken.append(1)
            return wake(*given)

        monkeypatch.setattr(loop, "call_soon_threadsafe", waking)
        with Engine(session) as engine:
            handles = engine.submit_together([request] * 2)
            return [number async for number, _ in stream_deltas(handles)]

    assert sorted(asyncio.run(main())) == [0] * 8 + [1] * 8
    assert sum(steps) == 14
    assert len(woken) <= len(steps) + 2


def test_coroutines_get_what_they_get_alone(session: TextGenerationSession) -> None:
    expected = alone(session)

    async def request(engine: Engine, prompt: str) -> tuple[Generation, str]:
        handle = engine.submit(session.request(prompt, generation_len=LENGTH))
        text = text_of([delta async for delta in handle])
        return await handle, text

    async def main() -> Any:
        with Engine(session) as engine:
            return await asyncio.gather(*(request(engine, prompt) for prompt in PROMPTS))

    assert asyncio.run(main()) == [(one, one.text) for one in expected]


def test_text_comes_while_it_is_generated(
    session: TextGenerationSession, engine: Engine, paused: threading.Event
) -> None:
    """The first token is there while the second cannot be; a reader who comes late gets all."""
    handle = engine.submit(session.request(PROMPTS[2], generation_len=3, ignore_eos=True))
    reader = iter(handle)
    assert next(reader).finish_reason is None
    assert not handle.done
    with pytest.raises(TimeoutError, match=r"not ended after 0\.01 seconds"):
        handle.result(timeout=0.01)
    paused.set()
    rest = list(reader)
    assert rest[-1].finish_reason == "length"
    assert len(list(handle)) == len(rest) + 1 == 3
    assert handle.done


def test_what_is_cancelled_makes_room(
    session: TextGenerationSession, engine: Engine, paused: threading.Event
) -> None:
    request = session.request([5] * 4, ignore_eos=True)
    with (
        engine._changed
    ):  # the engine waits: with the first request alone, it might reach the paused step
        running = [engine.submit(request) for _ in range(2)]
        waiting = [engine.submit(session.request([7, 6], generation_len=2)) for _ in range(2)]
    assert [next(iter(handle)).finish_reason for handle in running] == [None, None]
    stats = engine.stats()
    assert (stats.running, stats.waiting) == (2, 2)

    running[0].cancel()
    waiting[0].cancel()
    waiting[0].cancel()
    with running[1]:
        pass
    paused.set()

    assert waiting[1].result(60).finish_reason in {"eos", "length"}
    assert [handle.result(60).finish_reason for handle in (*running, waiting[0])] == [
        "cancelled"
    ] * 3
    assert waiting[0].result().token_ids == []
    assert list(waiting[0]) == [Delta(text="", finish_reason="cancelled")]
    assert 0 < len(running[0].result().token_ids) < LONG
    waiting[1].cancel()  # too late
    assert waiting[1].result().finish_reason != "cancelled"


def test_a_coroutine_that_is_cancelled_cancels_its_request(
    session: TextGenerationSession, engine: Engine, paused: threading.Event
) -> None:
    handles: list[Handle] = []

    async def client() -> None:
        with engine.submit(session.request([5] * 4, ignore_eos=True)) as handle:
            handles.append(handle)
            async for _ in handle:
                pass

    async def main() -> None:
        task = asyncio.create_task(client())
        while not (handles and handles[0]._deltas):
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    paused.set()
    assert handles[0].result(60).finish_reason == "cancelled"


def test_a_loop_that_is_gone_does_not_hold_up_others(
    session: TextGenerationSession, engine: Engine, paused: threading.Event
) -> None:
    handle = engine.submit(session.request([5] * 4, generation_len=4, ignore_eos=True))
    loop = asyncio.new_event_loop()
    reader = aiter(handle)
    loop.run_until_complete(anext(reader))
    waits = loop.create_task(anext(reader))  # type: ignore[arg-type]
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    paused.set()
    assert len(handle.result(60).token_ids) == 4
    waits._log_destroy_pending = False  # type: ignore[attr-defined]


def test_the_queue_is_bounded(session: TextGenerationSession, paused: threading.Event) -> None:
    with Engine(session, max_waiting=1) as engine:
        request = session.request([5] * 4, generation_len=3)
        handles = [engine.submit(request) for _ in range(3)]
        with pytest.raises(BusyError, match=r"3 requests run or wait; expected fewer than 3\."):
            engine.submit(request)
        paused.set()
        assert len({tuple(handle.result(60).token_ids) for handle in handles}) == 1
        engine.submit(request).result(60)


@pytest.mark.parametrize("drain", [False, True])
def test_closing_ends_every_request(
    session: TextGenerationSession, paused: threading.Event, drain: bool
) -> None:
    engine = Engine(session)
    request = session.request([5] * 4, generation_len=LONG, ignore_eos=True)
    handles = [engine.submit(request) for _ in range(5)]
    next(iter(handles[0]))
    closer = threading.Thread(target=engine.close, kwargs={"drain": drain})
    closer.start()
    while not engine._closing:
        time.sleep(0.001)
    with pytest.raises(GenerationError, match="engine is closed"):
        engine.submit(request)
    paused.set()
    closer.join(60)
    reasons = {handle.result(0).finish_reason for handle in handles}
    assert reasons == ({"length"} if drain else {"cancelled"})
    engine.close()
    assert session.generate([[5]], generation_len=1)  # the session is free again


def test_an_error_reaches_everyone_and_ends_nothing_else(
    session: TextGenerationSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = session.generate([[5] * 4], generation_len=3)
    request = session.request([5] * 4, generation_len=3)

    def fail(_: Any) -> Any:
        raise MemoryError("no room")

    async def send_request(handle: Handle) -> None:
        async for _ in handle:
            pass

    with Engine(session) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(session.decoder, "prefill", fail)
            handles = [engine.submit(request) for _ in range(4)]
            for handle in handles:
                with pytest.raises(MemoryError, match="no room"):
                    handle.result(60)
                with pytest.raises(MemoryError):
                    list(handle)
                with pytest.raises(MemoryError):
                    asyncio.run(send_request(handle))
        assert [engine.submit(request).result(60)] == expected
        assert engine.stats().finished["error"] == 4


def test_what_cannot_be_served_is_refused_at_once(engine: Engine) -> None:
    session = engine.session
    for act in (
        lambda: engine.submit([]),
        lambda: engine.submit([5] * 48),
        lambda: session.request([5], stop=["a", ""]),
        lambda: session.request([5], sampling=Sampling(top_p=2)),
    ):
        with pytest.raises(GenerationError):
            act()
    with pytest.raises(GenerationError, match="is generating already"):
        session.generate(["a"])
    with pytest.raises(GenerationError, match="is generating already"):
        Engine(session)
    assert engine.submit(PROMPTS[0]).result(60).prompt == PROMPTS[0]


def test_python_ends_while_an_engine_runs(session: TextGenerationSession) -> None:
    code = (
        "import sys, qeff_zoo; from qeff_zoo.runtime import Engine; "
        "engine = Engine(qeff_zoo.load(sys.argv[1], threads=1)); "
        "handles = [engine.submit([5] * 20) for _ in range(300)]; next(iter(handles[0])); print('left')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(session.folder)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("left\n", "", 0)
