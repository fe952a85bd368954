# SPDX-License-Identifier: Apache-2.0
"""ViP-LLaVA, `transformers.models.vipllava`: LLaVA that joins the features of several vision layers."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .llava import RECIPE as LLAVA

RECIPE = replace(
    LLAVA,
    model_type="vipllava",
    architectures=("VipLlavaForConditionalGeneration",),
    special="LLaVA that joins the features of several vision layers, with a norm before its matrices.",
    tiny=(Tiny(config={**LLAVA.tiny[0].config, "vision_feature_layers": [-2, -1]}),),
)
