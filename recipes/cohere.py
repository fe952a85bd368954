# SPDX-License-Identifier: Apache-2.0
"""Command R, Command R+ and Aya, `transformers.models.cohere`.

Unusual: attention and MLP in parallel on one layer norm without bias, logits scaled, RoPE on interleaved pairs. Command
R+ normalizes queries and keys with weights of their own for every head.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .llama import RECIPE as LLAMA

# Cohere's head_dim is always hidden / heads.
_TINY = {key: value for key, value in LLAMA.tiny[0].config.items() if key != "head_dim"} | {
    "logit_scale": 0.3,
    "layer_norm_eps": 1e-2,
}

RECIPE = replace(
    LLAMA,
    model_type="cohere",
    architectures=("CohereForCausalLM",),
    special="Parallel attention and MLP on one layer norm; scaled logits; RoPE on interleaved pairs; tied head.",
    transforms=(),
    tiny=(
        Tiny(config=_TINY),
        Tiny(config=_TINY | {"use_qk_norm": True, "attention_bias": True}, name="qk_norm"),
    ),
)
