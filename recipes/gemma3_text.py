# SPDX-License-Identifier: Apache-2.0
"""Gemma 3 text models, `transformers.models.gemma3`: five sliding layers to a full one, each with its RoPE base."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, rms_norm, window_cache

from .gemma2 import RECIPE as GEMMA2

RECIPE = replace(
    GEMMA2,
    model_type="gemma3_text",
    architectures=("Gemma3ForCausalLM", "Gemma3TextForSequenceClassification", "Gemma3TextModel"),
    special="Sliding layers with a local RoPE base, a full layer in between with a scaled one; norms on query and key.",
    transforms=(
        rms_norm(lambda config: 6 * config.num_hidden_layers + 1, offset=1.0),
        window_cache(),
    ),
    # Hidden states exceed float16: QEfficient's examples keep residual additions and norms of every layer in float32.
    compile_flags={"qaic": {"node_precision_info": ("Add", "CustomRMSNorm")}},
    tiny=(
        Tiny(
            config={
                **GEMMA2.tiny[0].config,
                "attn_logit_softcapping": None,
                "final_logit_softcapping": None,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
                "rope_parameters": {
                    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                    "full_attention": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
                },
            }
        ),
    ),
)
