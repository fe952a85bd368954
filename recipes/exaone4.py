# SPDX-License-Identifier: Apache-2.0
"""EXAONE 4.0, `transformers.models.exaone4`.

Unusual: norms come after attention and MLP, none before; where there is a window, only the layers that use it have
RoPE. The 1.2B checkpoint has neither window nor layers without positions.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, rms_norm, window_cache

from .llama import RECIPE as LLAMA

_TINY = {**LLAMA.tiny[0].config, "rms_norm_eps": 1e-2}
_HYBRID = {"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"] * 2}
_FULL = {"sliding_window": None, "layer_types": ["full_attention"] * 4}

RECIPE = replace(
    LLAMA,
    model_type="exaone4",
    architectures=("Exaone4ForCausalLM", "Exaone4ForSequenceClassification"),
    special="Norms after each block and on queries and keys; sliding layers with RoPE, full ones without positions.",
    transforms=(
        rms_norm(lambda config: 4 * config.num_hidden_layers + 1),
        window_cache(),
    ),
    tiny=(Tiny(config=_TINY | _HYBRID), Tiny(config=_TINY | _FULL, name="full")),
)
