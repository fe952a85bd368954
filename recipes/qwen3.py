# SPDX-License-Identifier: Apache-2.0
"""Qwen3 dense models, `transformers.models.qwen3`: queries and keys are normalized per head before RoPE.

Qwen3-Embedding and rerankers with a classification head among them, which are run without a cache.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, rms_norm

from .llama import RECIPE as LLAMA

RECIPE = replace(
    LLAMA,
    model_type="qwen3",
    architectures=("Qwen3ForCausalLM", "Qwen3Model", "Qwen3ForSequenceClassification"),
    special="An RMS norm per head on queries and keys; head_dim is independent of the hidden size.",
    transforms=(rms_norm(lambda config: 4 * config.num_hidden_layers + 1),),
    tiny=(
        Tiny(
            config={
                **LLAMA.tiny[0].config,
                "use_sliding_window": True,
                "sliding_window": 7,
                "max_window_layers": 2,
            }
        ),
    ),
)
