# SPDX-License-Identifier: Apache-2.0
"""Images are priced by their headers, decoded in their client's turn, and never for a client that has left."""

import asyncio
import base64
import gc
import json
import os
import struct
import subprocess
import sys
import threading
import weakref
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from fastapi import Request
from fixtures_serving import (
    MODEL,
    PROMPT,
    TIMEOUT,
    Steps,
    dial,
    figures,
    post,
    running,
    wait_until,
)
from PIL import Image

import qeff_zoo
from qeff_zoo.errors import MediaError
from qeff_zoo.media import image_processor, images, pixels, videos
from qeff_zoo.media.video_processor import load_video_processor
from qeff_zoo.package import Package
from qeff_zoo.runtime import Engine
from qeff_zoo.serving.answers.streaming import unless_gone
from qeff_zoo.serving.errors import ApiError
from qeff_zoo.serving.queues.media import MediaPool, Step, at_once


def png(width: int, height: int, color: int = 0, depth: int = 1) -> bytes:
    """Write an image of zeros: of grey (0) or with alpha (6), in few bytes for any size."""
    line = bytes(1 + (width * depth * (4 if color else 1) + 7) // 8)
    packer = zlib.compressobj(9)
    packed = b"".join(packer.compress(line) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", packed), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


def body(*files: bytes) -> bytes:
    """Write a chat about images."""
    urls = ["data:image/png;base64," + base64.b64encode(one).decode() for one in files]
    parts: list[Any] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    content = [*parts, {"type": "text", "text": "What is this?"}]
    requested = {
        "model": MODEL,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 2,
    }
    return json.dumps(requested).encode()


def request_of(asked: bytes) -> bytes:
    """Write a request with a body."""
    lines = "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    return f"{lines}Content-Length: {len(asked)}\r\n\r\n".encode() + asked


def chat(url: str, *files: bytes) -> tuple[int, Any]:
    status, answer = post(url, "chat/completions", body(*files))
    return status, answer.get("error", answer)


def text(url: str) -> int:
    requested = {"model": MODEL, "prompt": PROMPT, "max_tokens": 2}
    return post(url, "completions", json.dumps(requested).encode())[0]


@pytest.fixture(scope="module")
def session(seeing: Package) -> Any:
    return qeff_zoo.load(seeing, threads=1)


@pytest.fixture(scope="module")
def url(session: Any) -> Iterator[str]:
    with Engine(session) as engine, running(engine) as served:
        yield served


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    """Let images be decoded as often as is permitted."""
    steps = Steps(image_processor.read_image)
    monkeypatch.setattr(image_processor, "read_image", steps)
    yield steps
    steps.permit(1000)


@pytest.fixture
def clients() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as opened:
        yield opened


def test_what_exceeds_the_context_is_refused_by_headers(url: str, decoded: Steps) -> None:
    status, error = chat(url, *[png(4096, 2048)] * 40)
    assert not decoded.begun
    assert (status, error["code"]) == (400, "context_length_exceeded")
    assert error["message"].startswith("The prompt has 1,4")  # forty times 36, and the text


def test_tokens_are_counted_before_an_image_is_decoded(session: Any) -> None:
    sizes = [(5, 700), (48, 48), (4096, 30)]
    found = [
        finished[0]
        for finished in map(session.look, [[session.prepare(png(*one))] for one in sizes])
    ]
    assert session.tokens_of(sizes) == [len(session.run_of(one)) for one in found]


def test_text_is_answered_while_images_are_decoded(
    url: str, decoded: Steps, clients: ThreadPoolExecutor
) -> None:
    """However many clients send images: no thread of theirs is one that prepares texts."""
    requested = [clients.submit(chat, url, *[png(64, 64)] * 5) for _ in range(9)]
    wait_until(lambda: decoded.begun == 1)
    assert text(url) == 200
    assert not any(one.done() for one in requested)
    decoded.permit(1000)
    assert {one.result(TIMEOUT)[0] for one in requested} == {200}


def test_clients_have_their_images_decoded_in_turn(
    url: str, decoded: Steps, clients: ThreadPoolExecutor
) -> None:
    many = clients.submit(chat, url, *[png(64, side) for side in range(20, 26)])
    wait_until(lambda: decoded.begun == 1)
    one = clients.submit(chat, url, png(64, 19))
    threading.Event().wait(0.2)  # until it waits for its turn; else it has another one
    decoded.permit(3)
    assert one.result(TIMEOUT)[0] == 200
    assert not many.done()
    decoded.permit(1000)
    assert many.result(TIMEOUT)[0] == 200


def test_nothing_is_decoded_for_a_client_that_left(url: str, decoded: Steps) -> None:
    requested = body(*[png(64, side) for side in range(30, 36)])
    name = "http_responses_total:/v1/chat/completions:499"
    before = figures(url).get(name, 0)
    with closing(dial(url)) as client:
        client.sendall(request_of(requested))
        wait_until(lambda: decoded.begun == 1)
    wait_until(lambda: figures(url).get(name, 0) == before + 1)
    decoded.permit(1000)
    assert chat(url, png(64, 37))[0] == 200
    assert decoded.begun == 2


def test_no_frame_of_a_video_is_decoded_for_a_client_that_left(
    url: str, session: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = {"video_processor_type": "Qwen2VLVideoProcessor"}
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(settings))
    read = Steps(videos.read_image)
    monkeypatch.setattr(videos, "read_image", read)
    monkeypatch.setattr(session, "check_reads_videos", lambda: None)
    monkeypatch.setattr(session, "video_tokens_of", lambda videos, opened: [1] * len(videos))
    monkeypatch.setattr(session, "_video_processor", load_video_processor(tmp_path))
    frames = ",".join(base64.b64encode(png(8, side)).decode() for side in [8] * 6)
    part = {"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{frames}"}}
    requested = {"model": MODEL, "messages": [{"role": "user", "content": [part]}]}
    name = "http_responses_total:/v1/chat/completions:499"
    before = figures(url).get(name, 0)
    with closing(dial(url)) as client:
        client.sendall(request_of(json.dumps(requested).encode()))
        wait_until(lambda: read.begun == 1)
    wait_until(lambda: figures(url).get(name, 0) == before + 1)
    read.permit(1000)
    assert chat(url, png(64, 38))[0] == 200
    assert read.begun == 1


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ((1, 80_000_000), "1 pixels wide and 80000000 high. Expected at most 65,535 on a side"),
        ((8193, 6144), "8193 x 6144 = 50,337,792 pixels. Expected at most 50,331,648"),
    ],
)
def test_an_image_that_is_too_large_is_refused(
    url: str, size: tuple[int, int], message: str
) -> None:
    file = png(64, 64)
    header = b"IHDR" + struct.pack(">IIBBBBB", *size, 1, 0, 0, 0, 0)
    file = file[:12] + header + struct.pack(">I", zlib.crc32(header)) + file[33:]
    status, error = chat(url, file)
    assert (status, error["param"]) == (400, "messages")
    assert message in error["message"]


