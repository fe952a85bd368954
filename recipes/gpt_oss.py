# SPDX-License-Identifier: Apache-2.0
"""gpt-oss 20B and 120B, in MXFP4 or in floating point, `transformers.models.gpt_oss`.

Unusual: a learned sink in every head's softmax, sliding and full layers in turn, biases everywhere, experts stored
input-major with gate and up interleaved, both clamped, and a gate of its own.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, window_cache

from .mixtral import RECIPE as MIXTRAL

_YARN = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 8.0, "truncate": False}

RECIPE = replace(
    MIXTRAL,
    model_type="gpt_oss",
    architectures=("GptOssForCausalLM", "GptOssForSequenceClassification"),
    special="Attention sinks; sliding and full layers in turn; biased experts with a clamped gate of their own.",
    transforms=(*MIXTRAL.transforms, window_cache()),
    tiny=(
        Tiny(
            config={
                **MIXTRAL.tiny[0].config,
                "rms_norm_eps": 1e-2,
                "swiglu_limit": 1.5,
                "rope_parameters": {
                    **_YARN,
                    "rope_theta": 1000.0,
                    "original_max_position_embeddings": 32,
                },
            },
        ),
    ),
)
