# SPDX-License-Identifier: Apache-2.0
"""A package's files for onnxruntime-genai (C++, C#, Java, Python), which describe the calls of its graph.

In: a package's manifest. Out: genai_config.json, or what of the package onnxruntime-genai has no place for.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qeff_zoo.contract import TEXT_GENERATION
from qeff_zoo.graph.numerics import Numerics
from qeff_zoo.graph.states import State
from qeff_zoo.package.files import read_json

from . import processor

CONFIG = "genai_config.json"
_ENGINE = "onnxruntime-genai"
_FILLED = ("input_ids", "position_ids")
#: What other inputs are for.
_INPUTS = {
    "batch_index": "continuous batching",
    "comp_ctx_lengths": "compute contexts",
    "num_logits_to_keep": "speculation",
}


def describe(manifest: Mapping[str, Any]) -> str:
    """Describe whether onnxruntime-genai opens a package, and if not, why.

    Args:
        manifest: Manifest of a package for ONNX Runtime.
    """
    if obstacles := [*_obstacles(manifest)]:
        return f"{_ENGINE} does not open it: {', '.join(obstacles)}"
    if all(file["path"] != CONFIG for file in manifest["files"]):
        return f"{_ENGINE} opens it once it is built again: it has no {CONFIG}"
    return f"{_ENGINE} opens it too"


def write(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write genai_config.json, unless onnxruntime-genai cannot open the package.

    Args:
        folder: Folder of the package, with the checkpoint's small files.
        manifest: Without `files`.
    """
    if any(_obstacles(manifest)):
        return
    (program,) = manifest["programs"]
    ctx_len = int(program["specializations"][-1]["symbols"]["ctx_len"])
    _, heads, _, head_size = program["states"][0]["axes"]
    config = {
        "model": {
            "type": "decoder",
            **_tokens(folder),
            "context_length": ctx_len,
            "vocab_size": program["outputs"][0]["shape"][2],
            "decoder": {
                "session_options": {"log_severity_level": 3, **_exact(program)},
                "filename": program["path"],
                "head_size": head_size,
                "num_key_value_heads": heads,
                "num_hidden_layers": len(program["states"]) // 2,
                "inputs": {
                    **{name: name for name in _FILLED},
                    **{f"past_{of}_names": _any_layer(of).name for of in ("key", "value")},
                },
                "outputs": {
                    "logits": "logits",
                    **{f"present_{of}_names": _any_layer(of).output for of in ("key", "value")},
                },
            },
        },
        # No chunk_size: the attention kernel takes chunks of one prompt, and computes nonsense for those of several.
        "search": {"do_sample": False, "max_length": ctx_len, "past_present_share_buffer": True},
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def _exact(program: Mapping[str, Any]) -> Mapping[str, str]:
    """Request exact products for per-channel matrices: onnxruntime-genai does not check the processor."""
    matrices = Numerics.from_dict(program["numerics"]).matrices
    return processor.EXACT if any(matrix.format.per_channel for matrix in matrices) else {}


def _any_layer(of: str) -> State:
    return State(name=f"past_{of}.%d", kind="growing", layer=0, axes=())


def _tokens(folder: Path) -> dict[str, Any]:
    """Read the tokens that begin, end and pad a text; a model without a generation config has them in its config."""
    tokens: dict[str, Any] = {}
    for name in ("config.json", "generation_config.json"):
        path = folder / name
        values = read_json(path)
        tokens |= {
            key: values[key]
            for key in ("bos_token_id", "eos_token_id", "pad_token_id")
            if values.get(key) is not None
        }
    return tokens


def _obstacles(manifest: Mapping[str, Any]) -> Iterator[str]:
    if manifest["task"] != TEXT_GENERATION:
        yield f"task {manifest['task']}"
        return
    if len(manifest["programs"]) > 1:
        yield "several programs"
        return
    (program,) = manifest["programs"]
    for name in (one["name"] for one in program["inputs"]):
        if name not in _FILLED:
            yield _INPUTS.get(name, f"input {name}")
    states = program["states"]
    if others := sorted({state["kind"] for state in states} - {"growing"}):
        yield f"{' and '.join(others)} states"
        return
    expected = [_any_layer(of).name % n for n in range(len(states) // 2) for of in ("key", "value")]
    if not states or sorted(state["name"] for state in states) != sorted(expected):
        yield "layers without keys and values of their own"
    elif len({tuple(state["axes"]) for state in states}) > 1:
        yield "caches of different sizes"
