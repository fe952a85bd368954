# SPDX-License-Identifier: Apache-2.0
"""OpenAI's privacy filter, `transformers.models.openai_privacy_filter`: finds personal data, token by token.

Unusual: GPT-OSS as an encoder: attention sinks, a two-sided window in every layer, experts with a clamped gate.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, experts, rms_norm

from .bert import RECIPE as BERT

_YARN = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 8.0, "truncate": False}
_ROPE = {**_YARN, "rope_theta": 1000.0, "original_max_position_embeddings": 32}
_HEADS = {"num_key_value_heads": 2, "head_dim": 24, "sliding_window": 7, "rms_norm_eps": 1e-2}
_MOE = {"num_local_experts": 5, "num_experts_per_tok": 2, "swiglu_limit": 1.5, "pad_token_id": 2}

RECIPE = replace(
    BERT,
    model_type="openai_privacy_filter",
    architectures=("OpenAIPrivacyFilterModel", "OpenAIPrivacyFilterForTokenClassification"),
    special="GPT-OSS, bidirectional: attention sinks, a window in every layer, biased experts with a clamped gate.",
    transforms=(
        rms_norm(lambda config: 2 * config.num_hidden_layers + 1),
        experts(lambda config: config.num_hidden_layers),
    ),
    tiny=(Tiny(config={**BERT.tiny[0].config, **_HEADS, **_MOE, "rope_parameters": _ROPE}),),
)
