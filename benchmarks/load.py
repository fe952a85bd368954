# SPDX-License-Identifier: Apache-2.0
"""Claim: hostile clients change no answer of the others, delay none for long, and leave no memory in use.

A server of `examples/tiny-vlm` and many clients: half of them attack it, half ask questions of which the answers are
known. Times are those to the first token. Prints JSON.

    python benchmarks/load.py [--seconds 60] [--clients 64] [--package DIR]
"""

import argparse
import asyncio
import base64
import io
import json
import random
import statistics
import struct
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import soundfile
from measuring import machine

import qeff_zoo

_MODEL = "tiny"
_CHECKPOINT = Path(__file__).parents[1] / "examples" / "tiny-vlm"
_QUESTIONS = ("What is this?", "Which colour?", "How many are there?", "Where is it?")
_TOKENS = 8
_PEACE = 0.25  # of the time, before the attack
_PATIENCE = 3.0  # seconds until a hostile client hangs up
_REST = 2.0  # seconds after the attack until memory is read again
_RATE = 8000  # samples of a second
_JSON, _FORM = "application/json", "multipart/form-data; boundary=b"
_SIDE = 4096  # of the images that are small files and large in memory


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--package", type=Path)
    arguments = parser.parse_args()
    path = arguments.package
    if path is None:
        sizes: dict[str, Any] = {"ctx_len": 256, "prefill_seq_len": 64, "full_batch_size": 4}
        path = qeff_zoo.build(str(_CHECKPOINT), validate=False, **sizes).path
    found = measure(path, arguments.seconds, arguments.clients)
    print(json.dumps({"machine": machine(("qeff-zoo", "onnxruntime")), **found}, indent=1))


