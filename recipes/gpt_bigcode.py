# SPDX-License-Identifier: Apache-2.0
"""StarCoder and SantaCoder, `transformers.models.gpt_bigcode`: GPT-2 whose query heads share one key and value."""

from dataclasses import replace

from qeff_zoo.recipe import DECODER_SHAPES, Tiny

from .gpt2 import RECIPE as GPT2

RECIPE = replace(
    GPT2,
    model_type="gpt_bigcode",
    architectures=("GPTBigCodeForCausalLM", "GPTBigCodeForSequenceClassification"),
    special="Learned positions; one fused query-key-value projection with a single key and value head.",
    shapes=DECODER_SHAPES,
    fixed_kv_heads="its queries, keys and values are made by one matrix",
    tiny=(Tiny(config={**GPT2.tiny[0].config, "layer_norm_epsilon": 1e-2}),),
)
