# SPDX-License-Identifier: Apache-2.0
"""What several tests of patterns and others use."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

MODULE = "model.layers.0.self_attn.q_proj"


def adapter(folder: Path, **changes: object) -> Path:
    """Write an adapter of one module."""
    folder.mkdir()
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, **changes}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    names = (f"base_model.model.{MODULE}.lora_{letter}.weight" for letter in "AB")
    shapes = ((2, 8), (8, 2))
    tensors = {name: np.zeros(shape, np.float32) for name, shape in zip(names, shapes, strict=True)}
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder
