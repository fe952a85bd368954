# SPDX-License-Identifier: Apache-2.0
"""The text model of North Micro Vision, `transformers.models.cohere_compass`.

Unusual: attention and MLP in parallel on one norm without a bias; full layers may have no positions; scaled
logits. Its RoPE has three axes, along which a text token has the same position.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, window_cache

from .llama import RECIPE as LLAMA

_SLIDING = {"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0, "mrope_section": [2, 2, 1]}
_ROPE = {"rope_parameters": {"sliding_attention": _SLIDING, "full_attention": None}}
_LAYER_TYPES = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 7}
# head_dim is hidden // heads, always.
_OTHER_FIELDS = {
    "num_attention_heads": 6,
    "head_dim": 10,
    "logit_scale": 0.3,
    "layer_norm_eps": 1e-2,
}

RECIPE = replace(
    LLAMA,
    model_type="cohere_compass_text",
    architectures=("CohereCompassForCausalLM", "CohereCompassTextForSequenceClassification"),
    special="Parallel attention and MLP; sliding layers with RoPE, full ones without; scaled logits; tied head.",
    transforms=(window_cache(),),
    tiny=(Tiny(config={**LLAMA.tiny[0].config, **_ROPE, **_LAYER_TYPES, **_OTHER_FIELDS}),),
)
