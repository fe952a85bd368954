# SPDX-License-Identifier: Apache-2.0
"""MiniCPM3 4B, `transformers.models.minicpm3`.

Unusual: keys and values come from a small latent, which is what the cache holds (MLA); embeddings, residuals and logits
are scaled by depth and width; norms of the latents have an epsilon of their own.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, rms_norm

from .llama import RECIPE as LLAMA

RECIPE = replace(
    LLAMA,
    model_type="minicpm3",
    architectures=("MiniCPM3ForCausalLM", "MiniCPM3ForSequenceClassification"),
    special="Latent attention (MLA); scaled embeddings, residuals and logits; longrope by context.",
    transforms=(rms_norm(lambda c: (3 + (c.q_lora_rank is not None)) * c.num_hidden_layers + 1),),
    tiny=(
        Tiny(
            config={
                **LLAMA.tiny[0].config,
                "num_key_value_heads": 4,
                "head_dim": 8,
                "q_lora_rank": 24,
                "kv_lora_rank": 32,
                "qk_nope_head_dim": 16,
                "qk_rope_head_dim": 8,
                "v_head_dim": 12,
                "scale_emb": 3,
                "scale_depth": 1.4,
                "dim_model_base": 24,
            }
        ),
    ),
)
