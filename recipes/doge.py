# SPDX-License-Identifier: Apache-2.0
"""Doge without experts, `transformers.models.doge`.

Unusual: scores computed from the values are added to the attention scores, and can drop keys; residuals are weighted.
"""

from dataclasses import replace

from qeff_zoo.recipe import Shape, Tiny, Transform, rms_norm

from .llama import RECIPE as LLAMA

_TINY = {k: v for k, v in LLAMA.tiny[0].config.items() if k != "head_dim"}
_TINY |= {"hidden_size": 96, "keep_window_size": 6, "rms_norm_eps": 1e-2}
_ALL_KEYS = {"keep_window_size": 128, "sliding_window": 7, "mlp_bias": True, "attention_bias": True}

RECIPE = replace(
    LLAMA,
    model_type="doge",
    architectures=("DogeForCausalLM", "DogeForSequenceClassification"),
    special="Values add to the scores of their keys, and may drop keys; weighted residuals.",
    transforms=(
        rms_norm(lambda config: 4 * config.num_hidden_layers + 1),
        Transform(name="dynamic_mask", count=lambda config: config.num_hidden_layers),
    ),
    shapes={
        "latency": Shape(prefill_seq_len=128, ctx_len=2048),
        "throughput": Shape(prefill_seq_len=128, ctx_len=2048, full_batch_size=16),
    },
    fixed_kv_heads="a matrix (`dt_proj`) reads its values",
    tiny=(Tiny(config=_TINY), Tiny(config=_TINY | _ALL_KEYS, name="whole")),
)
