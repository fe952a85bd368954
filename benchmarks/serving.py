# SPDX-License-Identifier: Apache-2.0
"""Claim: `qeff-zoo serve` costs no more than llama-server on the same CPU: throughput, delays, CPU time of a token.

Both serve a Llama of random weights in 4 bits, on one thread each, with 8 slots, and take turns. Clients send prompts
of 64 random token ids and stream 64 tokens; nothing is reused, and nothing is drafted. Delays are measured by two
clocks: the wall's, and the server's CPU time, which counts what it did between two tokens on a machine with other work.
Prints JSON.

    python benchmarks/serving.py [--llama-server FILE] [--sizes 33m 160m] [--clients 1 8 64] [--turns 2]

Without FILE, llama.cpp's server of the package `xllamacpp` is measured, which is compiled for AVX2 alone.
"""

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import gguf_llama
import random_llama
from measuring import machine

import qeff_zoo

SIZES = {
    "33m": random_llama.Size(512, 1792, 8, 8, 4, 8192),
    "160m": random_llama.SIZES["160m"],
    "1.2b": random_llama.SIZES["1.2b"],
}
_SLOTS, _CONTEXT, _PROMPT, _TOKENS = 8, 1024, 64, 64
_START = 120.0  # seconds until a server must answer
#: llama.cpp's server in a process of its own, from the Python package `xllamacpp`.
_XLLAMACPP = """
import sys, time, xllamacpp
options = xllamacpp.CommonParams()
options.model.path, options.port = sys.argv[1], int(sys.argv[2])
options.n_parallel, options.n_ctx = int(sys.argv[3]), int(sys.argv[3]) * int(sys.argv[4])
options.cpuparams.n_threads = options.cpuparams_batch.n_threads = 1
options.kv_unified, options.cache_ram_mib = False, 0
server = xllamacpp.Server(options)
print(server.listening_address, flush=True)
time.sleep(1e6)
"""


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--llama-server", type=Path, metavar="FILE")
    parser.add_argument("--sizes", nargs="+", choices=[*SIZES], default=["33m", "160m"])
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 8, 64])
    parser.add_argument("--turns", type=int, default=2, help="runs of each server")
    parser.add_argument("--requests", type=int, default=4, help="of each client in a run")
    parser.add_argument("--weights", default="int4")
    parser.add_argument("--no-peer", action="store_true", help="measure this server alone")
    parser.add_argument("--regex", help="regular expression that every output matches")
    parser.add_argument(
        "--spread",
        action="store_true",
        help="stream 32 to 96 tokens, so that clients are not in step",
    )
    default = Path(tempfile.gettempdir(), "qeff-zoo-benchmarks")
    parser.add_argument("--cache", type=Path, default=default, metavar="DIR")
    arguments = parser.parse_args()
    facts = machine(("qeff-zoo", "onnxruntime", "xllamacpp"))
    cases = {size: measure(arguments, size) for size in arguments.sizes}
    said = {"weights": arguments.weights, "slots": _SLOTS, "prompt": _PROMPT, "tokens": _TOKENS}
    print(json.dumps({"machine": facts, **said, "cases": cases}, indent=1))


def measure(arguments: argparse.Namespace, size: str) -> dict[str, Any]:
    """Return the figures of both servers for a size, by number of clients, and their ratios."""
    checkpoint = _checkpoint(arguments.cache, size)
    found: dict[str, Any] = {}
    with _ours(checkpoint, arguments.weights) as ours, _peer(arguments, checkpoint) as theirs:
        servers = {"qeff-zoo": ours, **({"llama-server": theirs} if theirs else {})}
        for server in servers.values():
            asyncio.run(_load(server, 2, 1))  # the first calls take longest
        for clients in arguments.clients:
            runs: dict[str, list[dict[str, float]]] = {name: [] for name in servers}
            for turn in range(arguments.turns):
                order = [*servers] if turn % 2 == 0 else [*servers][::-1]
                for name in order:
                    load = _load(
                        servers[name],
                        clients,
                        arguments.requests,
                        arguments.regex,
                        spread=arguments.spread,
                    )
                    runs[name].append(asyncio.run(load))
            figures = {name: _medians(every) for name, every in runs.items()}
            if theirs:
                both = figures["qeff-zoo"], figures["llama-server"]
                figures["ratio"] = {one: round(both[0][one] / both[1][one], 3) for one in both[0]}
            found[str(clients)] = {**figures, "runs": runs}
            print(size, clients, json.dumps(figures), file=sys.stderr)
    return found


