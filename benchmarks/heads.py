# SPDX-License-Identifier: Apache-2.0
"""Claim: a token that heads draft costs at most a quarter of a call of the model, and one of EAGLE-3 a third.

Heads of random weights beside a Llama of random weights: what they draft is never right, and what it costs is what it
costs for right ones. Three heads of each kind with one call for all, and a layer of EAGLE-3, called for each token. The
model's call of one token, its call that checks three drafts, the heads' and the layer's take turns; judged is CPU time
on one thread. `without` is the model in a package without heads: EAGLE-3's joins hidden states in every call.
Prints JSON.

    python benchmarks/heads.py [--sizes 160m 1.2b] [--weights int4] [--repeat 9]
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from measuring import print_by_size
from random_llama import SIZES, Size, make
from safetensors.numpy import save_file

import qeff_zoo
from qeff_zoo.package import Package
from qeff_zoo.runtime.decoding.call_inputs import Piece
from qeff_zoo.runtime.decoding.decoder import Decoder
from qeff_zoo.runtime.engine.speculation.heads import Heads
from qeff_zoo.runtime.engine.speculation.layer import Layer
from qeff_zoo.sessions.opening import open_heads

_PACKAGES = ("qeff-zoo", "onnxruntime")
_CTX_LEN, _START, _DRAFTED = 512, 256, 3
_MOST, _OF_LAYER = 0.25, 0.33  # of a call


def main() -> None:
    """Measure what was asked for and print the figures."""
    print_by_size((__doc__ or "").splitlines()[0], _PACKAGES, compare)


def compare(arguments: argparse.Namespace, name: str) -> dict[str, Any]:
    """Return the CPU time of each call, and of a drafted token as a share of the model's call."""
    size, folder = SIZES[name], arguments.cache
    source = make(folder / f"llama-{name}-0", size, 0)
    kinds: dict[str, Path | None] = {"without": None}
    for kind, (config, tensors) in _speculators(size).items():
        kinds[kind] = _write(folder / f"heads-{name}-{kind}", config, tensors)
    found, limits = {}, {}
    for kind, heads in kinds.items():
        package = qeff_zoo.build(
            source,
            draft_heads=heads,
            weights=arguments.weights,
            ctx_len=_CTX_LEN,
            num_speculative_tokens=(_DRAFTED,),
            validate=False,
        )
        found[kind] = times = _in_turns(_calls(package), arguments.repeat)
        if heads:
            several, most = (1, _OF_LAYER) if kind == "eagle3" else (_DRAFTED, _MOST)
            each = times["draft"] / several
            times["share of a call"] = share = round(each / times["decode"], 3)
            limits[kind] = {"value": share, "at_most": most, "within": share <= most}
    return {"cpu_ms": found, "limits": limits}


def _calls(package: Package) -> dict[str, Callable[[], object]]:
    session: Any = qeff_zoo.load(package, threads=1)
    decoder: Decoder = session.decoder
    several = [1] * (_DRAFTED + 1)
    calls: dict[str, Callable[[], object]] = {
        "decode": lambda: decoder.decode({0: Piece([1], _START)}),
        "check": lambda: decoder.verify({0: Piece(several, _START)}),
    }
    program = open_heads(package, 1)
    if program and program.states:
        layer = Layer(program)
        hidden = np.zeros((1, layer.size), np.float32)
        calls["draft"] = lambda: layer.run(0, [1], _START, hidden)
    elif program:
        heads = Heads(program)
        state = np.zeros((1, int(program.inputs["hidden_states"].shape[1])), np.float32)
        calls["draft"] = lambda: heads.logits(state, [[1]])
    return calls


def _in_turns(calls: Mapping[str, Callable[[], object]], repeat: int) -> dict[str, float]:
    """Return medians of milliseconds; the first turn is not counted."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeat + 1):
        for name, call in calls.items():
            begun = time.thread_time()
            call()
            found[name].append(time.thread_time() - begun)
    return {name: round(1e3 * statistics.median(some[1:]), 3) for name, some in found.items()}


def _speculators(size: Size) -> dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]]]]:
    """Return the configuration of each kind, and the shapes of its tensors."""
    hidden, vocab = size.hidden, size.vocabulary
    blocks = {
        f"{head}.0.linear.{part}": (hidden, hidden)[: 2 if part == "weight" else 1]
        for head in range(_DRAFTED)
        for part in ("weight", "bias")
    }
    own = {f"{head}.1.weight": (vocab, hidden) for head in range(_DRAFTED)}
    each = hidden // size.heads
    keys, drafted = each * size.kv_heads, min(vocab, 32_000)
    layer = {
        "self_attn.q_proj": (hidden, 2 * hidden),
        "self_attn.k_proj": (keys, 2 * hidden),
        "self_attn.v_proj": (keys, 2 * hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (size.intermediate, hidden),
        "mlp.up_proj": (size.intermediate, hidden),
        "mlp.down_proj": (hidden, size.intermediate),
        **dict.fromkeys(("hidden_norm", "input_layernorm", "post_attention_layernorm"), (hidden,)),
    }
    config = {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": size.intermediate,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "rms_norm_eps": 1e-5,
        "vocab_size": vocab,
        "draft_vocab_size": drafted,
    }
    eagle3 = {
        "fc.weight": (hidden, 3 * hidden),
        "norm.weight": (hidden,),
        "lm_head.weight": (drafted, hidden),
        "d2t": (drafted,),
        **{f"midlayer.{name}.weight": shape for name, shape in layer.items()},
    }
    medusa = {"medusa_num_heads": _DRAFTED, "medusa_num_layers": 1}
    return {
        "medusa, the model's matrix": (medusa, blocks),
        "medusa, matrices of its own": (medusa, {**blocks, **own}),
        "eagle3": (config, eagle3),
    }


def _write(folder: Path, config: dict[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    draw = np.random.default_rng(0)
    tensors = {
        name: np.zeros(shape, np.int64)
        if name == "d2t"
        else (0.02 * draw.standard_normal(shape, np.float32)).astype(np.float16)
        for name, shape in shapes.items()
    }
    save_file(tensors, folder / "model.safetensors")
    return folder


if __name__ == "__main__":
    main()
