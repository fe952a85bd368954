# SPDX-License-Identifier: Apache-2.0
"""Youtu-LLM 2B, `transformers.models.youtu`: latent attention (MLA) in an otherwise dense, tied decoder."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .minicpm3 import RECIPE as MINICPM3

_REMOVED_FIELDS = ("scale_emb", "scale_depth", "dim_model_base")
_TINY = {
    key: value for key, value in MINICPM3.tiny[0].config.items() if key not in _REMOVED_FIELDS
} | {
    "tie_word_embeddings": True,
    "embedding_initializer_range": 0.2,
}

RECIPE = replace(
    MINICPM3,
    model_type="youtu",
    architectures=("YoutuForCausalLM",),
    special="Latent attention (MLA), whose cache holds latents; RoPE on interleaved pairs.",
    tiny=(
        Tiny(config=_TINY),
        Tiny(config=_TINY | {"q_lora_rank": None, "rope_interleave": False}, name="plain_query"),
    ),
)
