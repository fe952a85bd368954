# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-VL 7 B, `transformers.models.deepseek_vl_hybrid`: SigLIP and SAM read an image in two sizes, and Llama."""

from dataclasses import replace

from qeff_zoo.multimodal.families.deepseek_vl_hybrid import DeepSeekVlHybrid
from qeff_zoo.recipe import Tiny

from ._tiny_parts import SAM_VISION
from .deepseek_vl import RECIPE as DEEPSEEK_VL

RECIPE = replace(
    DEEPSEEK_VL,
    model_type="deepseek_vl_hybrid",
    architectures=("DeepseekVLHybridForConditionalGeneration",),
    special="Two vision encoders read an image in two sizes; a row has features of both, the finer ones of two layers.",
    images=DeepSeekVlHybrid(),
    tiny=(Tiny(config={**DEEPSEEK_VL.tiny[0].config, "high_res_vision_config": SAM_VISION}),),
)
