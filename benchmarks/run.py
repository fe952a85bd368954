# SPDX-License-Identifier: Apache-2.0
"""Claim: generation is as fast as the best on the same CPU.

Makes Llama checkpoints of random weights once, builds each to packages and to the peers' formats, opens every engine in
a process of its own, and lets them generate in turns: greedy, a prompt of 128 tokens, 64 new ones. Prints JSON with the
medians, the ratios to the peers, and the share of the memory roofline: the bytes of weights that a token needs, by the
bandwidth that was measured between the same turns.

    python benchmarks/run.py [--sizes 160m 1.2b] [--weights fp32 int4] [--repeat 5] [--peers PYTHON] [--slots 8]
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from measuring import machine
from random_llama import SIZES, Size, make

from qeff_zoo.graph.numerics import MIXED_BITS

_PACKAGES = ("qeff-zoo", "onnxruntime", "numpy")
_CTX_LEN, _PREFILL_SEQ_LEN = 512, 128
_ENGINES = Path(__file__).with_name("engines.py")
#: Every matrix in int4, with a scale for so many columns: fewer bytes, more rounding.
_WIDE = 128
_OURS, _GENAI, _LLAMA_CPP, _MEMORY = "qeff-zoo", "onnxruntime-genai", "llama.cpp", "memory"
#: Bytes of a parameter in the layers and in the output matrix, by format. Our int4 is a mixture. A block has a scale:
#: of four bytes in ONNX, ours with half a byte of zero point, of two in llama.cpp, which stores the output matrix as
#: q6_K. Peers are used as they come, with blocks of 32.
_BYTES = {
    "fp32": (4.0, 4.0),
    "int4": (MIXED_BITS / 8, MIXED_BITS / 8),
    f"int4/{_WIDE}": (0.5 + 4.5 / _WIDE, 0.5 + 4.5 / _WIDE),
    "int4/32": (0.5 + 4 / 32, 0.5 + 4 / 32),
    "q4_0": (0.5 + 2 / 32, 210 / 256),
}
#: The least that the ratios to peers may be, the most that a package's figures may.
_DECODE = {("fp32", _GENAI): 1.0, ("int4", _GENAI): 1.05, ("int4", _LLAMA_CPP): 1.2}
_PREFILL = 1.0
_ROOFLINE = {("160m", "int4"): 0.6, ("1.2b", "int4"): 0.75}
_HOST_MS = 1.0
_SLOTS = 3.0


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A model in an engine.

    Args:
        name: For the answer.
        engine: One of `engines.ENGINES`.
        model: Its folder or file.
        weights: How it stores them.
        python: That has the engine.
    """

    name: str
    engine: str
    model: str
    weights: str = ""
    python: str = sys.executable


