# SPDX-License-Identifier: Apache-2.0
"""The text encoders of CLIP, `transformers.models.clip`.

Unusual: attention is causal, so the state of the last token, EOS, stands for the text.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .bert import RECIPE as BERT

_CLIP = {"eos_token_id": 2, "hidden_act": "quick_gelu", "initializer_factor": 3.0}

RECIPE = replace(
    BERT,
    model_type="clip_text_model",
    architectures=("CLIPTextModel",),
    special="Pre-norm encoder with causal attention; the projection into the space of images is not part of it.",
    tiny=(Tiny(config={**BERT.tiny[0].config, **_CLIP}),),
)
