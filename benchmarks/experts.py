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
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from measuring import machine
from random_llama import Size, config_of
from random_models import build, figures, save

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
    weights, activation = _WAYS[way]
    environment = {**os.environ, "QEFF_HOME": str(arguments.cache / "run-store")}
    packages = {}
    for count in counts:
        folder = arguments.cache / f"experts-{count}-{activation}"
        saved = save(folder, partial(model, count, activation))
        packages[count] = build(saved, environment, weights=weights)
    turns: dict[int, list[dict[str, Any]]] = {count: [] for count in counts}
    for _ in range(arguments.repeat):
        for count in counts:
            turns[count].append(figures(packages[count], arguments.threads))
    names = ("prefill_tokens_per_s", "decode_tokens_per_s", "peak_rss_bytes")
    found = {
        count: {name: statistics.median(turn[name] for turn in turns[count]) for name in names}
        for count in counts
    }
    decode = {count: value["decode_tokens_per_s"] for count, value in found.items()}
    ratios = {count: round(decode[count] / decode[counts[0]], 3) for count in counts[1:]}
    limits = {
        str(count): {"value": ratio, "at_least": _LEAST, "kept": ratio >= _LEAST}
        for count, ratio in ratios.items()
    }
    return {"experts": found, "decode_ratios": ratios, "limits": limits}


def model(count: int, activation: str) -> Any:
    """Make the model with so many experts."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

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
    return Qwen3MoeForCausalLM(config)


if __name__ == "__main__":
    main()
