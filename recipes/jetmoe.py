# SPDX-License-Identifier: Apache-2.0
"""JetMoe 8B, `transformers.models.jetmoe`.

Unusual: attention has experts as well as the MLP. Each chosen expert makes a set of query heads over the same keys and
values, and has an output projection of its own. The softmax is over the chosen scores.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, Transform

from .llama import RECIPE as LLAMA

# Heads are KV heads times chosen experts.
_REMOVED_FIELDS = ("head_dim", "num_attention_heads")
_TINY = {key: value for key, value in LLAMA.tiny[0].config.items() if key not in _REMOVED_FIELDS}

RECIPE = replace(
    LLAMA,
    model_type="jetmoe",
    architectures=("JetMoeForCausalLM", "JetMoeForSequenceClassification"),
    special="Experts in attention and MLP: those chosen make their own queries over shared keys and values.",
    transforms=(
        *LLAMA.transforms,
        Transform(
            name="jetmoe_experts", version=2, count=lambda config: 2 * config.num_hidden_layers
        ),
    ),
    fixed_kv_heads="it has as many as its experts have query heads each",
    tiny=(
        Tiny(config={**_TINY, "kv_channels": 24, "num_local_experts": 5, "num_experts_per_tok": 2}),
    ),
)
