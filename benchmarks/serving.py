# SPDX-License-Identifier: Apache-2.0
"""Claim: `qeff-zoo serve` costs no more than llama-server on the same CPU: throughput, delays, CPU time of a token.

Both serve a Llama of random weights in 4 bits, on one thread each, with 8 slots, and take turns. Clients send prompts
of 64 random token ids and stream 64 tokens, or 32 to 96 (`spread`), so that prompts begin while others decode; nothing
is reused, and nothing is drafted. Delays are measured by two clocks: the wall's, and the server's CPU time, which
counts what it did between two tokens on a machine with other work. Tokens that arrive in one event of a stream have one
delay, since the event before; `tokens_per_event` is 1 if there are none. `grammar` is the cost of an output that
matches a regular expression: this server with it and without, in turns, greedy and sampled. Prints JSON. Runs that
would end after `--minutes` are left out, and named.

    python benchmarks/serving.py [--llama-server FILE] [--sizes 33m 160m] [--clients 1 8 64] [--turns 2]

Without FILE, llama.cpp's server of the package `xllamacpp` is measured, which is compiled for AVX2 alone. `--checkout`
measures the server of another revision instead, with the same package, which both revisions read:

    python benchmarks/serving.py --checkout DIR --package PACKAGE --sizes 33m --turns 16
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
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
_REQUESTS = 64  # of a run, at most, but for one of each client
_GRAMMAR = "[a-z0-9 ]{900,4000}"
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
    parser.add_argument("--sizes", nargs="+", choices=[*SIZES], default=[*SIZES])
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 8, 64])
    parser.add_argument("--turns", type=int, default=2, help="runs of each server")
    parser.add_argument("--requests", type=int, default=4, help="of each client in a run, at most")
    parser.add_argument("--minutes", type=float, default=20, help="time limit")
    parser.add_argument("--target", default="ort")
    parser.add_argument("--weights", default="int4")
    parser.add_argument("--block-size", type=int, help="of int4 and int8 (default: 64)")
    parser.add_argument("--no-peer", action="store_true", help="measure this server alone")
    parser.add_argument("--checkout", type=Path, help="of the revision that is measured beside")
    parser.add_argument("--package", type=Path, help="of one size (default: it is built)")
    default = Path(tempfile.gettempdir(), "qeff-zoo-benchmarks")
    parser.add_argument("--cache", type=Path, default=default, metavar="DIR")
    arguments = parser.parse_args()
    facts = machine(("qeff-zoo", "onnxruntime", "xllamacpp"))
    packages: dict[str, tuple[Path, Path]] = {
        size: (arguments.package, Path()) if arguments.package else prepared(arguments, size)
        for size in arguments.sizes
    }
    until = time.monotonic() + 60 * arguments.minutes
    cases = {}
    for size in arguments.sizes:
        print(f"# {size}", file=sys.stderr)
        cases[size] = measure(arguments, *packages[size], until)
    built = {name: getattr(arguments, name) for name in ("target", "weights", "block_size")}
    said = {**built, "slots": _SLOTS, "prompt": _PROMPT, "tokens": _TOKENS}
    print(json.dumps({"machine": facts, **said, "cases": cases}, indent=1))


def measure(
    arguments: argparse.Namespace, package: Path, file: Path, until: float
) -> dict[str, Any]:
    """Return the figures of both servers for a size, by kind of run and number of clients, and their ratios.

    Args:
        arguments: Arguments of the command.
        package: Folder of the package.
        file: GGUF file of the same weights.
        until: End of the time, by the monotonic clock.
    """
    other = _ours(package, arguments.checkout) if arguments.checkout else _peer(arguments, file)
    with _ours(package) as ours, other as theirs:
        name = "other revision" if arguments.checkout else "llama-server"
        servers = {"qeff-zoo": ours, **({name: theirs} if theirs else {})}
        both = {name: Side(server) for name, server in servers.items()}
        kinds: dict[str, dict[str, Side]] = {
            "in step": both,
            "spread": {name: replace(side, spread=True) for name, side in both.items()},
        }
        for kind, temperature in (("grammar", 0), ("sampled grammar", 1)):
            free = Side(ours, temperature=temperature)
            kinds[kind] = {"grammar": replace(free, regex=_GRAMMAR), "free": free}
        for side in both.values():
            asyncio.run(_load(side, _SLOTS, 1))  # the first calls of each kind take longest
        found: dict[str, Any] = {}
        speed = 0.0  # tokens per second of the slower side, in the run before
        for clients in arguments.clients:
            requests = min(arguments.requests, max(1, _REQUESTS // clients))
            for kind, sides in kinds.items():
                if "grammar" in kind and clients not in (1, _SLOTS):
                    continue
                turns = arguments.turns
                turn = len(sides) * clients * requests * _TOKENS / speed if speed else 0
                if time.monotonic() + turns * turn > until:
                    turns = 1  # rather than none
                if time.monotonic() + turn > until:
                    found.setdefault("left out", []).append(f"{kind}, {clients} clients")
                    continue
                case = _in_turns(sides, clients, requests, turns)
                found.setdefault(kind, {})[str(clients)] = case
                speed = min(case[name]["tokens_per_s"] for name in sides)
                shown = {name: figures for name, figures in case.items() if name != "runs"}
                print(kind, clients, json.dumps(shown), file=sys.stderr)
    return found


def _in_turns(sides: "Mapping[str, Side]", clients: int, requests: int, turns: int) -> Any:
    """Return the medians of each side's figures, the ratio of the first to the second, and all runs."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for turn in range(turns):
        for name in [*sides] if turn % 2 == 0 else [*sides][::-1]:
            runs[name].append(asyncio.run(_load(sides[name], clients, requests)))
    figures = {name: _medians(every) for name, every in runs.items()}
    if len(figures) == 2:
        one, other = figures.values()
        figures["ratio"] = {name: round(one[name] / other[name], 3) for name in one if other[name]}
    return {**figures, "runs": runs}


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


