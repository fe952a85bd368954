# SPDX-License-Identifier: Apache-2.0
"""Claim: hostile clients change no answer of the others, delay none for long, and leave no memory in use.

A server of two models, `examples/tiny-vlm` and a tiny Whisper of random weights, and many clients: half of them send
questions and recordings of which the answers are known, and half attack it, from a process of their own. Peace and
attack take turns, so that other work on the machine disturbs both alike. Times are those to the first token of a chat,
and to the first text of a transcription. CPU time is that of the server's process, and of its workers. Prints JSON.

    python benchmarks/load.py [--seconds 60] [--clients 64] [--package DIR] [--speech DIR]
"""

import argparse
import asyncio
import base64
import io
import json
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import numpy as np
import random_speech
import soundfile
from measuring import machine

import qeff_zoo
from qeff_zoo.validation.trial.sample_audio import voice

#: By kind of request: whether each answer was right, and the seconds to its first part.
Answers: TypeAlias = dict[str, list[tuple[bool, float]]]
_MODEL, _SPEECH = "tiny", "speech"
_CHECKPOINT = Path(__file__).parents[1] / "examples" / "tiny-vlm"
_QUESTIONS = ("What is this?", "Which colour?", "How many are there?", "Where is it?")
_TOKENS = 8
_PEACE = 0.25  # of the time, without attack
_TURN = 60.0  # seconds of peace and attack together, at most
_PATIENCE = 3.0  # seconds until a hostile client hangs up
_REST = 30.0  # seconds at most after the attack until memory is as before
_FLAT = 50 << 20  # bytes that count as no difference
_RATE = (
    2000  # samples of a second: a file of a few minutes is small, and large at the rate of a model
)
_TRANSCRIBERS = 4  # one of so many honest clients transcribes
_JSON, _FORM = "application/json", "multipart/form-data; boundary=b"
_SIDE = 4096  # of the images that are small files and large in memory


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--package", type=Path)
    parser.add_argument("--speech", type=Path)
    arguments = parser.parse_args()
    path, speech = arguments.package, arguments.speech
    if path is None:
        sizes: dict[str, Any] = {"ctx_len": 256, "prefill_seq_len": 64, "full_batch_size": 4}
        path = qeff_zoo.build(str(_CHECKPOINT), validate=False, **sizes).path
    if speech is None:
        with tempfile.TemporaryDirectory() as folder:
            speech = build_speech(Path(folder) / "tiny-whisper")
    found = measure(path, speech, arguments.seconds, arguments.clients)
    print(json.dumps({"machine": machine(("qeff-zoo", "onnxruntime")), **found}, indent=1))


def build_speech(checkpoint: Path) -> Path:
    """Build a package of a speech model.

    Args:
        checkpoint: Folder of its checkpoint, which is written.
    """
    random_speech.write(checkpoint)
    sizes: dict[str, Any] = {"batch_size": 1, "prefill_seq_len": 8}
    return qeff_zoo.build(str(checkpoint), validate=False, **sizes).path


