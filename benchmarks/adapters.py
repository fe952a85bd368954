#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What adapters cost: calls of a package that takes them against one that does not, in turns, in seconds of CPU.

python benchmarks/adapters.py [-o results/adapters.json]   # a random Llama of 160 M parameters in int4, one thread
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import random_llama
from measuring import machine
from safetensors.numpy import save_file

import qeff_zoo
from qeff_zoo.adapters import sites_of
from qeff_zoo.runtime.decoder import Piece

RANK, SLOTS, ROWS, PROMPT = 16, 4, 4, 128
REPEATS = 15


def write_adapter(folder: Path, session: Any, seed: int) -> None:
    """Write an adapter of random matrices for every layer that a session lets adapters change."""
    folder.mkdir()
    rng = np.random.default_rng(seed)
    tensors: dict[str, Any] = {}
    for site in sites_of(session.adapters.inputs):
        rows, columns = (session.adapters.inputs[name].shape for name in site.inputs)
        module = f"base_model.model.model.layers.{site.layer}.{site.module}"
        down = rng.normal(size=(RANK, rows[1])).astype(np.float32)
        up = rng.normal(size=(columns[2], RANK)).astype(np.float32)
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
    plain: Any = qeff_zoo.load(qeff_zoo.build(str(model), **choices), threads=1)
    taking = qeff_zoo.build(str(model), max_loras=SLOTS, max_lora_rank=RANK, **choices)
    session: Any = qeff_zoo.load(taking, threads=1)
    seconds = []
    for number in range(SLOTS):
        write_adapter(folder / f"adapter{number}", session, number)
        begun = time.perf_counter()
        session.adapters.load(f"adapter{number}", folder / f"adapter{number}")
        seconds.append(time.perf_counter() - begun)
    base = [0] * ROWS
    every = {
        "without": calls(plain, base),
        "base": calls(session, base),
        "one adapter": calls(session, [1] * ROWS),
        "an adapter each": calls(session, [1, 2, 3, 4]),
        "two of the base": calls(session, [1, 0, 2, 0]),
    }
    found: dict[str, dict[str, float]] = {}
    for _ in range(REPEATS):
        for who, mine in every.items():
            for what, call in mine.items():
                begun = time.thread_time()
                call()
                taken = time.thread_time() - begun
                times = found.setdefault(what, {})
                times[who] = min(taken, times.get(who, taken))
    return {
        "milliseconds": {
            what: {who: round(1000 * time, 2) for who, time in times.items()}
            for what, times in found.items()
        },
        "ratio": {
            what: {who: round(time / times["without"], 3) for who, time in times.items()}
            for what, times in found.items()
        },
        "load_ms": round(1000 * min(seconds), 1),
        "megabytes": round(sum(one.nbytes for one in session.adapters.inputs.values()) / 1e6, 1),
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
