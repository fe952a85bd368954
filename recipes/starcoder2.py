# SPDX-License-Identifier: Apache-2.0
"""StarCoder2 3B, 7B and 15B, `transformers.models.starcoder2`.

Unusual: layer norms and a plain GELU MLP in place of RMS norms and gates, and biases in every projection.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .mistral import RECIPE as MISTRAL

# StarCoder2's head_dim is always hidden / heads.
_TINY = {key: value for key, value in MISTRAL.tiny[0].config.items() if key != "head_dim"} | {
    "norm_epsilon": 1e-2
}

RECIPE = replace(
    MISTRAL,
    model_type="starcoder2",
    architectures=("Starcoder2ForCausalLM", "Starcoder2ForSequenceClassification"),
    special="Layer norms, MLPs without a gate, biased projections; a sliding window over all layers.",
    transforms=(),
    variants={},
    tiny=(
        Tiny(config=_TINY),
        Tiny(config=_TINY | {"sliding_window": None, "tie_word_embeddings": False}, name="full"),
    ),
)
