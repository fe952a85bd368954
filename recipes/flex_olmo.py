# SPDX-License-Identifier: Apache-2.0
"""FlexOlmo, `transformers.models.flex_olmo`: OLMo 2 with a block of experts for every MLP.

Unusual: norms come after attention and experts; those on queries and keys are over all heads, not per head.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, experts, rms_norm

from .llama import RECIPE as LLAMA

# Its head_dim is always hidden / heads.
_TINY = {key: value for key, value in LLAMA.tiny[0].config.items() if key != "head_dim"} | {
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-2,
}


RECIPE = replace(
    LLAMA,
    model_type="flex_olmo",
    architectures=("FlexOlmoForCausalLM",),
    special="Norms after each block, and over all query heads and all key heads; every MLP is a block of experts.",
    transforms=(
        rms_norm(lambda config: 4 * config.num_hidden_layers + 1),
        experts(),
    ),
    tiny=(Tiny(config=_TINY), Tiny(config=_TINY | {"norm_topk_prob": True}, name="normalized")),
)
