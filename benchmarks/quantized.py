# SPDX-License-Identifier: Apache-2.0
"""Claim: a quantized checkpoint is as fast as our own int4 of the float model, and GGUF as fast as in llama.cpp.

Rounds a Llama of random weights to AWQ and to GPTQ with act-order (groups of 128), and, given a
Python with `gguf` and `llama-cpp-python`, to GGUF of q4_0 and q4_k_m by llama.cpp, which stores the output matrix in
q6_K, and of q4_0 throughout. Builds each with its integers as
they are, and lets packages and llama.cpp generate in turns. The output matrix of AWQ and GPTQ, which is not quantized,
is int4 here as in our own int4. Last, fresh processes take turns to answer from files that are not in memory. Judged is
CPU time, on one thread unless asked otherwise; of files that are not in memory, time. Prints JSON.

    python benchmarks/quantized.py [--sizes 160m] [--repeat 5] [--peers PYTHON]
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf_llama import tensors
from measuring import machine, measure
from random_llama import SIZES, make
from run import Contender, Engine, take_turns
from safetensors.numpy import save_file

_GROUP = 128
_OURS, _LLAMA_CPP = "stream", "llama.cpp"
_PACKAGES = ("qeff-zoo", "onnxruntime", "numpy")
_AWQ_PLACES = [0, 2, 4, 6, 1, 3, 5, 7]
#: As little of our own int4's speed of decoding as a checkpoint may reach.
_LEAST = {"awq": 0.95, "gptq": 0.95, "q4_k_m": 0.8}
#: That llama.cpp is compared on; the first also from disk.
_SAME_FILES = ("q4_0", "q4_0_pure")
_BUILD_CPU_S = 12.0  # for 1.2 B parameters of q4_0, at most

Array = np.ndarray[Any, np.dtype[Any]]


def main() -> None:
    """Measure and print the figures."""
    arguments = _parser().parse_args()
    # Modules have byte code, as those of a package that pip installed do: importing counts from disk.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(arguments.cache / "bytecode")
    cases = {size: compare(arguments, size) for size in arguments.sizes}
    json.dump({"machine": machine(_PACKAGES), "cases": cases}, sys.stdout, indent=1)
    sys.stdout.write("\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--sizes", nargs="+", choices=["160m", "1.2b"], default=["160m"])
    add("--repeat", type=int, default=5, metavar="N", help="turns of each engine")
    add("--threads", type=int, default=1, metavar="N")
    add("--prompt-len", type=int, default=128, metavar="N")
    add("--generation-len", type=int, default=64, metavar="N")
    add("--peers", metavar="PYTHON", help="a Python with gguf and llama-cpp-python")
    default = Path(tempfile.gettempdir(), "qeff-zoo-benchmarks")
    add("--cache", type=Path, default=default, metavar="DIR", help="keeps models and packages")
    return parser


def compare(arguments: argparse.Namespace, size: str) -> dict[str, Any]:
    """Build and run every format of one size."""
    cache = arguments.cache
    source = make(cache / f"llama-{size}-0", SIZES[size], 0)
    head = ("--format", "lm_head=int4")
    models: dict[str, tuple[Path, tuple[str, ...]]] = {"int4": (source, ("--weights", "int4"))}
    for name, pack in (("awq", awq), ("gptq", gptq)):
        models[name] = quantized(source, cache / f"llama-{size}-{name}", name, pack), head
    field, built = [], {}
    for kind in (*_SAME_FILES, "q4_k_m") if arguments.peers else ():
        file = cache / f"llama-{size}-{kind}.gguf"
        if not file.is_file():
            script = str(Path(__file__).with_name("gguf_llama.py"))
            command = [arguments.peers, script, str(source), str(file), kind]
            subprocess.run(command, check=True, stdout=sys.stderr)
        models[kind] = file, ("--config-from", str(source))
        theirs = {"engine": _LLAMA_CPP, "model": str(file), "python": arguments.peers}
        field.append(Contender(name=f"{_LLAMA_CPP} {kind}", **theirs))
    for name, (model, choices) in reversed(models.items()):
        path, built[name] = build(cache, model, choices)
        field.insert(0, Contender(name=name, engine=_OURS, model=path))
    turns = take_turns(arguments, SIZES[size], field)
    found = {name: figures(answers, arguments.generation_len) for name, answers in turns.items()}
    first = _SAME_FILES[0]
    same = [one for one in field if one.name in (first, f"{_LLAMA_CPP} {first}")]
    cold = from_disk(arguments, SIZES[size].vocabulary, same)
    return {
        "build": built,
        "engines": found,
        "ratios_to_int4": {name: ratios(value, found["int4"]) for name, value in found.items()},
        "from_disk": cold,
        "limits": judge(size, built, found, cold),
    }


def figures(turns: Sequence[Mapping[str, Any]], generation_len: int) -> dict[str, float]:
    """Return medians: ms of CPU for the prompt and for each token after the first, and the same by the clock."""
    found = {}
    for clock in ("cpu_s", "s"):
        first = [turn[f"ttft_{clock}"] for turn in turns]
        rest = [turn[f"total_{clock}"] - turn[f"ttft_{clock}"] for turn in turns]
        for what, some in (
            ("prefill", first),
            ("decode", [one / (generation_len - 1) for one in rest]),
        ):
            found[f"{what}_{clock.replace('_s', '_ms') if clock != 's' else 'ms'}"] = round(
                1e3 * statistics.median(some), 3
            )
    return found


def ratios(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """Return how many times as fast one is as another, in CPU time."""
    return {
        what: round(other[f"{what}_cpu_ms"] / one[f"{what}_cpu_ms"], 3)
        for what in ("decode", "prefill")
    }


def judge(
    size: str,
    built: Mapping[str, Mapping[str, float]],
    found: Mapping[str, Mapping[str, float]],
    cold: Mapping[str, Mapping[str, float]],
) -> dict[str, Any]:
    """Hold figures against what they are to reach."""
    reached = {
        f"decode of {name} to int4": (ratios(found[name], found["int4"])["decode"], least)
        for name, least in _LEAST.items()
        if name in found
    }
    for name in _SAME_FILES if cold else ():
        for what, ratio in ratios(found[name], found[f"{_LLAMA_CPP} {name}"]).items():
            reached[f"{what} of {name} to {_LLAMA_CPP}"] = ratio, 1.0
    if cold:
        ours, theirs = cold[_SAME_FILES[0]], cold[f"{_LLAMA_CPP} {_SAME_FILES[0]}"]
        reached[f"first token from disk to {_LLAMA_CPP}"] = round(theirs["s"] / ours["s"], 3), 1.0
    if cold and size == "1.2b":
        share = _BUILD_CPU_S / built[_SAME_FILES[0]]["with_graph_cpu_s"]
        reached[f"{_BUILD_CPU_S} s to CPU seconds of a build of GGUF"] = round(share, 3), 1.0
    return {
        name: {"value": value, "at_least": least, "within": value >= least}
        for name, (value, least) in reached.items()
    }


def from_disk(
    arguments: argparse.Namespace, vocabulary: int, field: Sequence[Contender]
) -> dict[str, dict[str, float]]:
    """Return the median seconds until a new process has given its first token, its model not in memory before."""
    prompt = [number * 97 % vocabulary for number in range(arguments.prompt_len)]
    taken: dict[str, list[tuple[float, float]]] = {one.name: [] for one in field}
    for number in range(arguments.repeat):
        for one in field[:: 1 if number % 2 else -1]:
            forget(Path(one.model))
            before, begun = os.times(), time.perf_counter()
            engine = Engine(one, arguments.threads)
            engine.turn([prompt], 1)
            wall = time.perf_counter() - begun
            engine.close()
            after = os.times()
            cpu = sum(after[2:4]) - sum(before[2:4])  # of children that have ended
            taken[one.name].append((wall, cpu))
    return {
        name: {"s": round(statistics.median(wall), 3), "cpu_s": round(statistics.median(cpu), 3)}
        for name, some in taken.items()
        for wall, cpu in [tuple(zip(*some, strict=True))]
    }


def forget(model: Path) -> None:
    """Take the files of a model out of the page cache."""
    for path in [model] if model.is_file() else model.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def build(cache: Path, model: Path, choices: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """Build a package with an empty store, and again with the traced graph; return its folder and what that took."""
    command = [sys.executable, "-m", "qeff_zoo", "build", str(model), "--no-validate"]
    command += [*choices, "--ctx-len", "512", "--prefill-seq-len", "128"]
    store = cache / "quantized-store"
    environment = {**os.environ, "QEFF_HOME": str(store)}
    shutil.rmtree(store, ignore_errors=True)
    first = measure(command, environment)
    shutil.rmtree(store / "packages")
    again = measure(command, environment)
    (manifest,) = (store / "packages").glob("*/manifest.json")
    folder = manifest.parent
    kept = cache / "quantized-packages" / folder.name
    shutil.rmtree(kept, ignore_errors=True)
    kept.parent.mkdir(exist_ok=True)
    folder.rename(kept)
    return str(kept), {
        "cpu_s": first.cpu_seconds,
        "with_graph_cpu_s": again.cpu_seconds,
        "with_graph_s": again.wall_seconds,
        "peak_anonymous_bytes": first.peak_anonymous_bytes,
        "bytes": sum(path.stat().st_size for path in kept.rglob("*") if path.is_file()),
    }


# --- checkpoints ----------------------------------------------------------------------------------


def quantized(
    source: Path, target: Path, method: str, pack: Callable[[Array, Array], Mapping[str, Array]]
) -> Path:
    """Round the matrices of a checkpoint's layers to 4 bits, once."""
    if target.is_dir():
        return target
    unfinished = target.with_name(f".{target.name}.{time.time_ns()}")
    unfinished.mkdir()
    for path in source.iterdir():
        if path.suffix != ".safetensors" and "index" not in path.name:
            shutil.copy(path, unfinished)
    generator, orders = np.random.default_rng(0), {}
    found: dict[str, Array] = {}
    for name, raw in tensors(source):
        values = (raw.astype(np.uint32) << 16).view(np.float32)
        if "layers" not in name or values.ndim == 1:
            found[name] = values.astype(np.float16)
            continue
        module = name.removesuffix(".weight")
        # Products of one value have one order, as GPTQ gives them.
        last = module.endswith(("o_proj", "down_proj"))
        kind = module.rpartition(".")[0] + ("out" if last else "in")
        if kind not in orders:
            orders[kind] = generator.permutation(values.shape[1])
        for part, array in pack(values, orders[kind]).items():
            found[f"{module}.{part}"] = array
    save_file(found, unfinished / "model.safetensors")
    config = json.loads((source / "config.json").read_bytes())
    config["quantization_config"] = {
        "quant_method": method,
        "bits": 4,
        "group_size": _GROUP,
        "desc_act": method == "gptq",
        "version": "gemm",
    }
    (unfinished / "config.json").write_text(json.dumps(config))
    unfinished.rename(target)
    return target


