# SPDX-License-Identifier: Apache-2.0
"""Hunyuan A13B, `transformers.models.hunyuan_v1_moe`: Hunyuan dense with experts and a shared MLP in every layer."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, experts

from .hunyuan_v1_dense import RECIPE as HUNYUAN

RECIPE = replace(
    HUNYUAN,
    model_type="hunyuan_v1_moe",
    architectures=("HunYuanMoEV1ForCausalLM", "HunYuanMoEV1ForSequenceClassification"),
    special="Experts beside a shared MLP; norms on queries and keys after RoPE, whose base a fixed alpha stretches.",
    transforms=(*HUNYUAN.transforms, experts()),
    tiny=(Tiny(config={**HUNYUAN.tiny[0].config, "num_experts": 5, "moe_topk": [2] * 4}),),
)
