# SPDX-License-Identifier: Apache-2.0
"""Falcon-H1, `transformers.models.falcon_h1`: attention and Mamba 2 side by side in every layer."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, recurrence

from .llama import RECIPE as LLAMA

_TINY = (
    dict(LLAMA.tiny[0].config)
    | {"mamba_d_ssm": 96, "mamba_n_heads": 6, "mamba_d_head": 16, "mamba_n_groups": 2}
    | {"mamba_d_state": 12, "mamba_d_conv": 3, "mamba_norm_before_gate": False}
    | {"embedding_multiplier": 3.0, "lm_head_multiplier": 0.4, "mlp_multipliers": [0.7, 1.4]}
    | {"attention_in_multiplier": 0.8, "attention_out_multiplier": 1.3, "key_multiplier": 0.6}
    | {"ssm_in_multiplier": 1.2, "ssm_out_multiplier": 0.7, "rms_norm_eps": 1e-2}
    | {"ssm_multipliers": [0.8, 1.2, 0.7, 1.4, 0.6]}
)

RECIPE = replace(
    LLAMA,
    model_type="falcon_h1",
    architectures=("FalconH1ForCausalLM",),
    special="Every layer adds attention and Mamba 2 of the same input; thirteen multipliers from its training.",
    transforms=(*LLAMA.transforms, recurrence(lambda config: config.num_hidden_layers)),
    tiny=(
        Tiny(config={**_TINY, "mamba_rms_norm": True}),
        Tiny(config={**_TINY, "mamba_rms_norm": False}, name="without_norm"),
    ),
)
