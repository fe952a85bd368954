# SPDX-License-Identifier: Apache-2.0
"""Claim: a token costs what its own experts cost, however many others there are.

Makes Qwen3-MoE checkpoints of random weights that differ in the number of experts alone, builds each in the ways that
experts are computed, and measures them by `qeff_zoo.bench`, in turns. Prints JSON with the medians and their ratio to
the fewest experts.

    python benchmarks/experts.py [--ways native gelu fp32] [--experts 8 64] [--repeat 3] [--threads 2] [--cache DIR]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from measuring import machine
from random_llama import Size, config_of, write_tokenizer

_SIZE = Size(1024, 512, 8, 16, 4, 32_000, tied=False)
_CHOSEN = 8  # experts of a token
_LEAST = 0.8  # of the speed with the fewest experts
#: Way -> weights and activation: the kernel, then each expert on its own tokens, in int4 and in float32.
_WAYS = {
    "native": ("int4", "silu"),
    "gelu": ("int4", "gelu_pytorch_tanh"),
    "fp32": ("fp32", "silu"),
}
_PACKAGES = ("qeff-zoo", "onnxruntime", "transformers", "torch")


def main() -> None:
    """Measure what was asked for and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ways", nargs="+", choices=_WAYS, default=list(_WAYS))
    parser.add_argument("--experts", nargs="+", type=int, default=[8, 64], metavar="N")
    parser.add_argument("--repeat", type=int, default=3, metavar="N")
    parser.add_argument("--threads", type=int, default=2, metavar="N")
    default = Path(tempfile.gettempdir(), "qeff-zoo-benchmarks")
    parser.add_argument("--cache", type=Path, default=default, metavar="DIR")
    arguments = parser.parse_args()
    facts = machine(_PACKAGES)
    ways = {way: measure(way, arguments) for way in arguments.ways}
    json.dump({"machine": facts, "ways": ways}, sys.stdout, indent=1)
    sys.stdout.write("\n")


def measure(way: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Build one way for all numbers of experts, and measure those in turns."""
    counts = sorted(arguments.experts)
    packages = {count: build(arguments.cache, count, way) for count in counts}
    turns: dict[int, list[dict[str, Any]]] = {count: [] for count in counts}
    for _ in range(arguments.repeat):
        for count in counts:
            turns[count].append(figures(packages[count], arguments.threads))
    names = ("prefill_tokens_per_s", "decode_tokens_per_s", "peak_rss_bytes")
    found = {
        count: {name: statistics.median(turn[name] for turn in turns[count]) for name in names}
        for count in counts
    }
    decode = {count: one["decode_tokens_per_s"] for count, one in found.items()}
    ratios = {count: round(decode[count] / decode[counts[0]], 3) for count in counts[1:]}
    limits = {
        str(count): {"value": ratio, "at_least": _LEAST, "kept": ratio >= _LEAST}
        for count, ratio in ratios.items()
    }
    return {"experts": found, "decode_ratios": ratios, "limits": limits}


def build(cache: Path, count: int, way: str) -> str:
    """Make a checkpoint unless it lies there, and build it; return the package's folder."""
    weights, activation = _WAYS[way]
    folder = cache / f"experts-{count}-{activation}"
    if not folder.is_dir():
        _make(folder, count, activation)
    command = [sys.executable, "-m", "qeff_zoo", "build", str(folder), "--weights", weights]
    command += ["--ctx-len", "512", "--no-validate", "--json"]
    environment = {**os.environ, "QEFF_HOME": str(cache / "run-store")}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
    return str(json.loads(done.stdout)["path"])


def _make(folder: Path, count: int, activation: str) -> None:
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    unfinished = folder.with_name(f"{folder.name}.unfinished")
    llama = config_of(_SIZE)
    for name in ("architectures", "model_type", "torch_dtype"):
        del llama[name]
    config = Qwen3MoeConfig(
        **{**llama, "hidden_act": activation},
        moe_intermediate_size=_SIZE.intermediate,
        num_experts=count,
        num_experts_per_tok=_CHOSEN,
        norm_topk_prob=True,
    )
    torch.manual_seed(0)
    model: Any = Qwen3MoeForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(unfinished)
    write_tokenizer(unfinished)
    unfinished.rename(folder)


def figures(package: str, threads: int) -> dict[str, Any]:
    """Measure one package in a process of its own."""
    command = [sys.executable, "-m", "qeff_zoo", "bench", package, "--json"]
    command += ["--threads", str(threads), "--batch-size", "1"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    (case,) = json.loads(done.stdout)
    answer: dict[str, Any] = case
    return answer


if __name__ == "__main__":
    main()
