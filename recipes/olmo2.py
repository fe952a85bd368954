# SPDX-License-Identifier: Apache-2.0
"""OLMo 2 1B to 32B, `transformers.models.olmo2`.

Unusual: the RMS norms come after attention and MLP, none before them; queries and keys are normalized over all heads
together, before RoPE.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, rms_norm

from .llama import RECIPE as LLAMA

# OLMo 2's head_dim is always hidden / heads.
_TINY = {key: value for key, value in LLAMA.tiny[0].config.items() if key != "head_dim"}

RECIPE = replace(
    LLAMA,
    model_type="olmo2",
    architectures=("Olmo2ForCausalLM", "Olmo2ForSequenceClassification"),
    special="Norms after attention and MLP instead of before; one RMS norm over all query heads, one over all keys.",
    transforms=(rms_norm(lambda config: 4 * config.num_hidden_layers + 1),),
    tiny=(Tiny(config={**_TINY, "rms_norm_eps": 1e-2, "pad_token_id": 0}),),
)