def test_a_narrow_image_is_refused_by_its_square() -> None:
    llava = image_processor.image_processor(
        {"image_processor_type": "LlavaImageProcessor", "do_pad": True}
    )
    with pytest.raises(MediaError, match="it is too narrow for this model"):
        llava([png(1, 60_000)])


def test_many_images_and_a_large_grammar_are_refused(url: str) -> None:
    status, error = chat(url, *[png(1, 1)] * 1001)
    assert (status, error["message"][:67]) == (
        400, "The request has 1,001 images, videos and recordings; expected at most"[:67],
    )  # fmt: skip
    schema = {"type": "string", "enum": ["x" * (1 << 20)]}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    requested = {"model": MODEL, "prompt": PROMPT, "response_format": form}
    status, answer = post(url, "completions", json.dumps(requested).encode())
    assert (status, answer["error"]["param"]) == (400, "response_format")
    assert "characters of a grammar; expected at most 1,048,576" in answer["error"]["message"]


_CHILD = """
import resource, sys
from qeff_zoo.media.images import read_image
import PIL.Image, PIL.PngImagePlugin
data = sys.stdin.buffer.read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
read_image(data)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("kind", [(0, 1), (6, 16)], ids=["one bit", "alpha of 16 bits"])
def test_an_image_is_in_memory_at_most_twice(kind: tuple[int, int]) -> None:
    data = png(4096, 4096, *kind)
    done = subprocess.run(
        [sys.executable, "-c", _CHILD], input=data, capture_output=True, check=True, timeout=TIMEOUT
    )
    assert int(done.stdout) << 10 < 9 * 4096 * 4096  # 18 bytes a pixel before


def test_strips_have_the_pixels_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = Image.effect_noise((67, 41), 80)
    modes = {
        "L": noise,
        "RGBA": noise.convert("RGBA"),
        "P": noise.convert("P"),
        "1": noise.convert("1"),
    }
    modes |= {
        "CMYK": noise.convert("CMYK"),
        "I;16": noise.convert("I").point(lambda x: x * 250).convert("I;16"),
    }
    for mode, image in modes.items():
        file = BytesIO()
        exif = Image.Exif()
        exif[0x112] = 6
        image.save(file, "TIFF" if mode in ("CMYK", "I;16") else "PNG", exif=exif)
        whole = images.read_image(file.getvalue())
        with monkeypatch.context() as patch:
            patch.setattr(images, "_STRIP", 100)
            assert (images.read_image(file.getvalue()) == whole).all(), mode
        assert images.size_of(file.getvalue()) == (whole.shape[1], whole.shape[0]), mode
        assert whole.shape[:2] == (67, 41), mode


def test_memory_is_given_in_order_and_small_work_does_not_wait() -> None:
    large, begun = 100 << 20, list[str]()

    async def hold(pool: MediaPool, name: str, nbytes: int, until: asyncio.Event) -> None:
        async with pool.room(nbytes):
            begun.append(name)
            await until.wait()

    async def run() -> None:
        pool, until = MediaPool(160 << 20), asyncio.Event()
        tasks = [
            asyncio.create_task(hold(pool, name, nbytes, until))
            for name, nbytes in (
                ("a", large),
                ("b", large),
                ("left", large),
                ("c", large),
                ("d", 1),
            )
        ]
        await asyncio.sleep(0)
        tasks[2].cancel()
        while len(begun) < 2:
            await asyncio.sleep(0)
        assert begun == ["a", "d"]
        until.set()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks)
        await asyncio.gather(tasks[1], tasks[3])

    asyncio.run(run())
    assert begun == ["a", "d", "b", "c"]


def test_threads_leave_the_event_loop_and_the_model_their_time() -> None:
    """Those that prepare requests are few, and those of large work stand back."""
    most, running = 0, list[int]()

    def prepare() -> Any:
        nonlocal most
        running.append(0)
        most = max(most, len(running))
        threading.Event().wait(0.01)
        running.pop()
        return (yield Step(lambda: None))

    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    async def run() -> tuple[int, int]:
        pool = MediaPool(1 << 30)
        await asyncio.gather(*(pool.prepare(prepare()) for _ in range(20)))
        return await pool.run(niceness), await pool.run(niceness, 1 << 29)

    small, large = asyncio.run(run())
    assert most <= max(2, (os.cpu_count() or 1) // 2)
    if sys.platform == "linux":
        assert small < large


def test_a_failed_step_reaches_the_preparation() -> None:
    def prepare() -> Any:
        try:
            yield Step(lambda: images.read_image(b""))
        except MediaError:
            return (yield Step(lambda: "prepared"))

    assert at_once(prepare()) == "prepared"
    assert asyncio.run(MediaPool(1).prepare(prepare())) == "prepared"


def test_an_error_after_the_client_left_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        begun, left = threading.Event(), threading.Event()

        def fail() -> None:
            begun.set()
            left.wait()
            raise MediaError("Too late.")

        preparing = asyncio.create_task(MediaPool(1).run(fail))
        await asyncio.to_thread(begun.wait)
        preparing.cancel()
        await asyncio.sleep(0)
        left.set()
        with pytest.raises(asyncio.CancelledError):
            await preparing

    asyncio.run(run())
    gc.collect()
    assert not caplog.records


@pytest.mark.parametrize("blames", [True, False], ids=["another error", "the same error"])
def test_an_error_holds_no_memory(blames: bool) -> None:
    """Nothing of a refused request waits for Python's garbage collection, which is rare in a server."""
    alive = list[weakref.ref[Any]]()

    def fail() -> None:
        content = np.empty(1 << 20, np.uint8)
        alive.append(weakref.ref(content))
        raise MediaError("It is damaged.")

    def prepare() -> Any:
        try:
            yield Step(fail)
        except MediaError as error:
            if blames:
                raise ApiError(400, str(error)) from error
            raise

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def run() -> None:
        request, pool = Request({"type": "http"}, receive), MediaPool(1)
        with pytest.raises((MediaError, ApiError)):
            await unless_gone(request, pool.prepare(prepare()))
        with pytest.raises(MediaError):
            await pool.run(fail)

    gc.collect()
    gc.disable()
    try:
        asyncio.run(run())
        assert len(alive) == 2
        # A thread ends after the event loop has its answer.
        wait_until(lambda: all(content() is None for content in alive))
    finally:
        gc.enable()


