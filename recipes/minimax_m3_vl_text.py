# SPDX-License-Identifier: Apache-2.0
"""MiniMax M3, text alone, `transformers.models.minimax_m3_vl`.

Unusual: block-sparse attention. In some layers an indexer scores blocks of keys and attention reads the best ones
and the nearest, each group of heads its own. Norms store weight - 1; gates are GPT-OSS's, clamped.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, Transform, experts, layers_of, rms_norm

from .minimax_m2 import RECIPE as MINIMAX_M2

_LAYER_TYPES = {"layer_types": ["full_attention", "minimax_m3_sparse"] * 2}
_MLP_TYPES = {"mlp_layer_types": ["dense"] * 2 + ["sparse"] * 2}
_INDEXER = {"index_n_heads": 2, "index_head_dim": 16, "index_block_size": 3, "index_topk_blocks": 3}
_SIZES = {"dense_intermediate_size": 80, "shared_intermediate_size": 40, "rotary_dim": 12}
_GATES = {"swiglu_limit": 1.5, "routed_scaling_factor": 1.7}


_indexers = layers_of("minimax_m3_sparse")

RECIPE = replace(
    MINIMAX_M2,
    model_type="minimax_m3_vl_text",
    architectures=("MiniMaxM3VLForCausalLM",),
    special="Attention to blocks of keys that an indexer selects; dense layers, then experts by biased sigmoid scores.",
    transforms=(
        rms_norm(
            lambda config: 4 * config.num_hidden_layers + 2 * _indexers(config) + 1, offset=1.0
        ),
        experts(),
        Transform(name="block_attention", count=_indexers),
    ),
    tiny=(
        Tiny(
            config={**MINIMAX_M2.tiny[0].config}
            | _LAYER_TYPES
            | _MLP_TYPES
            | _INDEXER
            | _SIZES
            | _GATES
        ),
    ),
)
