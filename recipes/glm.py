# SPDX-License-Identifier: Apache-2.0
"""GLM-4 9B and GLM-Edge, `transformers.models.glm`.

Unusual: RoPE rotates interleaved pairs in half of each head only; gate and up projection are one matrix.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .llama import RECIPE as LLAMA

RECIPE = replace(
    LLAMA,
    model_type="glm",
    architectures=("GlmForCausalLM", "GlmForSequenceClassification"),
    special="RoPE on interleaved pairs of half of each head; biased query, key, value; fused gate and up projection.",
    tiny=(
        Tiny(
            config={
                **LLAMA.tiny[0].config,
                "rms_norm_eps": 1e-2,
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 1000.0,
                    "partial_rotary_factor": 0.5,
                },
                "pad_token_id": 0,
            },
        ),
    ),
)
