# SPDX-License-Identifier: Apache-2.0
"""Hunyuan 4 (HY V4), `transformers.models.hy_v4`.

Unusual: as GLM 5, some layers select keys by an indexer and others reuse that selection; sinks and gated attention;
layers read from and write to several streams of hidden states; experts clamp what they gate.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, experts, rms_norm

from .glm_moe_dsa import RECIPE as GLM_MOE_DSA

_MLP_TYPES = {"mlp_layer_types": ["dense"] * 4 + ["sparse"] * 4, "pad_token_id": 0}
_STREAMS = {"hc_mult": 3, "hc_magnitude": 1.3, "hc_eps": 0.1, "swiglu_limit": 0.5}

RECIPE = replace(
    GLM_MOE_DSA,
    model_type="hy_v4",
    architectures=("HYV4ForCausalLM",),
    special="Latent attention (MLA) with sinks to keys that an indexer selects; streams of hidden states; experts.",
    transforms=(
        rms_norm(lambda config: 4 * config.num_hidden_layers + 1, suffix="HYV4RMSNorm"),
        experts(),
        *GLM_MOE_DSA.transforms[2:],
    ),
    tiny=(Tiny(config={**GLM_MOE_DSA.tiny[0].config, **_MLP_TYPES, **_STREAMS}),),
)