def _medians(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def _checkpoint(cache: Path, size: str) -> Path:
    """Write a checkpoint whose tokenizer has a text for every token, unless it is there."""
    folder = cache / f"served-{size}"
    if not folder.is_dir():
        unfinished = random_llama.make(cache / f".served-{size}", SIZES[size], seed=7)
        path = unfinished / "tokenizer.json"
        tokenizer = json.loads(path.read_bytes())
        vocabulary = tokenizer["model"]["vocab"]
        more = range(len(vocabulary), SIZES[size].vocabulary)
        vocabulary |= {f"word{number}": number for number in more}
        path.write_text(json.dumps(tokenizer), encoding="utf-8")
        unfinished.rename(folder)
    return folder


# --- servers -------------------------------------------------------------------------------------


class Server:
    """Running server.

    Args:
        url: Its base URL.
        process: Its process.
    """

    def __init__(self, url: str, process: subprocess.Popen[str]) -> None:
        self.place, self._process = urlsplit(url), process
        self.model = ""
        #: Fields of requests that no other server has.
        self.options: dict[str, Any] = {}

    @property
    def cpu_seconds(self) -> float:
        """CPU time of the process so far: Linux has a clock for each process."""
        return time.clock_gettime(~self._process.pid << 3 | 2)

    def wait(self) -> None:
        """Wait until the server answers, and read the name of its model."""
        until = time.monotonic() + _START
        while time.monotonic() < until:
            with suppress(OSError), urllib.request.urlopen(f"{self.url}/v1/models") as reply:
                self.model = json.load(reply)["data"][0]["id"]
                return
            time.sleep(0.2)
        raise TimeoutError(f"{self.url} does not answer.")

    @property
    def url(self) -> str:
        """Address without a path."""
        return f"http://{self.place.netloc}"


@contextmanager
def _started(command: Sequence[str], url: str | None = None) -> Iterator[Server]:
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout
            server = Server(url or process.stdout.readline().strip(), process)
            server.wait()
            yield server
        finally:
            process.kill()


@contextmanager
def _ours(checkpoint: Path, weights: str) -> Iterator[Server]:
    built = qeff_zoo.build(
        str(checkpoint),
        validate=False,
        weights=weights,
        ctx_len=_CONTEXT,
        prefill_seq_len=128,
        full_batch_size=_SLOTS,
    )
    options = ["--port", "0", "--threads", "1", "--prefix-cache-bytes", "0"]
    with _started([sys.executable, "-m", "qeff_zoo", "serve", str(built.path), *options]) as server:
        yield server


@contextmanager
def _peer(arguments: argparse.Namespace, checkpoint: Path) -> Iterator[Server | None]:
    if arguments.no_peer:
        yield None
        return
    file = checkpoint.with_suffix(f"{checkpoint.suffix}.q4_0.gguf")
    if not file.is_file():
        gguf_llama.write_q4_0(checkpoint, file)
    port, sizes = _free_port(), [str(_SLOTS), str(_CONTEXT)]
    command = [sys.executable, "-c", _XLLAMACPP, str(file), str(port), *sizes]
    if arguments.llama_server:
        command = [str(arguments.llama_server), "-m", str(file), "--port", str(port)]
        command += ["-t", "1", "-tb", "1", "-np", str(_SLOTS), "-c", str(_SLOTS * _CONTEXT)]
        command += ["--cache-ram", "0", "--no-kv-unified"]
    with _started(command, f"http://127.0.0.1:{port}") as server:
        server.options = {"cache_prompt": False}
        yield server


def _free_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


# --- clients -------------------------------------------------------------------------------------
Times: TypeAlias = tuple[float, float]  # by the wall's clock, and by the server's CPU time


async def _load(
    server: Server, clients: int, requests: int, regex: str | None = None, *, spread: bool = False
) -> dict[str, float]:
    """Return the figures of one run."""
    first, next_ = list[Times](), list[Times]()
    begun, cpu = time.perf_counter(), server.cpu_seconds

    async def client(number: int) -> None:
        chance = random.Random(number)
        for _ in range(requests):
            prompt = [chance.randrange(300, 8000) for _ in range(_PROMPT)]
            tokens = chance.randint(_TOKENS // 2, 3 * _TOKENS // 2) if spread else _TOKENS
            times = await _ask(server, prompt, tokens, regex)
            first.append(times[0])
            next_.extend(times[1:])

    await asyncio.gather(*map(client, range(clients)))
    wall, tokens = time.perf_counter() - begun, len(first) + len(next_)
    return {
        "tokens_per_s": round(tokens / wall, 2),
        "cpu_ms_per_token": round(1e3 * (server.cpu_seconds - cpu) / tokens, 3),
        **_percentiles("first", first),
        **_percentiles("next", next_),
    }


def _percentiles(name: str, times: Sequence[Times]) -> dict[str, float]:
    """Return percentiles in milliseconds, by both clocks."""
    found = {}
    for clock, every in zip(("ms", "cpu_ms"), zip(*times, strict=True), strict=True):
        for share in (50, 99):
            value = sorted(every)[round(share / 100 * (len(every) - 1))]
            found[f"{name}_{clock}_p{share}"] = round(1e3 * value, 3)
    return found


async def _ask(
    server: Server, prompt: Sequence[int], tokens: int, regex: str | None
) -> list[Times]:
    """Return the seconds from a request to its first token, and from each token to the next."""
    body = {
        "model": server.model,
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
    }
    form = {"ignore_eos": True} if regex is None else {"structured_outputs": {"regex": regex}}
    content = json.dumps({**body, **form, **server.options}).encode()
    reader, writer = await asyncio.open_connection(server.place.hostname, server.place.port)
    try:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {server.place.netloc}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        newest, times = (time.perf_counter(), server.cpu_seconds), list[Times]()
        writer.write(f"{head}Connection: close\r\n\r\n".encode() + content)
        while line := await reader.readline():
            if line.startswith(b"data: {") and _has_text(line):
                now = (time.perf_counter(), server.cpu_seconds)
                times.append((now[0] - newest[0], now[1] - newest[1]))
                newest = now
    finally:
        writer.close()
    if len(times) < tokens // 2:
        raise RuntimeError(f"{server.url} answered {len(times)} tokens; expected {tokens}.")
    return times


def _has_text(line: bytes) -> bool:
    return any(choice.get("text") for choice in json.loads(line[6:]).get("choices", ()))


if __name__ == "__main__":
    main()
