# SPDX-License-Identifier: Apache-2.0
"""Claim: where answers are kept, the next turn of a chat begins sooner, by what reading the last answer takes.

Llama checkpoints of random weights, one thread, two sessions of one package in turns: a prompt, its answer, then all of
it and some more tokens. Figures are CPU time until the second answer's first token. Prints JSON.

    python benchmarks/chat.py [--sizes 160m 1.2b] [--weights int4] [--prompt-len 512] [--repeat 5]
"""

import argparse
import statistics
import time
from typing import Any

import numpy as np
from measuring import print_by_size
from random_llama import SIZES, make

import qeff_zoo

_CTX_LEN, _ANSWER, _MORE = 1024, 256, 16


def main() -> None:
    """Measure what was asked for and print the figures."""
    print_by_size((__doc__ or "").splitlines()[0], ("qeff-zoo", "onnxruntime"), measure)


def measure(arguments: argparse.Namespace, name: str) -> dict[str, Any]:
    """Return how long the second turn takes to begin, with answers kept and without."""
    checkpoint = make(arguments.cache / f"llama-{name}-0", SIZES[name], 0)
    package = qeff_zoo.build(
        str(checkpoint), weights=arguments.weights, ctx_len=_CTX_LEN, validate=False
    )
    kept = {"prompts": False, "prompts and answers": True}
    sessions: dict[str, Any] = {
        what: qeff_zoo.load(package, threads=1, prefix_cache_answers=answers)
        for what, answers in kept.items()
    }
    draw, found = np.random.default_rng(0), {what: list[float]() for what in kept}
    reused: dict[str, int] = {}
    for _ in range(arguments.repeat):
        first = draw.integers(2, SIZES[name].vocabulary, arguments.prompt_len).tolist()
        more = draw.integers(2, SIZES[name].vocabulary, _MORE).tolist()
        for what, session in sessions.items():
            (answer,) = session.generate([first], generation_len=_ANSWER, ignore_eos=True)
            begun = time.process_time()
            (second,) = session.generate([[*first, *answer.token_ids, *more]], generation_len=1)
            found[what].append(time.process_time() - begun)
            reused[what] = second.reused_tokens
    first_token = {what: round(1e3 * statistics.median(some), 1) for what, some in found.items()}
    ratio = round(first_token["prompts"] / first_token["prompts and answers"], 2)
    return {"first_token_cpu_ms": first_token, "reused_tokens": reused, "times_as_fast": ratio}


if __name__ == "__main__":
    main()
