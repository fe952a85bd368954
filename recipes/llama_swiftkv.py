# SPDX-License-Identifier: Apache-2.0
"""Llama with SwiftKV, as Snowflake/Llama-3.1-SwiftKV-8B-Instruct; `qeff_zoo.export.architectures.llama_swiftkv`.

Unusual: keys and values of the later layers are computed from the input of the first of them, so that prompt tokens
need not pass these layers. Checkpoints also store the projections that those layers had before; they are not read.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, Transform, rms_norm

from .llama import RECIPE as LLAMA

_TINY = {**LLAMA.tiny[0].config, "num_hidden_layers": 7, "num_key_value_layers": 3}

RECIPE = replace(
    LLAMA,
    model_type="llama_swiftkv",
    architectures=("LlamaSwiftKVForCausalLM",),
    special="SwiftKV: prompt tokens skip the later layers, whose keys and values come from one hidden state.",
    transforms=(
        rms_norm(lambda config: 2 * config.num_hidden_layers + 2),
        Transform(name="swiftkv", count=lambda config: 1),
    ),
    tiny=(Tiny(config=_TINY), Tiny(name="groups", config={**_TINY, "key_value_group_size": 2})),
)
