# SPDX-License-Identifier: Apache-2.0
"""LongCat-Flash, `transformers.models.longcat_flash`.

Unusual: each layer has two latent attentions and two MLPs, and experts that take a shortcut around the second half;
some experts return their input unchanged; the outputs of the low-rank projections are scaled.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, Transform, rms_norm

from .deepseek_v3 import RECIPE as DEEPSEEK_V3

_SIZE_FIELDS = ("vocab_size", "hidden_size", "num_attention_heads", "max_position_embeddings")
_LATENT_FIELDS = (
    "q_lora_rank",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "qk_nope_head_dim",
    "v_head_dim",
)
_OTHER_FIELDS = (
    "head_dim",
    "num_key_value_heads",
    "rope_parameters",
    "initializer_range",
    "rms_norm_eps",
)
_TINY = {
    key: DEEPSEEK_V3.tiny[0].config[key] for key in (*_SIZE_FIELDS, *_LATENT_FIELDS, *_OTHER_FIELDS)
}
_SIZES = {"num_layers": 4, "ffn_hidden_size": 96, "expert_ffn_hidden_size": 48}
_MOE = {"n_routed_experts": 4, "zero_expert_num": 3, "moe_topk": 3, "routed_scaling_factor": 1.7}

RECIPE = replace(
    DEEPSEEK_V3,
    model_type="longcat_flash",
    architectures=("LongcatFlashForCausalLM",),
    special="Two latent attentions (MLA) a layer; experts on a shortcut, some of which compute nothing.",
    transforms=(
        rms_norm(lambda config: 8 * config.num_layers + 1),
        Transform(name="longcat_experts", version=2, count=lambda config: config.num_layers),
    ),
    tiny=(Tiny(config=_TINY | _SIZES | _MOE),),
)
