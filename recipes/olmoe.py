# SPDX-License-Identifier: Apache-2.0
"""OLMoE 1B-7B, `transformers.models.olmoe`.

Unusual: experts for every MLP, their weights not renormalized; queries and keys are normalized over all heads
together and may be clipped. Unlike in OLMo 2, norms come before attention and MLP.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, experts

from .olmo2 import RECIPE as OLMO2

RECIPE = replace(
    OLMO2,
    model_type="olmoe",
    architectures=("OlmoeForCausalLM",),
    special="Experts weighted by a softmax over all; one RMS norm over all query heads, one over all keys.",
    transforms=(*OLMO2.transforms, experts()),
    tiny=(
        Tiny(
            config={
                **OLMO2.tiny[0].config,
                "num_experts": 5,
                "num_experts_per_tok": 2,
                "clip_qkv": 0.7,
            }
        ),
    ),
)
