# SPDX-License-Identifier: Apache-2.0
"""Gemma 3n text models, `transformers.models.gemma3n`.

Unusual: several streams of hidden states, of which one is computed and corrects the others; the last layers read
the keys and values of an earlier layer of their kind; embeddings for every layer; sparsely activated MLPs.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, Transform, rms_norm, window_cache

from .gemma3_text import RECIPE as GEMMA3_TEXT

_LAYERS = {"num_hidden_layers": 6, "num_kv_shared_layers": 2, "intermediate_size": [96, 112] * 3}
_LAYER_TYPES = {"layer_types": ["sliding_attention", "full_attention"] * 3}
_STREAMS = {"altup_num_inputs": 3, "altup_active_idx": 1, "laurel_rank": 12}
_EMBEDDINGS = {"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 250}
_OTHER_FIELDS = {"final_logit_softcapping": 5.0, "rms_norm_eps": 1e-2}
_SPARSITY = {"activation_sparsity_pattern": [0.7] * 3 + [0.0] * 3}
_REMOVED_FIELDS = ("query_pre_attn_scalar", "attn_logit_softcapping")
_TINY = {k: v for k, v in GEMMA3_TEXT.tiny[0].config.items() if k not in _REMOVED_FIELDS}
_TINY |= _LAYERS | _LAYER_TYPES | _STREAMS | _EMBEDDINGS | _OTHER_FIELDS | _SPARSITY

RECIPE = replace(
    GEMMA3_TEXT,
    model_type="gemma3n_text",
    architectures=("Gemma3nForCausalLM",),
    special="Several streams of hidden states (AltUp); layers that share keys and values; embeddings for every layer.",
    transforms=(
        rms_norm(
            lambda config: 10 * config.num_hidden_layers - 2 * config.num_kv_shared_layers + 2
        ),
        window_cache(),
        Transform(
            name="gaussian_topk",
            count=lambda config: sum(share > 0 for share in config.activation_sparsity_pattern),
        ),
    ),
    tiny=(Tiny(config=_TINY),),
)
