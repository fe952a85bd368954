# SPDX-License-Identifier: Apache-2.0
"""HyperCLOVA X SEED, `transformers.models.hyperclovax`.

Unusual: Granite's multipliers on embeddings, scores and residuals and its divisor of logits, and a second norm after
attention and MLP.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, rms_norm

from .llama import RECIPE as LLAMA

_TINY = {
    **LLAMA.tiny[0].config,
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.5,
    "residual_multiplier": 0.4,
    "logits_scaling": 2.5,
}

RECIPE = replace(
    LLAMA,
    model_type="hyperclovax",
    architectures=("HyperCLOVAXForCausalLM",),
    special="Multipliers on embeddings, scores and residuals, a divisor of logits; optional norms after each block.",
    transforms=(
        rms_norm(lambda config: (4 if config.use_post_norm else 2) * config.num_hidden_layers + 1),
    ),
    tiny=(Tiny(config=_TINY), Tiny(config={**_TINY, "use_post_norm": False}, name="pre_norm")),
)
