# SPDX-License-Identifier: Apache-2.0
"""Claim: SwiftKV reads prompts at least 1.6 times as fast as the same Llama without it, and decodes as fast.

Builds a Llama of random weights and one of the same sizes whose later half takes keys and values from one hidden state,
and lets them take turns in one process, on one thread. Judged is CPU time, since others on the machine disturb it less.
`bound` is what the products of matrices alone allow. Prints JSON.

    python benchmarks/swiftkv.py [--sizes 160m 1.2b] [--weights int4] [--prompt-len 512] [--repeat 5]
"""

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from measuring import print_by_size
from random_llama import SIZES, Size, make

import qeff_zoo
from qeff_zoo.runtime.decoding.call_inputs import Piece
from qeff_zoo.runtime.decoding.decoder import Decoder

_PACKAGES = ("qeff-zoo", "onnxruntime")
_NEW = 16
_LEAST = {"prefill": 1.6, "decode": 0.95}


def main() -> None:
    """Measure what was asked for and print the figures."""
    print_by_size((__doc__ or "").splitlines()[0], _PACKAGES, compare)


def compare(arguments: argparse.Namespace, name: str) -> dict[str, Any]:
    """Return the medians of both models in turns, and their ratios."""
    plain = SIZES[name]
    sizes = {
        "llama": plain,
        "swiftkv": dataclasses.replace(plain, key_value_layers=plain.layers // 2),
    }
    decoders = {kind: _opened(arguments, f"{kind}-{name}-0", sizes[kind]) for kind in sizes}
    ids = np.random.default_rng(0).integers(2, plain.vocabulary, arguments.prompt_len).tolist()
    turns: dict[str, list[dict[str, float]]] = {kind: [] for kind in sizes}
    for number in range(arguments.repeat + 1):  # the first is not counted
        for kind in [*sizes][:: 1 if number % 2 else -1]:
            turns[kind].append(_turn(decoders[kind], ids))
    found = {
        kind: {what: round(1e3 * statistics.median(t[what] for t in some), 2) for what in _LEAST}
        for kind, (_, *some) in turns.items()
    }
    ratios = {what: round(found["llama"][what] / found["swiftkv"][what], 3) for what in _LEAST}
    limits = {
        what: {"value": ratios[what], "at_least": least, "within": ratios[what] >= least}
        for what, least in _LEAST.items()
    }
    return {"cpu_ms": found, "ratios": ratios, "bound": _bound(plain), "limits": limits}


def _opened(arguments: argparse.Namespace, name: str, size: Size) -> Decoder:
    checkpoint = make(arguments.cache / name, size, 0)
    package = qeff_zoo.build(
        str(checkpoint), weights=arguments.weights, ctx_len=1024, validate=False
    )
    session: Any = qeff_zoo.load(package, threads=1)
    decoder: Decoder = session.decoder
    return decoder


def _turn(decoder: Decoder, ids: list[int]) -> dict[str, float]:
    """Return CPU seconds of a prompt, and of one token after it."""
    length = decoder.sizes.prefill_seq_len

    def prompt() -> None:
        for start in range(0, len(ids), length):
            decoder.prefill({0: Piece(ids[start : start + length], start)})

    def answer() -> None:
        for place in range(_NEW):
            decoder.decode({0: Piece([ids[place]], len(ids) + place)})

    return {"prefill": _seconds(prompt), "decode": _seconds(answer) / _NEW}


def _seconds(run: Callable[[], None]) -> float:
    begun = time.process_time()
    run()
    return time.process_time() - begun


def _bound(size: Size) -> float:
    """Return how many times fewer products of weights a prompt takes: later layers make keys and values alone."""
    head = size.hidden // size.heads
    keys = 2 * size.hidden * head * size.kv_heads
    layer = keys + 2 * size.hidden**2 + 3 * size.hidden * size.intermediate
    return round(2 * layer / (layer + keys), 3)


if __name__ == "__main__":
    main()
