# SPDX-License-Identifier: Apache-2.0
"""Claim: states are handed over in 2 % of the time of computing them, and p99 between tokens halves by it.

A prefill server runs in a process of its own. Times are by the clock, since two processes are compared with one: they
mean little where fewer than two cores are free. Prints JSON.

    python benchmarks/handoff.py [--sizes 160m 1.2b] [--weights int4] [--prompt-len 512] [--repeat 5]
"""

import argparse
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from measuring import print_by_size
from random_llama import SIZES, make

import qeff_zoo
from qeff_zoo.runtime import Engine, Prefills, TextGenerationSession
from qeff_zoo.runtime.decoding.call_inputs import Piece

_PACKAGES = ("qeff-zoo", "onnxruntime")
_ROWS, _STREAMS, _STREAM_LEN, _PROMPTS = 4, 2, 96, 4
_CTX_LEN = 1024


def main() -> None:
    """Measure what was asked for and print the figures."""
    print_by_size((__doc__ or "").splitlines()[0], _PACKAGES, measure)


def measure(arguments: argparse.Namespace, name: str) -> dict[str, Any]:
    """Return both figures of one size, and whether they are within their limits."""
    checkpoint = make(arguments.cache / f"llama-{name}-0", SIZES[name], 0)
    package = qeff_zoo.build(
        str(checkpoint),
        weights=arguments.weights,
        ctx_len=_CTX_LEN,
        full_batch_size=_ROWS,
        validate=False,
    )
    session: Any = qeff_zoo.load(package, threads=1)
    serve = [sys.executable, "-m", "qeff_zoo", "serve", str(package.path), "--role", "prefill"]
    with subprocess.Popen(
        [*serve, "--port", "0", "--threads", "1"], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        prefills = Prefills(session, [server.stdout.readline().strip()])
        try:
            moved = hand_over(session, prefills, arguments, SIZES[name].vocabulary)
            gaps = between_tokens(session, prefills, arguments, SIZES[name].vocabulary)
        finally:
            server.terminate()
    limits = {
        "hand_over_share": (moved["hand_over_share"], 0.02),
        "p99_ratio": (gaps["p99_ratio"], 0.5),
    }
    judged = {
        what: {"value": value, "at_most": most, "within": value <= most}
        for what, (value, most) in limits.items()
    }
    return {**moved, **gaps, "limits": judged}


def hand_over(
    session: TextGenerationSession,
    prefills: Prefills,
    arguments: argparse.Namespace,
    vocabulary: int,
) -> dict[str, float]:
    """Compare asking for a prompt that the server knows, but for its last token, with computing it."""
    draw, decoder = np.random.default_rng(0), session.decoder
    width, found = decoder.sizes.prefill_seq_len, []
    for _ in range(arguments.repeat + 1):  # the first is not counted
        prompt = draw.integers(2, vocabulary, arguments.prompt_len + 1).tolist()

        def compute(prompt: list[int] = prompt) -> None:
            for start in range(0, arguments.prompt_len, width):
                decoder.prefill({0: Piece(prompt[start : start + width], start)})

        def last(prompt: list[int] = prompt) -> None:
            decoder.decode({0: Piece(prompt[-1:], arguments.prompt_len)})

        def move(prompt: list[int] = prompt) -> None:
            decoder.restore(1, 0, prefills.run(prompt).states, latest=True)

        computed, token = _seconds(compute), _seconds(last)
        move()
        found.append((computed, max(_seconds(move) - token, 0.0)))
    computed, moved = (statistics.median(pair[place] for pair in found[1:]) for place in (0, 1))
    return {
        "compute_ms": round(1e3 * computed, 2),
        "hand_over_ms": round(1e3 * moved, 2),
        "hand_over_share": round(moved / computed, 4),
    }


def between_tokens(
    session: TextGenerationSession,
    prefills: Prefills,
    arguments: argparse.Namespace,
    vocabulary: int,
) -> dict[str, Any]:
    """Compare the times between tokens of running answers while prompts come, in turns."""
    gaps: dict[str, list[float]] = {"one process": [], "two processes": []}
    for number in range(arguments.repeat):
        for kind in [*gaps][:: 1 if number % 2 else -1]:
            asked = prefills if kind == "two processes" else None
            gaps[kind] += _gaps(session, asked, arguments.prompt_len, vocabulary, number)
    p99 = {kind: round(1e3 * float(np.percentile(some, 99)), 2) for kind, some in gaps.items()}
    median = {kind: round(1e3 * statistics.median(some), 2) for kind, some in gaps.items()}
    ratio = round(p99["two processes"] / p99["one process"], 3)
    return {"p99_ms": p99, "median_ms": median, "p99_ratio": ratio}


def _gaps(
    session: TextGenerationSession,
    prefills: Prefills | None,
    length: int,
    vocabulary: int,
    seed: int,
) -> list[float]:
    """Return the seconds between tokens of answers that run while prompts come one after another."""
    found: list[Any] = []
    draw, begun = np.random.default_rng(seed), threading.Barrier(_STREAMS + 1)

    def listen(engine: Engine, prompt: list[int]) -> None:
        request = session.request(prompt, generation_len=_STREAM_LEN, ignore_eos=True)
        times = []
        for _ in engine.submit(request):
            times.append(time.perf_counter())
            if len(times) == 2:
                begun.wait()
        found.extend(after - before for before, after in pairwise(times[1:]))

    with Engine(session, prefills=prefills) as engine:
        shorts = [draw.integers(2, vocabulary, 8).tolist() for _ in range(_STREAMS)]
        streams = [threading.Thread(target=listen, args=(engine, short)) for short in shorts]
        for stream in streams:
            stream.start()
        begun.wait()
        for _ in range(_PROMPTS):
            prompt = draw.integers(2, vocabulary, length).tolist()
            engine.submit(session.request(prompt, generation_len=1)).result()
        for stream in streams:
            stream.join()
    return found


def _seconds(run: Callable[[], None]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
