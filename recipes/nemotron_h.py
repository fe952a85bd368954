# SPDX-License-Identifier: Apache-2.0
"""Nemotron-H and Nemotron 3, `transformers.models.nemotron_h`: a layer is Mamba 2, attention, an MLP or experts."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, experts, layers_of, recurrence, rms_norm

from .llama import RECIPE as LLAMA

_TINY = {key: value for key, value in LLAMA.tiny[0].config.items() if key != "rope_parameters"}
del _TINY["num_hidden_layers"]  # the length of layers_block_type

RECIPE = replace(
    LLAMA,
    model_type="nemotron_h",
    architectures=("NemotronHForCausalLM",),
    special="Each layer is one of Mamba 2, attention without positions, MLP or experts, after a norm; squared ReLU.",
    transforms=(
        rms_norm(lambda config: config.num_hidden_layers + 1),
        experts(layers_of("moe")),
        recurrence(layers_of("linear_attention")),
    ),
    tiny=(
        Tiny(
            config=_TINY
            | {"layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"] * 2}
            | {"mamba_num_heads": 8, "mamba_head_dim": 12, "n_groups": 2, "ssm_state_size": 12}
            | {"conv_kernel": 3, "n_routed_experts": 6, "n_group": 2, "topk_group": 1}
            | {"moe_intermediate_size": 48, "moe_shared_expert_intermediate_size": 40}
            | {"moe_latent_size": 32, "num_experts_per_tok": 2, "routed_scaling_factor": 1.7}
            # The config has a window that no code reads.
            | {"layer_norm_epsilon": 1e-2, "sliding_window": 7}
        ),
    ),
)
