#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make a mixture of experts with random weights, for `package_faults.py`: no registry has a small one that was trained.

    python scripts/random_moe.py FOLDER

A Qwen3-MoE of 8 layers with 32 experts, 2 of them for each token, and the tokenizer of examples/tiny-llama. Weights are
normal with a deviation of 0.05, those of norms around 1.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

_EXAMPLE = Path(__file__).parents[1] / "examples" / "tiny-llama"


def make(folder: Path) -> None:
    """Write the checkpoint.

    Args:
        folder: A folder that does not exist yet.
    """
    of_example = json.loads((_EXAMPLE / "config.json").read_bytes())
    tokens = {name: of_example.get(name) for name in ("bos_token_id", "eos_token_id")}
    config = Qwen3MoeConfig(
        vocab_size=of_example["vocab_size"],
        hidden_size=256,
        intermediate_size=512,
        moe_intermediate_size=128,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        num_experts=32,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        initializer_range=0.05,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        **tokens,
    )
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(config)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    for path in _EXAMPLE.glob("*token*"):
        shutil.copy(path, folder)
    for path in _EXAMPLE.glob("chat_template*"):
        shutil.copy(path, folder)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
