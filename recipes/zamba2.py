# SPDX-License-Identifier: Apache-2.0
"""Zamba2 1.2B, 2.7B and 7B, `transformers.models.zamba2`: Mamba 2, and attention blocks that many layers share."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .zamba import RECIPE as ZAMBA

_TINY = (
    {"vocab_size": 257, "hidden_size": 64, "intermediate_size": 96, "num_mem_blocks": 2}
    | {"layers_block_type": ["linear_attention", "hybrid", "hybrid"] * 2, "num_hidden_layers": 6}
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "adapter_rank": 8}
    | {"n_mamba_heads": 8, "mamba_ngroups": 2, "mamba_d_state": 12, "mamba_d_conv": 3}
    | {"max_position_embeddings": 128, "initializer_range": 0.2, "rms_norm_eps": 1e-2}
)

RECIPE = replace(
    ZAMBA,
    model_type="zamba2",
    architectures=("Zamba2ForCausalLM",),
    special="Mamba 2; shared blocks of attention, with adapters for each layer, see the embeddings too.",
    tiny=(
        Tiny(config={**_TINY, "use_mem_rope": True}),
        Tiny(config=_TINY, name="without_rope"),
    ),
)