def test_a_call_keeps_its_memory_until_it_returns() -> None:
    """anyio, which runs streams, cancels a task again and again until it ends."""
    ends = list[str]()

    async def run() -> None:
        begun, until = threading.Event(), threading.Event()

        def work() -> None:
            begun.set()
            until.wait()
            ends.append("call")

        async def hold() -> None:
            try:
                await pool.run(work)
            finally:
                ends.append("task")
                until.set()

        pool = MediaPool(1)
        async with anyio.create_task_group() as group:
            group.start_soon(hold)
            await asyncio.to_thread(begun.wait)
            group.cancel_scope.cancel()
            asyncio.get_running_loop().call_later(0.05, until.set)

    asyncio.run(run())
    assert ends == ["call", "task"]


def test_a_call_may_end_after_its_event_loop(caplog: pytest.LogCaptureFixture) -> None:
    until = threading.Event()
    pool = MediaPool(1)

    async def run() -> asyncio.Task[Any]:
        task = asyncio.create_task(pool.run(until.wait))
        await asyncio.sleep(0.01)
        return task

    loop = asyncio.new_event_loop()
    task = loop.run_until_complete(run())
    loop.close()
    until.set()
    pool._lane(0).threads.shutdown()
    assert not caplog.records
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_blank_images_take_no_memory() -> None:
    blank = images.blank(40_000, 2000)
    settings = image_processor.image_processor(
        {"image_processor_type": "Qwen2VLImageProcessor"}
    ).settings
    assert images.is_blank(pixels.numbers(pixels.resize(blank, 4000, 3000, 3), settings))