def awq(values: Array, order: Array) -> dict[str, Array]:
    """Round to AWQ's layout."""
    integers, zeros, scales = _rounded(values)
    return {
        "qweight": _words(integers.T, _AWQ_PLACES),
        "qzeros": _words(zeros.T, _AWQ_PLACES),
        "scales": np.ascontiguousarray(scales.T),
    }


def gptq(values: Array, order: Array) -> dict[str, Array]:
    """Round to GPTQ's layout, with act-order."""
    integers, zeros, scales = _rounded(values[:, order])
    back = np.argsort(order)
    return {
        "qweight": np.ascontiguousarray(_words(integers[:, back]).T),
        "qzeros": _words((zeros.T - np.uint8(1)) & np.uint8(15)),
        "scales": np.ascontiguousarray(scales.T),
        "g_idx": (back // _GROUP).astype(np.int32),
    }


def _rounded(values: Array) -> tuple[Array, Array, Array]:
    """Round each group of columns to 4 bits with a zero point."""
    groups = values.reshape(len(values), -1, _GROUP)
    low, high = np.minimum(groups.min(-1), 0), np.maximum(groups.max(-1), 0)
    scales = ((high - low) / 15).astype(np.float16)
    wide = scales.astype(np.float32)
    zeros = np.clip(np.rint(-low / wide), 1, 15)
    integers = np.clip(np.rint(groups / wide[..., None]) + zeros[..., None], 0, 15)
    return integers.reshape(values.shape).astype(np.uint8), zeros.astype(np.uint8), scales


def _words(fields: Array, places: list[int] | None = None) -> Array:
    """Pack eight fields of the last axis in a word, in an order."""
    eight = fields.reshape(*fields.shape[:-1], -1, 8)[..., places or list(range(8))]
    shifts = 4 * np.arange(8, dtype=np.uint32)
    words: Array = np.bitwise_or.reduce(eight.astype(np.uint32) << shifts, -1).view(np.int32)
    return words


if __name__ == "__main__":
    main()
