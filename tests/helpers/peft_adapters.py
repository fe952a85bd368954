# SPDX-License-Identifier: Apache-2.0
"""Adapters as peft writes them, with weights made up, and what peft's model says with them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model

from qeff_zoo import contract
from qeff_zoo.checkpoint.files import read_config

#: What adapters may say that changes how two matrices become one.
KINDS: dict[str, dict[str, Any]] = {
    "attention": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]},
    "every layer": {
        "r": 8,
        "lora_alpha": 12,
        "target_modules": "all-linear",
        "use_rslora": True,
    },
    "patterns": {
        "r": 2,
        "lora_alpha": 16,
        "target_modules": ["q_proj", "down_proj"],
        "rank_pattern": {"down_proj": 6},
        "alpha_pattern": {"layers.0.mlp.down_proj": 4},
    },
}


def load(checkpoint: Path, task: str = "text-generation") -> Any:
    """Return transformers' model of a checkpoint."""
    from transformers import AutoConfig

    assert read_config(checkpoint / "config.json")
    config = AutoConfig.from_pretrained(checkpoint)
    auto = contract.auto_class(task, config)
    model = auto.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager")
    return model.eval()


def write(folder: Path, model: Any, seed: int = 0, *, size: float = 0.2, **config: Any) -> Path:
    """Write an adapter of a model; the model is of no use afterwards."""
    wrapped = get_peft_model(model, LoraConfig(**config))
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_" in name and "magnitude" not in name:
                parameter.copy_(size * torch.randn_like(parameter))
            elif "modules_to_save" in name or "magnitude" in name:
                parameter.mul_(1 + 0.1 * torch.randn_like(parameter))
    wrapped.save_pretrained(folder)
    return folder


def logits(checkpoint: Path, adapter: Path | None, tokens: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return what the model says after the tokens."""
    model = load(checkpoint)
    if adapter:
        model = PeftModel.from_pretrained(model, str(adapter)).eval()
    with torch.no_grad():
        output: np.ndarray[Any, Any] = model(torch.tensor([tokens])).logits[0, -1].numpy()
    return output
