# SPDX-License-Identifier: Apache-2.0
"""Workers do work of unknown cost; they end with their client, or beyond their limits."""

import asyncio
import base64
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fixtures_serving import MODEL, PROMPT, QUESTION, dial, post, running, send, wait_until
from PIL import Image

import qeff_zoo
from qeff_zoo.errors import ContextLengthError, GenerationError, ServingError
from qeff_zoo.media.images import read_image
from qeff_zoo.package import Package
from qeff_zoo.runtime import Engine, Grammar
from qeff_zoo.runtime.engine.prompts import PromptReader
from qeff_zoo.serving.apis.vllm import tokens
from qeff_zoo.serving.errors import ApiError
from qeff_zoo.serving.queues import accounts, media, workers
from qeff_zoo.serving.queues.accounts import Client
from qeff_zoo.serving.queues.media import MediaPool
from qeff_zoo.serving.queues.workers import Workers, WorkLimits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
#: Work without end, in one call that no thread could leave.
ENDLESS = partial(sum, range(10**15))


@pytest.fixture(scope="module")
def pool() -> Iterator[Workers]:
    """Give workers that are ended within a second of CPU time."""
    with closing(Workers(2, WorkLimits(cpu_seconds=1, nbytes=512 << 20))) as made:
        yield made


@pytest.fixture
def hurried(pool: Workers, monkeypatch: pytest.MonkeyPatch) -> Workers:
    """Give the shared server these workers."""
    for module in (media, tokens):
        monkeypatch.setattr(module, "shared", lambda: pool)
    return pool


def done(pool: Workers, work: Callable[[], Any]) -> Any:
    return asyncio.run(pool.run(work))


def test_a_worker_returns_results_and_errors(pool: Workers) -> None:
    first = done(pool, os.getpid)
    assert first != os.getpid()
    with pytest.raises(GenerationError, match="Cannot read a grammar of 3 characters as GBNF"):
        done(pool, partial(Grammar.gbnf, "a::"))
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        done(pool, partial(divmod, 1, 0))
    assert done(pool, os.getpid) == first


@pytest.mark.parametrize(
    ("work", "kind", "message"),
    [
        (ENDLESS, GenerationError, "It takes more than 1 seconds of CPU time to read this"),
        (partial(bytes, 1 << 30), GenerationError, "more than 512 MiB of memory"),
        (partial(os._exit, 3), ApiError, "The process that read this request ended with 3"),
        (os.abort, ApiError, "ended with -6"),
    ],
    ids=["time", "memory", "exit", "crash"],
)
def test_a_worker_that_ends_is_replaced(
    pool: Workers, work: Callable[[], Any], kind: type[Exception], message: str
) -> None:
    async def both() -> list[Any]:
        return await asyncio.gather(
            pool.run(work), pool.run(partial(sum, range(1000))), return_exceptions=True
        )

    failed, other = asyncio.run(both())
    assert isinstance(failed, kind)
    assert message in str(failed)
    assert other == 499_500
    assert done(pool, partial(abs, -1)) == 1


def test_work_has_the_memory_of_a_new_worker(pool: Workers) -> None:
    """An earlier request may have left less of it."""
    keep, take = "import sys; sys.kept = bytes(300 << 20)", "len(bytes(300 << 20))"
    done(pool, partial(exec, keep))
    first = done(pool, os.getpid)
    assert done(pool, partial(eval, take)) == 300 << 20
    assert done(pool, os.getpid) != first
    with pytest.raises(GenerationError, match="more than 512 MiB of memory"):
        done(pool, partial(exec, f"{keep}; {keep.replace('kept', 'more')}"))


def test_cancellation_ends_a_worker(pool: Workers) -> None:
    async def leave() -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(pool.run(partial(time.sleep, 600)), 1)

    begun = time.monotonic()
    asyncio.run(leave())
    assert time.monotonic() - begun < 60
    assert done(pool, partial(abs, -1)) == 1


def test_work_beyond_a_budget_is_done_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """Priority is back after some time; other clients keep it."""
    monkeypatch.setattr(workers, "_BUDGET", 0.05)
    now = [1000.0]
    monkeypatch.setattr(accounts, "time", SimpleNamespace(monotonic=lambda: now[0]))
    burn = partial(sum, range(10**7))  # about 0.1 seconds

    async def policy(client: str) -> int:
        accounts.enter(Client(client))
        return await pool.run(partial(os.sched_getscheduler, 0))

    async def burned() -> None:
        accounts.enter(Client("heavy"))
        await pool.run(burn)

    with closing(Workers(2)) as pool:
        assert asyncio.run(policy("heavy")) == os.SCHED_OTHER
        asyncio.run(burned())
        assert asyncio.run(policy("heavy")) == os.SCHED_IDLE
        assert asyncio.run(policy("light")) == os.SCHED_OTHER
        now[0] += 600
        assert asyncio.run(policy("heavy")) == os.SCHED_OTHER


def test_a_pool_that_cannot_start_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_COMMAND", (sys.executable, "-c", "raise SystemExit(3)"))
    with pytest.raises(ServingError, match=r"Cannot start a process .* ended with 3"):
        Workers(1).check()
    monkeypatch.setattr(workers, "_COMMAND", ("/nowhere/python",))
    with pytest.raises(ServingError, match="No such file or directory: '/nowhere/python'"):
        Workers(1).check()


# --- a server -------------------------------------------------------------------------------------


def chain(rules: int) -> str:
    """Write GBNF that its converter reads in quadratic time."""
    middle = "".join(f'a{one} ::= "x" a{one + 1} | "y"\n' for one in range(rules))
    return f'root ::= a0\n{middle}a{rules} ::= "x"'


#: Grammars that take ten seconds of a CPU and more, by the parameter that has them.
ENDLESS_GRAMMARS: dict[str, dict[str, Any]] = {
    "grammar": {"grammar": chain(2500)},
    "json_schema": {"json_schema": {"type": "integer", "multipleOf": 999_983}},
}


@pytest.mark.parametrize("param", ENDLESS_GRAMMARS)
def test_an_endless_grammar_is_refused_and_other_clients_continue(
    url: str, hurried: Workers, param: str
) -> None:
    body = {"model": MODEL, "messages": QUESTION, "max_tokens": 1, **ENDLESS_GRAMMARS[param]}
    found: list[Any] = []
    raw = json.dumps(body).encode()
    attack = threading.Thread(target=lambda: found.append(post(url, "chat/completions", raw)))
    attack.start()
    honest = json.dumps({"model": MODEL, "messages": QUESTION, "max_tokens": 1}).encode()
    assert post(url, "chat/completions", honest)[0] == 200
    assert not found  # the honest one came later, and was answered earlier
    attack.join()
    status, answer = found[0]
    assert (status, answer["error"]["param"]) == (400, param)
    assert "more than 1 seconds of CPU time" in answer["error"]["message"]


def test_a_worker_ends_with_its_client(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Workers(1, WorkLimits(cpu_seconds=600))) as pool:
        monkeypatch.setattr(media, "shared", lambda: pool)
        started: list[Any] = []
        start = workers._Worker.__init__

        def begin(one: Any, *given: Any, **more: Any) -> None:
            start(one, *given, **more)
            started.append(one)

        monkeypatch.setattr(workers._Worker, "__init__", begin)
        with closing(dial(url)) as client:
            body = {"model": MODEL, "prompt": PROMPT, **ENDLESS_GRAMMARS["json_schema"]}
            send(client, json.dumps(body))
            wait_until(lambda: bool(started))
        wait_until(lambda: not started[0].is_alive)


def test_long_texts_are_encoded_as_short_ones(trained: Package, pool: Workers) -> None:
    reader = PromptReader(trained.path, 1 << 20)
    text = "class collections.OrderedDict is a dict. " * 2000
    chat = [{"role": "user", "content": text}, {"role": "assistant", "content": "Yes."}]
    for prompt, expected in ((text, reader.encode(text)), (chat, reader.encode_chat(chat))):
        work = reader.encoding_apart(prompt)
        assert work
        assert len(expected) > 10_000
        assert done(pool, work) == expected
    short = PromptReader(trained.path, 128).encoding_apart(text)
    assert short
    with pytest.raises(ContextLengthError, match="A prompt has at least 256 tokens"):
        done(pool, short)


def test_a_long_text_is_tokenized_as_a_short_one(
    url: str, engine: Engine, hurried: Workers
) -> None:
    root, text = url.removesuffix("/v1"), "class collections.OrderedDict is a dict. " * 500
    tokenizer = engine.session.tokenizer
    assert tokenizer
    expected = tokenizer.encode(text)
    body = json.dumps({"model": MODEL, "prompt": text, "return_token_strs": True}).encode()
    status, found = post(root, "tokenize", body)
    assert status == 200
    assert (found["tokens"], found["count"]) == (expected, len(expected))
    assert found["token_strs"] == [*map(tokenizer.name, expected)]
    many = [*expected] * 4
    status, found = post(root, "detokenize", json.dumps({"model": MODEL, "tokens": many}).encode())
    assert (status, found["prompt"]) == (200, tokenizer.spelled(many))


def test_a_large_image_is_prepared_as_in_this_process(seeing: Package, pool: Workers) -> None:
    session: Any = qeff_zoo.load(seeing, threads=1)
    drawn = np.random.default_rng(0).integers(0, 255, (150, 200, 3), dtype=np.uint8)
    file = BytesIO()
    Image.fromarray(drawn).resize((2000, 1500)).save(file, "PNG")
    expected = session.prepare(file.getvalue())
    found = done(pool, session.preparation(file.getvalue(), 1))
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    with running_engine(session) as url:
        content = base64.b64encode(file.getvalue()).decode()
        part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{content}"}}
        body = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": [part]}]}
        status, answer = post(url, "chat/completions", json.dumps(body).encode())
    assert status == 200, answer


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_pixels_of_a_worker_are_those_of_the_file(form: str) -> None:
    """Sessions read an array as they read the file that it comes from, rotated and without its alpha."""
    drawn = np.random.default_rng(0).integers(0, 255, (30, 40, 4), dtype=np.uint8)
    image, file = Image.fromarray(drawn), BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated
    image = image.convert("RGB") if form == "JPEG" else image
    image.save(file, form, exif=exif)
    pixels = read_image(file.getvalue())
    assert pixels.shape == (40, 30, 3)
    assert np.array_equal(read_image(pixels), pixels)


@contextmanager
def running_engine(session: Any) -> Iterator[str]:
    with Engine(session) as engine, running(engine) as url:
        yield url


def test_small_files_wait_for_no_larger_ones() -> None:
    pool = MediaPool(1 << 28)

    async def held() -> None:
        async with pool.room(1 << 25), pool.room(1 << 28):
            waiting = [asyncio.ensure_future(enter(size)) for size in (1 << 25, 1 << 28)]
            await asyncio.wait_for(enter(1 << 20), 30)
            assert not any(one.done() for one in waiting)
        await asyncio.gather(*waiting)

    async def enter(size: int) -> None:
        async with pool.room(size):
            pass

    asyncio.run(held())
