#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run several adapters (LoRA) of one model in the same calls.

python examples/lora.py [CHECKPOINT NAME=ADAPTER ...]   # without any, adapters made here of examples/tiny-llama
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import qeff_zoo

RANK = 4


def make_adapter(folder: Path, seed: int) -> Path:
    """Write an adapter of random matrices for the queries of the tiny Llama, as peft would."""
    folder.mkdir()
    draw = np.random.default_rng(seed).normal
    tensors = {}
    for layer in range(6):
        module = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{module}.lora_A.weight"] = draw(size=(RANK, 192)).astype(np.float32) / 4
        tensors[f"{module}.lora_B.weight"] = draw(size=(192, RANK)).astype(np.float32) / 4
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def main() -> None:
    """Do it."""
    with tempfile.TemporaryDirectory() as folder:
        given = dict(one.split("=", 1) for one in sys.argv[2:])
        adapters = given or {
            name: make_adapter(Path(folder, name), seed)
            for seed, name in enumerate(("first", "second"))
        }
        checkpoint = (sys.argv[1:] or [Path(__file__).parent / "tiny-llama"])[0]
        package = qeff_zoo.build(checkpoint, ctx_len=256, batch_size=3, max_loras=len(adapters))
        session = qeff_zoo.load(package)
        for name, source in adapters.items():
            session.adapters.load(name, source)
    requests = [
        session.request("class socket.", generation_len=12, adapter=name)
        for name in (None, *adapters)
    ]
    for request, output in zip(requests, session.generate(requests), strict=True):
        print(request.adapter or "the model as it is", "->", repr(output.text))


if __name__ == "__main__":
    main()