def prepared(arguments: argparse.Namespace, size: str) -> tuple[Path, Path]:
    """Return the package of a size, and the GGUF file of the same weights, which are made unless they are there."""
    checkpoint = _checkpoint(arguments.cache, size)
    file = checkpoint.with_suffix(f"{checkpoint.suffix}.q4_0.gguf")
    if not arguments.no_peer and not file.is_file():
        gguf_llama.write_q4_0(checkpoint, file)
    built = qeff_zoo.build(
        str(checkpoint),
        validate=False,
        target=arguments.target,
        weights=arguments.weights,
        block_size=arguments.block_size,
        ctx_len=_CONTEXT,
        prefill_seq_len=128,
        full_batch_size=_SLOTS,
    )
    return built.path, file


class Server:
    """Running server.

    Args:
        url: Its base URL.
        process: Its process.
    """

    def __init__(self, url: str, process: subprocess.Popen[str]) -> None:
        self.place, self._process = urlsplit(url), process
        self.model = ""
        #: Fields of requests that no other server has: each event has the number of tokens so far.
        usage = {"include_usage": True, "continuous_usage_stats": True}
        self.options: dict[str, Any] = {"stream_options": usage}

    @property
    def cpu_seconds(self) -> float:
        """CPU time of the process so far: Linux has a clock for each process."""
        return time.clock_gettime(~self._process.pid << 3 | 2)

    def wait(self) -> None:
        """Wait until the server answers, and read the name of its model."""
        until = time.monotonic() + _START
        while time.monotonic() < until and self._process.poll() is None:
            with suppress(OSError), urllib.request.urlopen(f"{self.url}/v1/models") as reply:
                self.model = json.load(reply)["data"][0]["id"]
                return
            time.sleep(0.2)
        raise TimeoutError(f"{self.url} does not answer: exit status {self._process.poll()}.")

    @property
    def url(self) -> str:
        """Address without a path."""
        return f"http://{self.place.netloc}"


@contextmanager
def _started(
    command: Sequence[str], url: str | None = None, checkout: Path | None = None
) -> Iterator[Server]:
    environment = {**os.environ, "PYTHONPATH": str(checkout)} if checkout else None
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=checkout,
        env=environment,
    ) as process:
        try:
            assert process.stdout
            server = Server(url or process.stdout.readline().strip(), process)
            server.wait()
            yield server
        finally:
            process.kill()


