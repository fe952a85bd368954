# SPDX-License-Identifier: Apache-2.0
"""DiffLlama, `transformers.models.diffllama`.

Unusual: two attentions over halves of the heads are subtracted, with a learned factor that starts from the depth;
the difference is normalized without a weight.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, rms_norm

from .llama import RECIPE as LLAMA

RECIPE = replace(
    LLAMA,
    model_type="diffllama",
    architectures=("DiffLlamaForCausalLM", "DiffLlamaForSequenceClassification"),
    special="Llama whose attention is the normalized difference of two attentions, with a learned factor.",
    transforms=(rms_norm(lambda config: 3 * config.num_hidden_layers + 1),),
    tiny=(Tiny(config={**LLAMA.tiny[0].config, "rms_norm_eps": 1e-2, "lambda_std_dev": 0.3}),),
)
