# SPDX-License-Identifier: Apache-2.0
"""GLM 5, `transformers.models.glm_moe_dsa`.

Unusual: as DeepSeek V3.2, but the indexer's RoPE rotates interleaved pairs, and some layers have no indexer: they
attend to the keys that the layer before them selected.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .deepseek_v32 import RECIPE as DEEPSEEK_V32

_SHARED_INDEXERS = {
    "num_hidden_layers": 8,
    "indexer_types": ["full", "full", "shared", "shared"] * 2,
}
_TINY = {**DEEPSEEK_V32.tiny[0].config, "index_topk": 4}

RECIPE = replace(
    DEEPSEEK_V32,
    model_type="glm_moe_dsa",
    architectures=("GlmMoeDsaForCausalLM",),
    tiny=(
        Tiny(config=_TINY | _SHARED_INDEXERS | {"first_k_dense_replace": 4}),
        Tiny(config=_TINY | {"attention_bias": True}, name="every_layer"),
    ),
)
