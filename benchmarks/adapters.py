#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What adapters cost: calls of a package that takes them against one that does not, in turns, in seconds of CPU.

python benchmarks/adapters.py [-o results/adapters.json]   # a random Llama of 160 M parameters in int4, one thread
"""

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import random_llama
from measuring import machine
from safetensors.numpy import save_file

import qeff_zoo
from qeff_zoo.runtime.decoding.call_inputs import Piece

RANK, SLOTS, ROWS, PROMPT = 16, 4, 4, 128
OPENINGS, REPEATS = 4, 6
#: By call, seconds by whose rows they were.
Times: TypeAlias = dict[str, dict[str, float]]


def write_adapter(folder: Path, session: Any, seed: int) -> None:
    """Write an adapter of random matrices for every layer that a session lets adapters change."""
    folder.mkdir()
    rng = np.random.default_rng(seed)
    tensors: dict[str, Any] = {}
    for site, (rows, columns) in session.adapters.sites.items():
        module = f"base_model.model.model.layers.{site.layer}.{site.module}"
        down = rng.normal(size=(RANK, rows)).astype(np.float32)
        up = rng.normal(size=(columns, RANK)).astype(np.float32)
        tensors |= {f"{module}.lora_A.weight": down / 100, f"{module}.lora_B.weight": up / 100}
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK}
    (folder / "adapter_config.json").write_text(json.dumps(config))


def calls(session: Any, slots: list[int]) -> Mapping[str, Callable[[], object]]:
    """Return calls by name; row i has the adapter of a slot."""
    decoder, tokens = session.decoder, np.random.default_rng(0).integers(3, 255, 256).tolist()
    for row in range(ROWS):
        decoder.prefill({row: Piece(tokens[:64], 0, slot=slots[row])})

    def decode(rows: int) -> object:
        return decoder.decode(
            {row: Piece(tokens[64:65], 64, slot=slots[row]) for row in range(rows)}
        )

    return {
        "decode, 1 row": lambda: decode(1),
        f"decode, {ROWS} rows": lambda: decode(ROWS),
        f"prefill of {PROMPT}": lambda: decoder.prefill(
            {0: Piece(tokens[:PROMPT], 0, slot=slots[0])}
        ),
    }


def taken(call: Callable[[], object]) -> float:
    """Return the seconds of CPU that a call takes."""
    begun = time.thread_time()
    call()
    return time.thread_time() - begun


def _milliseconds(found: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    return {
        what: {who: round(1000 * seconds, 2) for who, seconds in times.items()}
        for what, times in found.items()
    }


def _in_turns(plain: Any, session: Any, found: Times, changing: Times) -> None:
    """Time calls of both, and note the least of each: of rows that go on, and of rows that got other adapters."""
    base = [0] * ROWS
    every = {
        "without": calls(plain, base),
        "base": calls(session, base),
        "one adapter": calls(session, [1] * ROWS),
        "an adapter each": calls(session, [1, 2, 3, 4]),
        "two of the base": calls(session, [1, 0, 2, 0]),
    }
    for _ in range(REPEATS):
        for who, mine in every.items():
            for what, call in mine.items():
                for kept in (changing, found):
                    times = kept.setdefault(what, {})
                    times[who] = min(taken(call), times.get(who, math.inf))


def measure(folder: Path) -> dict[str, Any]:
    """Build both packages, load adapters, and time calls of both in turns."""
    model = random_llama.make(folder / "model", random_llama.SIZES["160m"], 0)
    choices: dict[str, Any] = {
        "weights": "int4",
        "ctx_len": 512,
        "batch_size": ROWS,
        "prefill_seq_len": PROMPT,
        "validate": False,
    }
    taking = {**choices, "max_loras": SLOTS, "max_lora_rank": RANK}
    packages = [qeff_zoo.build(str(model), **one) for one in (choices, taking)]
    seconds: list[float] = []
    found: Times = {}
    changing: Times = {}
    for _ in range(OPENINGS):  # where weights come to lie in memory changes what a call costs
        sessions: list[Any] = [qeff_zoo.load(package, threads=1) for package in packages]
        plain, session = sessions
        for number in range(SLOTS):
            adapter = folder / f"adapter{number}"
            if not adapter.exists():
                write_adapter(adapter, session, number)
            begun = time.perf_counter()
            session.adapters.load(adapter.name, adapter)
            seconds.append(time.perf_counter() - begun)
        _in_turns(plain, session, found, changing)
        sites = session.adapters.sites
    return {
        "milliseconds": _milliseconds(found),
        "milliseconds where rows change adapters": _milliseconds(changing),
        "ratio": {
            what: {who: round(value / times["without"], 3) for who, value in times.items()}
            for what, times in found.items()
        },
        "load_ms": round(1000 * min(seconds), 1),
        "megabytes of an adapter": round(RANK * 4 * sum(map(sum, sites.values())) / 1e6, 1),
        "rank": RANK,
        "slots": SLOTS,
    }


def main() -> None:
    """Measure, print, and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path)
    output = parser.parse_args().output
    with tempfile.TemporaryDirectory() as folder:
        found = {"machine": machine(("qeff-zoo", "onnxruntime")), **measure(Path(folder))}
    text = json.dumps(found, indent=2)
    print(text)
    if output:
        output.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
