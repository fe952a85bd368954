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
from safetensors.numpy import save_file

import qeff_zoo
from qeff_zoo.checkpoint import open_checkpoint
from qeff_zoo.weights.writing import evaluate

GROUP = 32  # columns that share a scale


def make_gptq(source: Path, target: Path) -> Path:
    """Round the matrices of a checkpoint's layers to the nearest of 16 values, stored as GPTQ stores them."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": GROUP}
    (target / "config.json").write_text(json.dumps(config))
    tensors = {}
    checkpoint = open_checkpoint(str(source))
    for name in checkpoint.tensors:
        value = evaluate(name, checkpoint)  # in float32
        if ".layers." not in name or value.ndim != 2:
            tensors[name] = value
            continue
        rows, columns = value.shape
        groups = value.reshape(rows, -1, GROUP)
        scales = np.abs(groups).max(-1).astype(np.float16) / np.float16(7)
        rounded = np.rint(groups / scales[..., None]).clip(-8, 7).reshape(rows, columns)
        nibbles = (rounded + 8).astype(np.uint8)
        words = np.ascontiguousarray(nibbles[:, 0::2] | nibbles[:, 1::2] << 4).view(np.int32)
        zeros = np.full((columns // GROUP, rows // 8), 0x77777777, np.int32)  # 8, less one
        stored = {"qweight": words.T, "qzeros": zeros, "scales": scales.T}
        module = name.removesuffix(".weight")
        tensors |= {f"{module}.{key}": np.asarray(one, order="C") for key, one in stored.items()}
    save_file(tensors, target / "model.safetensors")
    return target


def main() -> None:
    """Do it."""
    with tempfile.TemporaryDirectory() as folder:
        ours = Path(__file__).parent / "tiny-llama"
        checkpoint = sys.argv[1] if sys.argv[1:] else make_gptq(ours, Path(folder, "tiny-gptq"))
        package = qeff_zoo.build(checkpoint, ctx_len=256)
    matrices = package.programs[0].numerics.matrices
    found = Counter((one.format.in_words, "kept" if one.kept else "rounded") for one in matrices)
    for (format, what), count in found.items():
        print(f"{count} matrices {what}: {format}")
    for output in qeff_zoo.load(package).generate(["class socket."], generation_len=24):
        print(output.prompt, "->", output.text)


if __name__ == "__main__":
    main()
