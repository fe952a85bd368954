# SPDX-License-Identifier: Apache-2.0
"""GLM-4-0414 and GLM-Z1, `transformers.models.glm4`: GLM with two more norms, on what a block adds."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, rms_norm

from .glm import RECIPE as GLM

RECIPE = replace(
    GLM,
    model_type="glm4",
    architectures=("Glm4ForCausalLM", "Glm4ForSequenceClassification"),
    special="GLM with norms before and after attention and MLP; RoPE on interleaved pairs of half of each head.",
    transforms=(rms_norm(lambda config: 4 * config.num_hidden_layers + 1),),
    tiny=(
        Tiny(config=GLM.tiny[0].config),
        # The 32B checkpoints have no biases.
        Tiny(config={**GLM.tiny[0].config, "attention_bias": False}, name="unbiased"),
    ),
)
