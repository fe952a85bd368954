# SPDX-License-Identifier: Apache-2.0
"""Mamba 2 and Codestral Mamba, `transformers.models.mamba2`: a state-space model, no attention at all."""

from qeff_zoo.recipe import DECODER_SHAPES, Recipe, Tiny, recurrence, rms_norm

RECIPE = Recipe(
    model_type="mamba2",
    architectures=("Mamba2ForCausalLM",),
    task="text-generation",
    special="No attention: a short convolution and a state-space recurrence per layer, so its states do not grow.",
    transforms=(
        rms_norm(lambda config: config.num_hidden_layers + 1),
        recurrence(lambda config: config.num_hidden_layers),
    ),
    shapes=DECODER_SHAPES,
    tiny=(
        Tiny(
            config={
                "vocab_size": 257,
                "hidden_size": 64,
                "expand": 2,
                "num_hidden_layers": 4,
                "num_heads": 8,
                "head_dim": 16,
                "n_groups": 2,
                "state_size": 12,
                "conv_kernel": 3,
                "layer_norm_epsilon": 1e-2,
                "initializer_range": 0.2,
            }
        ),
    ),
)
