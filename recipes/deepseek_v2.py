# SPDX-License-Identifier: Apache-2.0
"""DeepSeek V2 with Lite and Coder, `transformers.models.deepseek_v2`.

Unusual: latent attention, whose cache holds latents; the first layers are dense; experts are chosen by softmax scores,
which are not renormalized, in V2 within the best groups and in Lite among all; shared experts beside them.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, Transform

from .deepseek_v3 import RECIPE as DEEPSEEK_V3

_TINY = {**DEEPSEEK_V3.tiny[0].config, "topk_method": "group_limited_greedy"}
_LITE = {"topk_method": "greedy", "n_group": None, "topk_group": None, "q_lora_rank": None}
_REAL_ROPE = Transform(
    name="real_rope",
    count=lambda config: config.num_hidden_layers + 1,
    parameters={"rotary": "DeepseekV2RotaryEmbedding", "attention": "DeepseekV2Attention"},
)

RECIPE = replace(
    DEEPSEEK_V3,
    model_type="deepseek_v2",
    architectures=("DeepseekV2ForCausalLM", "DeepseekV2ForSequenceClassification"),
    special="Latent attention (MLA), whose cache holds latents; dense layers, then experts, in groups except in Lite.",
    transforms=(*DEEPSEEK_V3.transforms, _REAL_ROPE),
    tiny=(Tiny(config=_TINY), Tiny(config=_TINY | _LITE, name="lite")),
)