def measure(package: Path, seconds: float, clients: int) -> dict[str, Any]:
    """Return the figures of a server under attack.

    Args:
        package: Of a vision-language model.
        seconds: How long it is attacked.
        clients: How many there are; half of them attack.
    """
    command = [sys.executable, "-m", "qeff_zoo", "serve", str(package), "--model-name", _MODEL]
    command += ["--port", "0", "--threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            url = server.stdout.readline().strip()
            return asyncio.run(_measure(url, server.pid, seconds, clients))
        finally:
            server.kill()


async def _measure(url: str, pid: int, seconds: float, clients: int) -> dict[str, Any]:
    client = Client(url)
    questions = [*map(_question, _QUESTIONS), *(_question(one, _shown()) for one in _QUESTIONS)]
    alone = [await client.ask(one) for one in questions]  # the first time of each
    alone = [await client.ask(one) for one in questions for _ in range(3)][2::3]
    known = [text for text, _ in alone]
    attacks, memory = Counter[str](), list[int]()
    end = 0.0

    async def honest(number: int, answers: list[tuple[bool, float]]) -> int:
        chance, count = random.Random(number), 0
        while time.monotonic() < end:
            which = chance.randrange(len(questions))
            text, first = await client.ask(questions[which])
            answers.append((text == known[which], first))
            count += 1
        return count

    async def hostile(number: int) -> None:
        chance = random.Random(number)
        while time.monotonic() < end:
            name, ended = chance.choice([*ATTACKS]), "left"
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
                ended = await asyncio.wait_for(ATTACKS[name](client), _PATIENCE)
            attacks[f"{name}: {ended}"] += 1

    async def watch() -> None:
        while time.monotonic() < end:
            memory.append(_resident(pid))
            await asyncio.sleep(0.1)

    async def ask(answers: list[tuple[bool, float]]) -> list[int]:
        return await asyncio.gather(*(honest(number, answers) for number in range(clients // 2)))

    answers, before = list[tuple[bool, float]](), list[tuple[bool, float]]()
    end = time.monotonic() + seconds * _PEACE
    await ask(before)
    memory.append(_resident(pid))
    end = time.monotonic() + seconds * (1 - _PEACE)
    attackers = [asyncio.create_task(hostile(number)) for number in range(clients // 2)]
    counts, _ = await asyncio.gather(ask(answers), watch())
    for one in attackers:
        one.cancel()
    await asyncio.wait(attackers)
    await asyncio.sleep(_REST)
    memory.append(_resident(pid))
    return {
        "seconds": seconds,
        "clients": clients,
        "answers": len(answers),
        "wrong_answers": sum(not right for right, _ in [*before, *answers]),
        "fewest_answers_of_a_client": min(counts),
        "first_token_s": {
            "one client": _spread([first for _, first in alone]),
            "before the attack": _spread([first for _, first in before]),
            "during the attack": _spread([first for _, first in answers]),
        },
        "attacks": dict(sorted(attacks.items())),
        "resident_bytes": {
            "before": memory[0],
            "at_half": max(memory[: len(memory) // 2]),
            "peak": max(memory),
            "after": memory[-1],
        },
    }


def _spread(times: Sequence[float]) -> dict[str, float]:
    ordered = sorted(times)
    last = len(ordered) - 1
    return {
        "median": round(statistics.median(ordered), 4),
        "p95": round(ordered[round(0.95 * last)], 4),
        "most": round(ordered[-1], 4),
    }


def _resident(pid: int) -> int:
    """Return the anonymous memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) << 10
    return 0


# --- clients -------------------------------------------------------------------------------------


class Client:
    """Sends requests to a server.

    Args:
        url: Its base URL.
    """

    def __init__(self, url: str) -> None:
        self._place = urlsplit(url)

    @asynccontextmanager
    async def connected(
        self, path: str
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Begin a request, and close its connection at the end of the block."""
        reader, writer = await asyncio.open_connection(self._place.hostname, self._place.port)
        try:
            head = f"POST {self._place.path}/{path} HTTP/1.1\r\nHost: {self._place.netloc}\r\n"
            writer.write(head.encode())
            yield reader, writer
        finally:
            writer.close()

    @asynccontextmanager
    async def sending(
        self, path: str, body: bytes, *, announced: int | None = None, kind: str = _JSON
    ) -> AsyncIterator[asyncio.StreamReader]:
        """Send a request, and close its connection at the end of the block."""
        async with self.connected(path) as (reader, writer):
            head = f"Content-Type: {kind}\r\nContent-Length: {announced or len(body)}\r\n"
            writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
            yield reader

    async def status(self, path: str, body: bytes, kind: str = _JSON) -> int:
        """Send a request, read the whole answer, and return its status."""
        async with self.sending(path, body, kind=kind) as reader:
            _, status, *_ = [*(await reader.readline()).split(), b"0", b"0"]
            await reader.read()
            return int(status)

    async def ask(self, body: bytes) -> tuple[str, float]:
        """Return the streamed text of an answer, and the seconds to its first token."""
        begun, first, text = time.perf_counter(), 0.0, ""
        async with self.sending("chat/completions", body) as reader:
            while line := await reader.readline():
                if not line.startswith(b"data: {"):
                    continue
                for choice in json.loads(line[6:]).get("choices", ()):
                    if content := choice["delta"].get("content"):
                        first = first or time.perf_counter() - begun
                        text += content
        return text, first


def _question(text: str, *files: bytes, **more: Any) -> bytes:
    urls = ["data:image/png;base64," + base64.b64encode(one).decode() for one in files]
    parts: list[Any] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    content = [*parts, {"type": "text", "text": text}]
    return _body(messages=[{"role": "user", "content": content}], stream=True, **more)


def _body(**asked: Any) -> bytes:
    asked = {"model": _MODEL, "max_tokens": _TOKENS, "temperature": 0, **asked}
    return json.dumps(asked).encode()


def _shown() -> bytes:
    return next(iter(sorted((_CHECKPOINT / "pictures").iterdir()))).read_bytes()


def _blank(width: int, height: int, told: tuple[int, int] | None = None) -> bytes:
    """Write an image of one bit a pixel, whose header may promise another size."""
    line = bytes(1 + (width + 7) // 8)
    header = struct.pack(">IIBBBBB", *(told or (width, height)), 1, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(line * height, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


def _silence(seconds: float, claimed: float | None = None) -> bytes:
    """Write silence in eight channels, whose header may promise more of it."""
    file = io.BytesIO()
    soundfile.write(file, np.zeros((int(seconds * _RATE), 8), np.int16), _RATE, format="FLAC")
    data = bytearray(file.getvalue())
    (fields,) = struct.unpack_from(">Q", data, 18)  # of STREAMINFO; its last 36 bits count samples
    struct.pack_into(">Q", data, 18, fields >> 36 << 36 | int((claimed or seconds) * _RATE))
    return bytes(data)


def _heard(sound: bytes) -> bytes:
    played = {"data": base64.b64encode(sound).decode(), "format": "flac"}
    content = [{"type": "input_audio", "input_audio": played}]
    return _body(messages=[{"role": "user", "content": content}])


def _form(sound: bytes) -> bytes:
    field = 'Content-Disposition: form-data; name="{}"'
    head = f"--b\r\n{field.format('model')}\r\n\r\n{_MODEL}\r\n--b\r\n"
    head += f'{field.format("file")}; filename="a.flac"\r\n\r\n'
    return head.encode() + sound + b"\r\n--b--\r\n"


# --- attacks -------------------------------------------------------------------------------------

_LARGE = _blank(_SIDE, _SIDE)
_MANY = _question("What?", *[_LARGE] * 40)
_SOME = _question("What?", *(_blank(_SIDE, _SIDE - one) for one in range(5)))
_NARROW = _question("What?", _blank(8, 8, (1, 80_000_000)))
_LONG = _body(prompt="class collections.OrderedDict is a dict. " * 50_000)
_CHOICES = _body(prompt=["a"] * 2000, n=128)
_LISTS = b'{"prompt": [' + b"[]," * 300_000 + b"[]]}"
_REGEX = _body(prompt="a", structured_outputs={"regex": "(([a-z0-9_.]{1,99}){1,99}){1,99}X"})
_ANSWER = _question("What is this?", max_tokens=100)
_CLAIM = _heard(_silence(1.0, 8e6))  # 64 days
_SILENCE = _heard(_silence(300.0))
_UPLOAD = _form(_silence(300.0))


async def _left(client: Client, body: bytes, seconds: float) -> str:
    async with client.sending("chat/completions", body):
        await asyncio.sleep(seconds)
    return "left"


async def _half(client: Client) -> str:
    async with client.sending("completions", _LONG[:1000], announced=len(_LONG)):
        await asyncio.sleep(0.5)
    return "left"


async def _slow(client: Client) -> str:
    async with client.connected("completions") as (_, writer):
        while True:
            writer.write(b"X-A: a\r\n")
            await asyncio.sleep(0.05)


async def _sent(client: Client, path: str, body: bytes, kind: str = _JSON) -> str:
    return str(await client.status(path, body, kind))


#: What half of the clients do, by name; each returns what became of it.
ATTACKS: dict[str, Callable[[Client], Any]] = {
    "forty large images": lambda client: _sent(client, "chat/completions", _MANY),
    "forty large images, left": lambda client: _left(client, _MANY, 0.05),
    "five large images": lambda client: _sent(client, "chat/completions", _SOME),
    "five large images, left": lambda client: _left(client, _SOME, 0.2),
    "narrow image": lambda client: _sent(client, "chat/completions", _NARROW),
    "long text": lambda client: _sent(client, "completions", _LONG),
    "choices": lambda client: _sent(client, "completions", _CHOICES),
    "lists": lambda client: _sent(client, "completions", _LISTS),
    "expression": lambda client: _sent(client, "completions", _REGEX),
    "claimed sound": lambda client: _sent(client, "chat/completions", _CLAIM),
    "silence": lambda client: _sent(client, "chat/completions", _SILENCE),
    "upload of silence": lambda client: _sent(client, "audio/transcriptions", _UPLOAD, _FORM),
    "half a request": _half,
    "slow headers": _slow,
    "answer, left": lambda client: _left(client, _ANSWER, 0.1),
}


if __name__ == "__main__":
    main()
