# SPDX-License-Identifier: Apache-2.0
"""AFM-4.5B of Arcee, `transformers.models.arcee`: Llama whose MLP has no gate but squares a ReLU; RoPE of YaRN."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .llama import RECIPE as LLAMA

RECIPE = replace(
    LLAMA,
    model_type="arcee",
    architectures=("ArceeForCausalLM", "ArceeForSequenceClassification"),
    special="Llama with an MLP of two matrices and a squared ReLU, and RoPE scaled by YaRN.",
    tiny=(
        Tiny(
            config={
                **LLAMA.tiny[0].config,
                "rms_norm_eps": 1e-2,
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 1000.0,
                    "factor": 4.0,
                    "beta_fast": 8.0,
                    "original_max_position_embeddings": 32,
                },
                "bos_token_id": 1,
                "eos_token_id": 2,
            }
        ),
    ),
)