@contextmanager
def _ours(package: Path, checkout: Path | None = None) -> Iterator[Server]:
    options = ["--port", "0", "--threads", "1", "--prefix-cache-bytes", "0"]
    command = [sys.executable, "-m", "qeff_zoo", "serve", str(package.absolute()), *options]
    with _started(command, checkout=checkout and checkout.absolute()) as server:
        yield server


@contextmanager
def _peer(arguments: argparse.Namespace, file: Path) -> Iterator[Server | None]:
    if arguments.no_peer:
        yield None
        return
    port, sizes = _free_port(), [str(_SLOTS), str(_CONTEXT)]
    command = [sys.executable, "-c", _XLLAMACPP, str(file), str(port), *sizes]
    if arguments.llama_server:
        command = [str(arguments.llama_server), "-m", str(file), "--port", str(port)]
        command += ["-t", "1", "-tb", "1", "-np", str(_SLOTS), "-c", str(_SLOTS * _CONTEXT)]
        command += ["--cache-ram", "0", "--no-kv-unified"]
    with _started(command, f"http://127.0.0.1:{port}") as server:
        server.options = {"cache_prompt": False, "timings_per_token": True}
        yield server


def _free_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


# --- clients -------------------------------------------------------------------------------------
Times: TypeAlias = tuple[float, float]  # by the wall's clock, and by the server's CPU time


@dataclass(frozen=True)
class Side:
    """Server with the kind of requests that it gets.

    Args:
        server: The server.
        spread: Whether outputs have 32 to 96 tokens.
        regex: Regular expression that every output matches; None for any output.
        temperature: Temperature of sampling.
    """

    server: Server
    spread: bool = False
    regex: str | None = None
    temperature: float = 0


async def _load(side: Side, clients: int, requests: int) -> dict[str, float]:
    """Return the figures of one run."""
    server, first, next_ = side.server, list[Times](), list[Times]()
    total = 0
    begun, cpu = time.perf_counter(), server.cpu_seconds

    async def client(number: int) -> None:
        nonlocal total
        chance = random.Random(number)
        for _ in range(requests):
            prompt = [chance.randrange(300, 8000) for _ in range(_PROMPT)]
            half = _TOKENS // 2
            tokens = chance.randint(half, 3 * half) if side.spread else _TOKENS
            times = await _ask(side, prompt, tokens)
            first.append(times[0])
            next_.extend(times[1:])
            total += tokens

    await asyncio.gather(*map(client, range(clients)))
    wall = time.perf_counter() - begun
    return {
        "tokens_per_s": round(total / wall, 2),
        "cpu_ms_per_token": round(1e3 * (server.cpu_seconds - cpu) / total, 3),
        "tokens_per_event": round(total / (len(first) + len(next_)), 3),
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


async def _ask(side: Side, prompt: Sequence[int], tokens: int) -> list[Times]:
    """Return the seconds from a request to its first event with tokens, and from each such event to the next."""
    server, regex = side.server, side.regex
    body = {
        "model": server.model,
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": side.temperature,
        "stream": True,
    }
    form = {"ignore_eos": True} if regex is None else {"structured_outputs": {"regex": regex}}
    content = json.dumps({**body, **form, **server.options}).encode()
    reader, writer = await asyncio.open_connection(server.place.hostname, server.place.port)
    try:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {server.place.netloc}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        newest, times, count = (time.perf_counter(), server.cpu_seconds), list[Times](), 0
        writer.write(f"{head}Connection: close\r\n\r\n".encode() + content)
        while line := await reader.readline():
            if line.startswith(b"data: {") and (so_far := _tokens(line)) > count:
                count = so_far
                now = (time.perf_counter(), server.cpu_seconds)
                times.append((now[0] - newest[0], now[1] - newest[1]))
                newest = now
    finally:
        writer.close()
    if count != tokens:
        raise RuntimeError(f"{server.url} answered {count} tokens; expected {tokens}.")
    return times


def _tokens(line: bytes) -> int:
    """Return the number of generated tokens up to an event: by the usage, or by llama-server's timings."""
    event = json.loads(line[6:])
    usage, timings = event.get("usage") or {}, event.get("timings") or {}
    return int(usage.get("completion_tokens", timings.get("predicted_n", 0)))


if __name__ == "__main__":
    main()
