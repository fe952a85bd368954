# SPDX-License-Identifier: Apache-2.0
"""Claim: kernels for recurrences, short convolutions and windows are faster than the portable bodies.

Makes checkpoints of random weights (Mamba 2; Qwen3.5's gated delta rule with attention; Gemma 3, most of whose layers
keep a window), builds each to int4 twice, as it is and with what these lowerings change left portable, and measures
them by `qeff_zoo.bench`, in turns. Prints JSON with the medians and the ratios of native to portable.

    python benchmarks/kernels.py [--models mamba2 gemma3_text] [--repeat 3] [--threads 2] [--cache DIR]
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
from random_models import BUILD, build, figures, save

_SIZES: dict[str, Any] = {
    "vocab_size": 32_000,
    "hidden_size": 1024,
    "num_hidden_layers": 12,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
}
MODELS: dict[str, dict[str, Any]] = {
    "mamba2": {**_SIZES, "num_heads": 32, "head_dim": 64, "state_size": 128, "n_groups": 1},
    "qwen3_5_text": {
        **_SIZES,
        "intermediate_size": 3584,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 16,
    },
    "gemma3_text": {
        **_SIZES,
        "intermediate_size": 6912,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "sliding_window": 256,
    },
}
_PORTABLE = "--portable"
_NAMES = ("prefill_tokens_per_s", "decode_tokens_per_s")
_LEAST = {"prefill_tokens_per_s": 1.0, "decode_tokens_per_s": 1.15}  # times the speed of portable
_PACKAGES = ("qeff-zoo", "onnxruntime", "transformers", "torch")


def main() -> None:
    """Measure what was asked for and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--repeat", type=int, default=3, metavar="N")
    parser.add_argument("--threads", type=int, default=2, metavar="N")
    default = Path(tempfile.gettempdir(), "qeff-zoo-benchmarks")
    parser.add_argument("--cache", type=Path, default=default, metavar="DIR")
    arguments = parser.parse_args()
    answer: dict[str, Any] = {"machine": machine(_PACKAGES), "models": {}, "limits": {}}
    for name in arguments.models:
        packages = _packages(arguments.cache, name)
        turns: dict[str, list[dict[str, Any]]] = {way: [] for way in packages}
        for _ in range(arguments.repeat):
            for way, package in packages.items():
                turns[way].append(figures(package, arguments.threads))
        found = {
            way: {key: statistics.median(turn[key] for turn in turns[way]) for key in _NAMES}
            for way in packages
        }
        answer["models"][name] = found
        for key in _NAMES:
            ratio = round(found["native"][key] / found["portable"][key], 2)
            judged = {"value": ratio, "at_least": _LEAST[key], "kept": ratio >= _LEAST[key]}
            answer["limits"][f"{name}, {key}"] = judged
    json.dump(answer, sys.stdout, indent=1)
    sys.stdout.write("\n")


def _packages(cache: Path, name: str) -> dict[str, str]:
    """Build a model both ways, each in a store of its own: its key does not distinguish them."""
    folder = save(cache / f"kernels-{name}", partial(_model, name))
    commands = {"native": BUILD, "portable": (sys.executable, __file__, _PORTABLE, "build")}
    return {
        way: build(folder, {**os.environ, "QEFF_HOME": str(cache / f"{way}-store")}, command)
        for way, command in commands.items()
    }


def _model(name: str) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    return AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **MODELS[name]))


def portable(arguments: list[str]) -> int:
    """Run the command line with recurrences, convolutions and windows left as they are."""
    from qeff_zoo.cli import main as command_line
    from qeff_zoo.targets.ort import attention, convolution, recurrence

    for module in (convolution, recurrence):
        vars(module)["lower"] = lambda graph: None
    vars(attention)["_sliding"] = lambda value, attention: None
    return command_line(arguments)


if __name__ == "__main__":
    if sys.argv[1:2] == [_PORTABLE]:
        sys.exit(portable(sys.argv[2:]))
    main()
