# SPDX-License-Identifier: Apache-2.0
"""A.X K1 of SK Telecom, `transformers.models.axk1`: DeepSeek V3 with a norm after each block of experts."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, rms_norm, sparse_layers

from .glm4_moe_lite import RECIPE as GLM4_MOE_LITE

RECIPE = replace(
    GLM4_MOE_LITE,
    model_type="axk1",
    architectures=("AXK1ForCausalLM", "AXK1ForSequenceClassification"),
    special="Latent attention (MLA), whose cache holds latents; a norm after each block of experts.",
    transforms=(
        rms_norm(lambda config: 4 * config.num_hidden_layers + sparse_layers(config) + 1),
        GLM4_MOE_LITE.transforms[1],
    ),
    tiny=(Tiny(config=GLM4_MOE_LITE.tiny[0].config),),
)