def measure(package: Path, speech: Path, seconds: float, clients: int) -> dict[str, Any]:
    """Return the figures of a server under attack.

    Args:
        package: Package of a vision-language model.
        speech: Package of a speech model.
        seconds: How long it is measured.
        clients: How many there are; half of them attack.
    """
    command = [sys.executable, "-m", "qeff_zoo", "serve", f"{_MODEL}={package}"]
    command += [f"{_SPEECH}={speech}", "--port", "0", "--threads", "1", "--request-log", "none"]
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
    works = {
        "first_token_s": [partial(client.ask, one) for one in questions],
        "transcription_s": [partial(client.transcribe, _form(_voice(one))) for one in range(4)],
    }
    alone = {}
    for kind, calls in works.items():
        for call in calls:  # the first time of each
            await call()
        alone[kind] = [await call() for call in calls for _ in range(3)][2::3]
    chances = [random.Random(number) for number in range(clients // 2)]
    counts, memory = Counter[int](), list[int]()
    phases = {"without attack": _Phase([*works]), "during the attack": _Phase([*works])}

    async def honest(number: int, phase: "_Phase", end: float) -> None:
        kind = "first_token_s" if number % _TRANSCRIBERS else "transcription_s"
        while time.monotonic() < end:
            which = chances[number].randrange(len(works[kind]))
            text, first = await works[kind][which]()
            phase.answers[kind].append((text == alone[kind][which][0], first))
            counts[number] += phase is phases["during the attack"]

    async def serve(phase: "_Phase", duration: float) -> None:
        begun, used = time.monotonic(), _cpu_seconds(pid)
        await asyncio.gather(*(honest(one, phase, begun + duration) for one in range(clients // 2)))
        phase.seconds += time.monotonic() - begun
        phase.cpu = [
            before + now - then
            for before, now, then in zip(phase.cpu, _cpu_seconds(pid), used, strict=True)
        ]

    async def watch() -> None:
        while True:
            memory.append(_resident(pid))
            await asyncio.sleep(0.1)

    turns = max(1, round(seconds / _TURN))
    attacks, waits = Counter[str](), list[float]()
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(1, get_context("spawn")) as enemy:
        await loop.run_in_executor(enemy, _attack, url, 0, 0.0, 0)
        for turn in range(turns):
            await serve(phases["without attack"], seconds * _PEACE / turns)
            memory.append(_resident(pid))
            duration = seconds * (1 - _PEACE) / turns
            attacking = loop.run_in_executor(enemy, _attack, url, clients // 2, duration, turn)
            watching = asyncio.create_task(watch())
            await serve(phases["during the attack"], duration)
            attacks.update(await attacking)
            watching.cancel()
            begun = time.monotonic()
            while (after := _resident(pid)) > memory[
                0
            ] + _FLAT and time.monotonic() < begun + _REST:
                await asyncio.sleep(0.2)
            waits.append(time.monotonic() - begun)
            memory.append(after)
    return {
        "seconds": seconds,
        "clients": clients,
        "turns": turns,
        "answers": {
            kind: sum(len(phase.answers[kind]) for phase in phases.values()) for kind in works
        },
        "wrong_answers": sum(
            not right
            for phase in phases.values()
            for found in phase.answers.values()
            for right, _ in found
        ),
        "fewest_answers_of_a_client": min(counts[one] for one in range(clients // 2)),
        **{
            kind: {
                "one client": _spread(alone[kind]),
                **{name: _spread(phase.answers[kind]) for name, phase in phases.items()},
            }
            for kind in works
        },
        **{name: phase.shown() for name, phase in phases.items()},
        "attacks": dict(sorted(attacks.items())),
        "resident_bytes": {
            "before": memory[0],
            "at_half": max(memory[: len(memory) // 2]),
            "peak": max(memory),
            "after": memory[-1],
            "seconds_until_after": round(max(waits), 1),
        },
    }


class _Phase:
    """What honest clients had in all turns of peace, or of attack.

    Args:
        kinds: Kinds of requests.
    """

    def __init__(self, kinds: Sequence[str]) -> None:
        self.answers: Answers = {kind: [] for kind in kinds}
        self.seconds, self.cpu = 0.0, [0.0, 0.0]

    def shown(self) -> dict[str, float]:
        """Return its figures, beside the times."""
        answers, (server, workers) = sum(map(len, self.answers.values())), self.cpu
        return {
            "answers_per_second": round(answers / self.seconds, 1),
            "cores_of_server": round(server / self.seconds, 3),
            "cores_of_workers": round(workers / self.seconds, 3),
        }


def _attack(url: str, clients: int, seconds: float, seed: int) -> Counter[str]:
    """Attack a server with some clients at a time, in a process of their own; return what became of each attack.

    Args:
        url: Base URL of the server.
        clients: How many there are.
        seconds: How long they attack.
        seed: Seed of their choices.
    """
    client, attacks = Client(url, "127.0.0.2"), Counter[str]()
    end = time.monotonic() + seconds

    async def hostile(number: int) -> None:
        chance = random.Random(f"{seed} {number}")
        while time.monotonic() < end:
            name, ended = chance.choice([*ATTACKS]), "left"
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
                ended = await asyncio.wait_for(
                    ATTACKS[name](client), min(_PATIENCE, end - time.monotonic())
                )
            attacks[f"{name}: {ended}"] += 1

    async def all_of_them() -> None:
        await asyncio.gather(*map(hostile, range(clients)))

    asyncio.run(all_of_them())
    return attacks


def _spread(answers: Sequence[tuple[object, float]]) -> dict[str, float]:
    ordered = sorted(seconds for _, seconds in answers)
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


def _cpu_seconds(pid: int) -> tuple[float, float]:
    """Return the CPU time of a process, and that of its children, those that have ended included."""
    tick = os.sysconf("SC_CLK_TCK")

    def times(one: int) -> list[int]:
        *_, fields = Path(f"/proc/{one}/stat").read_text().rpartition(") ")
        return [int(field) for field in fields.split()[11:15]]

    own, total = times(pid), 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it has ended
            for child in (thread / "children").read_text().split():
                total += sum(times(int(child))[:2])
    return sum(own[:2]) / tick, (total + sum(own[2:])) / tick


# --- clients -------------------------------------------------------------------------------------


class Client:
    """Sends requests to a server.

    Args:
        url: Its base URL.
        address: Address of the client, by which a server without keys distinguishes clients.
    """

    def __init__(self, url: str, address: str = "127.0.0.1") -> None:
        self._place, self._address = urlsplit(url), (address, 0)

    @asynccontextmanager
    async def connected(
        self, path: str
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Begin a request, and close its connection at the end of the block."""
        reader, writer = await asyncio.open_connection(
            self._place.hostname, self._place.port, local_addr=self._address
        )
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

    async def transcribe(self, form: bytes) -> tuple[str, float]:
        """Return the streamed text of a recording, and the seconds to its first part."""
        begun, first, text = time.perf_counter(), 0.0, ""
        async with self.sending("audio/transcriptions", form, kind=_FORM) as reader:
            while line := await reader.readline():
                if line.startswith(b"data: {"):
                    first = first or time.perf_counter() - begun
                    text = json.loads(line[6:]).get("text", text)
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
    return next(iter(sorted((_CHECKPOINT / "images").iterdir()))).read_bytes()


def _blank(width: int, height: int, claimed: tuple[int, int] | None = None) -> bytes:
    """Write an image of one bit a pixel, whose header may promise another size."""
    line = bytes(1 + (width + 7) // 8)
    header = struct.pack(">IIBBBBB", *(claimed or (width, height)), 1, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(line * height, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


@cache
def _silence(minutes: int, channels: int = 8, claimed: float | None = None) -> bytes:
    """Write silence, whose header may promise more seconds of it."""
    file, minute = io.BytesIO(), np.zeros((60 * _RATE, channels), np.int16)
    with soundfile.SoundFile(file, "w", _RATE, channels, format="FLAC") as out:
        for _ in range(minutes):
            out.write(minute)
    data = bytearray(file.getvalue())
    (fields,) = struct.unpack_from(">Q", data, 18)  # of STREAMINFO; its last 36 bits count samples
    promised = int((claimed or minutes * 60) * _RATE)
    struct.pack_into(">Q", data, 18, fields >> 36 << 36 | promised)
    return bytes(data)


def _voice(number: int) -> bytes:
    """Write one and a half seconds of audio."""
    file, rate = io.BytesIO(), 16_000
    soundfile.write(file, voice(rate * 3 // 2, rate, number), rate, format="FLAC")
    return file.getvalue()


def _audio_request(audio: bytes) -> bytes:
    played = {"data": base64.b64encode(audio).decode(), "format": "flac"}
    content = [{"type": "input_audio", "input_audio": played}]
    return _body(messages=[{"role": "user", "content": content}])


def _form(audio: bytes) -> bytes:
    field = 'Content-Disposition: form-data; name="{}"'
    values = {"model": _SPEECH, "language": "en", "stream": "true"}
    head = "".join(
        f"--b\r\n{field.format(name)}\r\n\r\n{value}\r\n" for name, value in values.items()
    )
    head += f'--b\r\n{field.format("file")}; filename="a.flac"\r\n\r\n'
    return head.encode() + audio + b"\r\n--b--\r\n"


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
_CLAIM = 8e6  # seconds: 64 days
_LINES = _body(prompt="a", structured_outputs={"grammar": "\n" * 20_000})
_RULES = _body(
    prompt="a",
    structured_outputs={
        "grammar": "root ::= a0\n"
        + "".join(f'a{one} ::= "x" a{one + 1} | "y"\n' for one in range(2500))
        + 'a2500 ::= "x"'
    },
)
_CHUNKS = _question("What?", _blank(1, 1)[:33] + b"\0\0\0\0teXt\x0e\x79\x02\xb0" * 300_000)
_FILL = _question("What?", *[b"\xff\xd8\xff" + b"\xff" * 2_000_000] * 3)
_ROLE = _body(messages=[{"role": "a" * 2_000_000, "content": "a"}])
_GIGABYTES = 44e9 / 8 / 4 / _RATE  # seconds: 44 GB in eight channels of float32


async def _left(client: Client, body: bytes, seconds: float) -> str:
    async with client.sending("chat/completions", body):
        await asyncio.sleep(seconds)
    return "left"


async def _half(client: Client, path: str, body: bytes, kind: str = _JSON) -> str:
    half = body[: len(body) // 2]
    async with client.sending(path, half, announced=len(body), kind=kind):
        await asyncio.sleep(0.5)
    return "left"


async def _uploaded(client: Client, *silence: Any) -> str:
    return await _sent(client, "audio/transcriptions", _form(_silence(*silence)), _FORM)


async def _slow(client: Client) -> str:
    async with client.connected("completions") as (_, writer):
        while True:
            writer.write(b"X-A: a\r\n")
            await asyncio.sleep(0.05)


async def _in_pieces(client: Client) -> str:
    """Send a body in chunks of one byte."""
    body = _body(prompt="a" * 100_000)
    async with client.connected("completions") as (reader, writer):
        writer.write(f"Content-Type: {_JSON}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        with suppress(ConnectionError):
            writer.write(b"".join(b"1\r\n%c\r\n" % one for one in body) + b"0\r\n\r\n")
            await writer.drain()
        _, status, *_ = [*(await reader.readline()).split(), b"0", b"0"]
        return str(int(status))


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
    "recording in a chat": lambda client: _sent(
        client, "chat/completions", _audio_request(_silence(1, 8, _CLAIM))
    ),
    "claimed recording": lambda client: _uploaded(client, 1, 8, _CLAIM),
    "recording of 44 GB": lambda client: _uploaded(client, 1, 8, _GIGABYTES),
    "40 minutes in eight channels": lambda client: _uploaded(client, 40),
    "50 minutes": lambda client: _uploaded(client, 50, 1),
    "half a recording": lambda client: _half(
        client, "audio/transcriptions", _form(_silence(40)), _FORM
    ),
    "half a request": lambda client: _half(client, "completions", _LONG),
    "slow headers": _slow,
    "answer, left": lambda client: _left(client, _ANSWER, 0.1),
    "lines of a grammar": lambda client: _sent(client, "completions", _LINES),
    "rules of a grammar": lambda client: _sent(client, "completions", _RULES),
    "chunks of an image": lambda client: _sent(client, "chat/completions", _CHUNKS),
    "fill bytes of images": lambda client: _sent(client, "chat/completions", _FILL),
    "long role": lambda client: _sent(client, "chat/completions", _ROLE),
    "pieces of a byte": _in_pieces,
}


if __name__ == "__main__":
    main()
