# SPDX-License-Identifier: Apache-2.0
"""nanochat d20 to d34, `transformers.models.nanochat`.

Unusual: RMS norms without weights, also after the embeddings, and on queries and keys after RoPE, which rotates in the
opposite direction; squared ReLU without a gate; a soft-cap on logits.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, rms_norm

from .olmo2 import RECIPE as OLMO2

RECIPE = replace(
    OLMO2,
    model_type="nanochat",
    architectures=("NanoChatForCausalLM",),
    special="RMS norms without weights; queries and keys normalized after RoPE; squared ReLU; soft-capped logits.",
    transforms=(rms_norm(lambda config: 4 * config.num_hidden_layers + 1),),
    tiny=(Tiny(config={**OLMO2.tiny[0].config, "final_logit_softcapping": 5.0}),),
)
