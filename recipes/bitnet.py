# SPDX-License-Identifier: Apache-2.0
"""BitNet b1.58 with weights in floating point, `transformers.models.bitnet`.

Unusual: a norm before the last matrix of attention and of the MLP; the gate is a squared ReLU. Checkpoints whose config
requests ternary weights are refused: rounding belongs to their arithmetic.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, rms_norm

from .llama import RECIPE as LLAMA

# BitNet's head_dim is always hidden / heads.
_TINY = {key: value for key, value in LLAMA.tiny[0].config.items() if key != "head_dim"}

RECIPE = replace(
    LLAMA,
    model_type="bitnet",
    architectures=("BitNetForCausalLM",),
    special="Llama with norms inside attention and MLP, and a squared ReLU; ternary weights are not supported.",
    transforms=(rms_norm(lambda config: 4 * config.num_hidden_layers + 1),),
    tiny=(Tiny(config={**_TINY, "rms_norm_eps": 1e-2}),),
)
