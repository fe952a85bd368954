# SPDX-License-Identifier: Apache-2.0
"""DeepSeek V3.2, `transformers.models.deepseek_v32`.

Unusual: DeepSeek V3 with sparse attention. In each layer an indexer, with keys of its own in the cache, scores every
earlier token, attention reads the best `index_topk` of them. Its RoPE rotates halves, attention's interleaved pairs.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, Transform

from .deepseek_v3 import RECIPE as DEEPSEEK_V3

# With few heads, keys that no head likes are many: their scores are all 0, and which of them is chosen is open.
_INDEXER = {"index_topk": 5, "index_head_dim": 20, "index_n_heads": 14}
_TINY = {**DEEPSEEK_V3.tiny[0].config, **_INDEXER}

RECIPE = replace(
    DEEPSEEK_V3,
    model_type="deepseek_v32",
    architectures=("DeepseekV32ForCausalLM",),
    special="Latent attention (MLA) to keys that an indexer selects; dense layers, then experts with biased scores.",
    transforms=(
        *DEEPSEEK_V3.transforms,
        Transform(name="sparse_attention", count=lambda config: config.num_hidden_layers),
    ),
    tiny=(Tiny(config=_TINY),),
)
