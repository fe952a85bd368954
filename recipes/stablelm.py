# SPDX-License-Identifier: Apache-2.0
"""StableLM 3B, 2 1.6B, 2 12B, Stable Code and Zephyr 3B, `transformers.models.stablelm`.

Unusual: Llama with layer norms, and RoPE over a quarter of each head. StableLM 2 12B runs attention and MLP in
parallel and normalizes queries and keys, each head with a norm of its own; the 1.6B has query, key and value biases.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .phi import RECIPE as PHI

_TINY = {
    **PHI.tiny[0].config,
    "rope_parameters": {**PHI.tiny[0].config["rope_parameters"], "partial_rotary_factor": 0.25},
}

RECIPE = replace(
    PHI,
    model_type="stablelm",
    architectures=("StableLmForCausalLM", "StableLmForSequenceClassification"),
    special="Layer norms; partial RoPE; optional parallel attention, and norms of each head's own.",
    # Most published checkpoints have 4,096 positions.
    shapes={name: replace(shape, ctx_len=4096) for name, shape in PHI.shapes.items()},
    tiny=(
        Tiny(config={**_TINY, "use_qkv_bias": True}),
        Tiny(config={**_TINY, "use_parallel_residual": True, "qk_layernorm": True}, name="12b"),
    ),
)
