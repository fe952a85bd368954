# SPDX-License-Identifier: Apache-2.0
"""Hunyuan 0.5B to 7B dense, `transformers.models.hunyuan_v1_dense`.

Unusual: queries and keys are normalized per head after RoPE, and RoPE's base is stretched by a fixed `alpha`.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, rms_norm

from .llama import RECIPE as LLAMA

RECIPE = replace(
    LLAMA,
    model_type="hunyuan_v1_dense",
    architectures=("HunYuanDenseV1ForCausalLM", "HunYuanDenseV1ForSequenceClassification"),
    special="An RMS norm per head on queries and keys after RoPE, whose base is stretched by a fixed alpha.",
    transforms=(rms_norm(lambda config: 4 * config.num_hidden_layers + 1),),
    tiny=(
        Tiny(
            config={
                **LLAMA.tiny[0].config,
                "tie_word_embeddings": True,
                "rope_parameters": {
                    "rope_type": "dynamic",
                    "rope_theta": 1000.0,
                    "alpha": 7.0,
                    "factor": 1.0,
                },
            }
        ),
    ),
)