class Engine:
    """The process of a contender.

    Args:
        contender: What to open.
        threads: Of its arithmetic.
    """

    def __init__(self, contender: Contender, threads: int) -> None:
        asked = {"engine": contender.engine, "model": contender.model, "threads": threads}
        environment = dict(os.environ)
        environment.pop("OMP_NUM_THREADS", None)
        if contender.engine == _MEMORY:
            environment["OPENBLAS_NUM_THREADS"] = "1"  # it has threads of its own
        self.name = contender.name
        self._process = subprocess.Popen(
            [contender.python, str(_ENGINES), json.dumps(asked)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._answer()  # it is open

    def turn(self, prompts: Sequence[Sequence[int]], generation_len: int) -> dict[str, Any]:
        """Let it generate, while every other engine waits."""
        stdin = _pipe(self._process.stdin)
        stdin.write(json.dumps({"prompts": prompts, "generation_len": generation_len}) + "\n")
        stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End the process."""
        _pipe(self._process.stdin).close()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        for line in _pipe(self._process.stdout):
            if line.startswith("{"):  # an engine may have more to say
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise RuntimeError(f"{self.name} ended with {self._process.wait()}.")


def main() -> None:
    """Measure what was asked for and print the figures."""
    arguments = _parser().parse_args()
    facts = machine(_PACKAGES)
    if arguments.rebuild:
        shutil.rmtree(arguments.cache / "run-store", ignore_errors=True)
    cases = {}
    for size in arguments.sizes:
        make(arguments.cache / f"llama-{size}-0", SIZES[size], 0)
        for weights in arguments.weights:
            cases[f"{size}_{weights}"] = compare(arguments, size, weights)
            if weights == "int4" and arguments.slots > 1:
                cases[f"{size}_{weights}_slots"] = batching(arguments, size, weights)
    json.dump({"machine": facts, "cases": cases}, sys.stdout, indent=1)
    sys.stdout.write("\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--sizes", nargs="+", choices=["160m", "1.2b"], default=["160m", "1.2b"])
    add("--weights", nargs="+", choices=["fp32", "int4"], default=["fp32", "int4"])
    add("--repeat", type=int, default=5, metavar="N", help="turns of each engine")
    add("--threads", type=int, default=2, metavar="N")
    add("--prompt-len", type=int, default=128, metavar="N")
    add("--generation-len", type=int, default=64, metavar="N")
    add("--slots", type=int, default=8, metavar="N", help="of continuous batching; 1 for none")
    add(
        "--peers",
        metavar="PYTHON",
        help="a Python with onnxruntime-genai, llama-cpp-python or both",
    )
    add("--package", nargs="+", default=[], metavar="NAME=DIR", help="these instead of a build")
    add("--rebuild", action="store_true", help="build the packages anew")
    default = Path(tempfile.gettempdir(), "qeff-zoo-benchmarks")
    add("--cache", type=Path, default=default, metavar="DIR", help="keeps models and packages")
    return parser


# --- models ---------------------------------------------------------------------------------------


def contenders(arguments: argparse.Namespace, size: str, weights: str) -> list[Contender]:
    """Build what is to be compared, unless it lies there."""
    given = dict(item.partition("=")[::2] for item in arguments.package)
    ours = given or {_OURS: build(arguments.cache, size, weights)}
    field = [
        Contender(name=name, engine=_OURS, model=path, weights=weights)
        for name, path in ours.items()
    ]
    if weights == "int4" and not given:
        alone = ("--format", "*=int4", "--block-size", str(_WIDE))
        path = build(arguments.cache, size, weights, *alone)
        name = f"{_OURS}, blocks of {_WIDE}"
        field.append(Contender(name=name, engine=_OURS, model=path, weights=f"int4/{_WIDE}"))
    cache, python = arguments.cache, arguments.peers
    if python and _has(python, "onnxruntime_genai"):
        model = build_genai(cache, size, weights, python)
        stored = "int4/32" if weights == "int4" else weights
        field.append(
            Contender(name=_GENAI, engine=_GENAI, model=model, weights=stored, python=python)
        )
    if python and weights == "int4" and _has(python, "llama_cpp") and _has(python, "gguf"):
        model = build_gguf(cache, size, python)
        field.append(
            Contender(
                name=_LLAMA_CPP, engine=_LLAMA_CPP, model=model, weights="q4_0", python=python
            )
        )
    return field


def build(cache: Path, size: str, weights: str, *choices: str) -> str:
    """Build a package, or take it from the benchmark's store; return its folder."""
    command = [sys.executable, "-m", "qeff_zoo", "build", str(cache / f"llama-{size}-0")]
    command += ["--weights", weights, "--no-validate", "--json", *choices]
    command += ["--ctx-len", str(_CTX_LEN), "--prefill-seq-len", str(_PREFILL_SEQ_LEN)]
    environment = {**os.environ, "QEFF_HOME": str(cache / "run-store")}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
    return str(json.loads(done.stdout)["path"])


def build_genai(cache: Path, size: str, weights: str, python: str) -> str:
    """Build a model with onnxruntime-genai's builder, once."""
    folder = cache / "peers" / f"{_GENAI}-{size}-{weights}"
    if not folder.is_dir():
        unfinished = folder.with_name(f"{folder.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        folder.parent.mkdir(exist_ok=True)
        command = [python, "-m", "onnxruntime_genai.models.builder", "-e", "cpu", "-p", weights]
        command += ["-i", str(cache / f"llama-{size}-0"), "-o", str(unfinished)]
        command += ["-c", str(cache / "peers" / "cache")]
        subprocess.run(command, check=True, stdout=sys.stderr)
        unfinished.rename(folder)
    return str(folder)


def build_gguf(cache: Path, size: str, python: str) -> str:
    """Quantize a checkpoint to q4_0 with llama.cpp, once."""
    target = cache / "peers" / f"{_LLAMA_CPP}-{size}-q4_0.gguf"
    if not target.is_file():
        target.parent.mkdir(exist_ok=True)
        script = str(_ENGINES.with_name("gguf_llama.py"))
        command = [python, script, str(cache / f"llama-{size}-0"), str(target)]
        subprocess.run(command, check=True, stdout=sys.stderr)
    return str(target)


def _has(python: str, module: str) -> bool:
    find = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", find], check=False).returncode == 0


# --- one prompt at a time -------------------------------------------------------------------------


def compare(arguments: argparse.Namespace, size: str, weights: str) -> dict[str, Any]:
    """Let engines generate in turns; return their medians and ratios, and whether the limits are kept."""
    field = contenders(arguments, size, weights)
    shape = SIZES[size]
    needed = {one.name: weight_bytes(shape, one.weights) for one in field}
    memory = Contender(name=_MEMORY, engine=_MEMORY, model="")
    turns = take_turns(arguments, shape, [memory, *field])
    bandwidth = _median(turns.pop(_MEMORY), "bytes_per_s")
    found = {
        name: {"weight_bytes_per_token": needed[name]}
        | summary(answers, arguments, bandwidth / needed[name])
        for name, answers in turns.items()
    }
    first, *others = field
    ours, compared = found[first.name], ratios(found)
    same = {other.name: _same_answers(turns[first.name], turns[other.name]) for other in others}
    most = memory_limit(Path(first.model), shape)
    return {
        "bandwidth_gb_per_s": round(bandwidth / 1e9, 2),
        "engines": found,
        "ratios": compared,
        "same_answers": same,
        "limits": judge(size, weights, ours, compared, most),
        "own_ms_per_token": host_profile(arguments, shape, first),
    }


def take_turns(
    arguments: argparse.Namespace, size: Size, field: Sequence[Contender]
) -> dict[str, list[dict[str, Any]]]:
    """Let every engine generate for the same prompts, one engine at a time; return what each answered."""
    engines = [Engine(one, arguments.threads) for one in field]
    prompts = [_prompt(size, arguments.prompt_len, number) for number in range(arguments.repeat)]
    for engine in engines:  # pages are touched and buffers made before anything counts
        engine.turn([_prompt(size, arguments.prompt_len, -1)], 4)
    turns: dict[str, list[dict[str, Any]]] = {engine.name: [] for engine in engines}
    for number, prompt in enumerate(prompts):
        for engine in _rotated(engines, number):
            turns[engine.name].append(engine.turn([prompt], arguments.generation_len))
            print(f"{number + 1} {engine.name}", file=sys.stderr)
    for engine in engines:
        engine.close()
    return turns


def _same_answers(ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]) -> float:
    """Return the share of turns that gave the same tokens; of one format alone it should be near 1."""
    pairs = zip(ours, theirs, strict=True)
    return statistics.mean(float(one["tokens"] == other["tokens"]) for one, other in pairs)


def summary(
    turns: Sequence[Mapping[str, Any]], arguments: argparse.Namespace, bound: float
) -> dict[str, Any]:
    """Summarize an engine's turns by their medians.

    Args:
        turns: As an engine answered.
        arguments: With the lengths.
        bound: Tokens a second that memory allows.
    """
    decoded = arguments.generation_len - 1
    rates = [decoded / (turn["total_s"] - turn["ttft_s"]) for turn in turns]
    ttft, decode = _median(turns, "ttft_s"), statistics.median(rates)
    figures = {
        "ttft_s": round(ttft, 4),
        "prefill_tokens_per_s": round(arguments.prompt_len / ttft, 1),
        "decode_tokens_per_s": round(decode, 2),
        "roofline_share": round(decode / bound, 3),
        "peak_rss_bytes": max(turn["peak_rss_bytes"] for turn in turns),
        "turns": {
            "ttft_s": [round(turn["ttft_s"], 4) for turn in turns],
            "decode_tokens_per_s": [round(rate, 2) for rate in rates],
        },
    }
    if "host_s_per_call" in turns[0]:
        figures["host_ms_per_token"] = round(1e3 * _median(turns, "host_s_per_call"), 3)
    return figures


def ratios(found: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Compare the first engine with each other: above 1 it is faster, or takes less memory."""
    (_, ours), *others = found.items()
    return {
        name: {
            "prefill": round(theirs["ttft_s"] / ours["ttft_s"], 3),
            "decode": round(ours["decode_tokens_per_s"] / theirs["decode_tokens_per_s"], 3),
            "memory": round(theirs["peak_rss_bytes"] / ours["peak_rss_bytes"], 3),
        }
        for name, theirs in others
    }


def judge(
    size: str,
    weights: str,
    ours: Mapping[str, Any],
    compared: Mapping[str, Mapping[str, float]],
    most: int,
) -> dict[str, dict[str, Any]]:
    """Hold our figures against the limits."""
    judged = {
        "host_ms_per_token": _at_most(ours["host_ms_per_token"], _HOST_MS),
        "peak_rss_bytes": _at_most(ours["peak_rss_bytes"], most),
    }
    if (size, weights) in _ROOFLINE:
        judged["roofline_share"] = _at_least(ours["roofline_share"], _ROOFLINE[size, weights])
    for name, found in compared.items():
        if (weights, name) in _DECODE:
            judged[f"decode to {name}"] = _at_least(found["decode"], _DECODE[weights, name])
            judged[f"prefill to {name}"] = _at_least(found["prefill"], _PREFILL)
    return judged


def host_profile(
    arguments: argparse.Namespace, size: Size, contender: Contender
) -> dict[str, float]:
    """Return the functions that take the most time of their own, in ms a token; the graph is one of them."""
    engine = Engine(replace(contender, engine="profile"), arguments.threads)
    prompt = _prompt(size, arguments.prompt_len, 0)
    found = engine.turn([prompt], arguments.generation_len)["own_ms_per_token"]
    engine.close()
    return {name: round(ms, 4) for name, ms in found.items()}


def memory_limit(package: Path, size: Size) -> int:
    """Return the most that a package may take: its weights and a fifth, its cache, and 300 MB."""
    weights = sum(path.stat().st_size for path in package.glob("weights*"))
    kv = size.hidden // size.heads * size.kv_heads
    cache = 2 * size.layers * kv * _CTX_LEN * 4
    return int(1.2 * weights + cache + 300e6)


def weight_bytes(size: Size, weights: str) -> int:
    """Count the bytes of weights that one token reads: all matrices, of the embedding next to nothing."""
    kv = size.hidden // size.heads * size.kv_heads
    attention = 2 * size.hidden * (size.hidden + kv)
    layer = attention + 3 * size.hidden * size.intermediate
    inner, outer = _BYTES[weights]
    return int(size.layers * layer * inner + size.vocabulary * size.hidden * outer)


# --- continuous batching --------------------------------------------------------------------------


def batching(arguments: argparse.Namespace, size: str, weights: str) -> dict[str, Any]:
    """Compare as many requests as there are slots with one at a time, in the same session."""
    slots = arguments.slots
    model = build(arguments.cache, size, weights, "--full-batch-size", str(slots))
    engine = Engine(Contender(name=_OURS, engine=_OURS, model=model), arguments.threads)
    new = arguments.generation_len

    def requests(first: int, count: int) -> list[list[int]]:
        return [_prompt(SIZES[size], arguments.prompt_len, first + index) for index in range(count)]

    engine.turn(requests(-slots, slots), 4)
    alone, together = [], []
    for number in range(max(arguments.repeat // 2, 1)):
        first = number * (slots + 1)
        alone.append(engine.turn(requests(first, 1), new))
        together.append(engine.turn(requests(first + 1, slots), new))
    engine.close()
    one = {
        "tokens_per_s": new / _median(alone, "total_s"),
        "decode_tokens_per_s": _median(alone, "decode_tokens_per_s"),
    }
    all_slots = {
        "tokens_per_s": slots * new / _median(together, "total_s"),
        "decode_tokens_per_s": _median(together, "decode_tokens_per_s"),
    }
    return {
        "slots": slots,
        "one_at_a_time": {name: round(value, 2) for name, value in one.items()},
        "all_slots": {name: round(value, 2) for name, value in all_slots.items()},
        "ratios": {name: round(all_slots[name] / one[name], 2) for name in one},
        "limits": {name: _at_least(all_slots[name] / one[name], _SLOTS) for name in one},
        "peak_rss_bytes": max(turn["peak_rss_bytes"] for turn in together),
    }


def _at_least(value: float, least: float) -> dict[str, Any]:
    return {"value": round(value, 3), "at_least": least, "within": value >= least}


def _at_most(value: float, most: float) -> dict[str, Any]:
    return {"value": value, "at_most": most, "within": value <= most}


def _prompt(size: Size, length: int, number: int) -> list[int]:
    draw = random.Random(f"prompt {number}")
    return [draw.randrange(2, size.vocabulary) for _ in range(length)]


def _rotated(engines: Sequence[Engine], number: int) -> list[Engine]:
    """Let another engine begin each round."""
    first = number % len(engines)
    return [*engines[first:], *engines[:first]]


def _median(turns: Sequence[Mapping[str, Any]], figure: str) -> float:
    return float(statistics.median(turn[figure] for turn in turns))


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


if __name__ == "__main__":
    main()
