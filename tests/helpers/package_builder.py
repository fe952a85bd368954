# SPDX-License-Identifier: Apache-2.0
"""A small package with every part of a manifest, for tests of packages and stores."""

import copy
from pathlib import Path
from typing import Any

from qeff_zoo.package import Package, write_manifest

REVISION = "0e9e39f249a16976918f6564b8830bc894c89659"
SPEC: dict[str, Any] = {
    "spec": 2,
    "sources": {
        "model": {
            "model_id": "org/tiny",
            "revision": REVISION,
            "weights": "sha256:" + "a" * 64,
        }
    },
    "recipe": {"model_type": "llama", "rev": 1, "transforms": ["rms_norm@1", "kv_cache@1"]},
    "shape": {"prefill_seq_len": 128, "ctx_len": 4096, "batch_size": 1},
    "target": {"name": "ort", "weights": "int4"},
    "toolchain": {"qeff_zoo": "0.1.0", "transformers": "5.23.0", "torch": "2.13.0"},
}
SOURCE: dict[str, Any] = SPEC["sources"]["model"]
FILES: dict[str, bytes] = {
    "model.onnx": b"graph",
    "model.onnx.data": bytes(range(256)) * 64,
    "tokenizer.json": b"{}",
    "config.json": b'{"model_type": "llama"}',
    "evidence/logits.json": b"[1, 2]",
    "LICENSE": b"Apache-2.0",
}


def made_from(model: dict[str, Any], **others: Any) -> dict[str, Any]:
    """Make the spec of a package of other checkpoints."""
    return {**copy.deepcopy(SPEC), "sources": {"model": model, **others}}


def check(**changes: Any) -> dict[str, Any]:
    """Make a validation record that passes."""
    return {
        "level": "checkpoint",
        "stage": "prefill",
        "metric": "top1_agreement",
        "value": 1,
        "op": ">=",
        "threshold": 0.99,
        "threshold_from": "noise-floor",
        "passed": True,
        "against": {
            "reference": "LlamaForCausalLM",
            "revision": REVISION,
            "transformers": "5.23.0",
            "dtype": "float32",
            "patched": False,
        },
        "canary": {"mutation": "swap two heads", "value": 0.03, "failed": True},
        **changes,
    }


def program(**changes: Any) -> dict[str, Any]:
    """Make the entry of a program without its key."""
    return {
        "role": "decoder",
        "path": "model.onnx",
        "graph": {"digest": "sha256:" + "8" * 64, "opset": 18},
        "compiled_from": {
            "tensors": "sha256:" + "9" * 64,
            "flags": {"weights": "int4"},
            "compiler": {"name": "onnxruntime", "version": "1.31.0"},
        },
        "specializations": [
            {
                "name": name,
                "symbols": {"batch_size": "1", "seq_len": length, "ctx_len": "4096"},
            }
            for name, length in (("Prefill", "128"), ("Decode", "1"))
        ],
        "inputs": [{"name": "input_ids", "dtype": "int64", "shape": ["batch_size", "seq_len"]}],
        "outputs": [{"name": "logits", "dtype": "float32", "shape": ["batch_size", 1, 512]}],
        "states": [
            {
                "name": "past_key.0",
                "kind": "growing",
                "layer": 0,
                "dtype": "float32",
                "axes": ["batch_size", 2, "ctx_len", 8],
            }
        ],
        "numerics": {"matrices": [], "int8_activations": False},
        **changes,
    }


def draft(**changes: Any) -> dict[str, Any]:
    """Make a manifest without what `write_manifest` fills in."""
    return {
        "name": "org/tiny",
        "task": "text-generation",
        "model_type": "llama",
        "target": {"name": "ort", "needs": {"onnxruntime": ">=1.31"}},
        "spec": copy.deepcopy(SPEC),
        "why": {"shape.ctx_len": "recipe", "target.weights": "user"},
        "programs": [program()],
        "provenance": {
            "version": "0.1.0",
            "finished": "2026-11-20T10:00:00Z",
            "seconds": {"trace": 3.25, "weights": 10},
            "peak_rss_bytes": 1_200_000_000,
        },
        "weights": {"storage": "int4", "tensors": 12},
        "validated": "checkpoint",
        "validation": [check()],
        "license": "apache-2.0",
        **changes,
    }


def fill(folder: Path, **changes: Any) -> Package:
    """Make a folder a package.

    Args:
        folder: Empty or absent.
        changes: Fields of the manifest to set.
    """
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return write_manifest(folder, draft(**changes), {})


def overwrite(path: Path, content: bytes) -> None:
    """Write to a file of the store, in place, as nothing of ours does: packages that share it are damaged as well."""
    if path.exists():
        path.chmod(0o644)
    path.write_bytes(content)
