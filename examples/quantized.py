#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Build a package of a quantized checkpoint, say what was kept of its matrices, and generate.

python examples/quantized.py [CHECKPOINT]   # without one, of a GPTQ checkpoint made here of examples/tiny-llama
"""

import json
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

import qeff_zoo

OURS, GROUP = Path(__file__).parent / "tiny-llama", 32  # columns that share a scale


def make_gptq(target: Path) -> Path:
    """Round the matrices of a model's layers to the nearest of 16 values, stored as GPTQ stores them."""
    shutil.copytree(OURS, target, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((OURS / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": GROUP}
    (target / "config.json").write_text(json.dumps(config))
    tensors = load_file(OURS / "model.safetensors")
    for name in [one for one in tensors if ".layers." in one and tensors[one].ndim == 2]:
        value = tensors.pop(name).float().numpy()
        groups = value.reshape(len(value), -1, GROUP)
        scales = np.abs(groups).max(-1).astype(np.float16) / np.float16(7)
        nibbles = (np.rint(groups / scales[..., None]).clip(-8, 7) + 8).astype(np.uint8)
        pairs = nibbles.reshape(len(value), -1, 2)
        words = (pairs[..., 0] | pairs[..., 1] << 4).view(np.int32)
        zeros = np.full((groups.shape[1], len(value) // 8), 0x77777777, np.int32)  # 8, less one
        path = name.removesuffix("weight")
        for key, one in ("qweight", words.T), ("qzeros", zeros), ("scales", scales.T):
            tensors[path + key] = torch.from_numpy(np.ascontiguousarray(one))
    save_file(tensors, target / "model.safetensors")
    return target


def main() -> None:
    """Do it."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = sys.argv[1] if sys.argv[1:] else make_gptq(Path(folder, "tiny-gptq"))
        package = qeff_zoo.build(checkpoint, ctx_len=256)
    matrices = package.programs[0].numerics.matrices
    found = Counter((one.format.in_words, "kept" if one.kept else "rounded") for one in matrices)
    for (format, what), count in found.items():
        print(f"{count} matrices {what}: {format}")
    for output in qeff_zoo.load(package).generate(["class socket."], generation_len=24):
        print(output.prompt, "->", output.text)


if __name__ == "__main__":
    main()
