# SPDX-License-Identifier: Apache-2.0
"""Mamba 130M to 2.8B, `transformers.models.mamba`: a selective state-space model, no attention at all."""

from qeff_zoo.recipe import DECODER_SHAPES, Recipe, Tiny, recurrence, rms_norm

RECIPE = Recipe(
    model_type="mamba",
    architectures=("MambaForCausalLM",),
    task="text-generation",
    special="No attention: a short convolution and a selective scan per layer, so its states do not grow.",
    transforms=(
        rms_norm(lambda config: config.num_hidden_layers + 1),
        recurrence(lambda config: config.num_hidden_layers),
    ),
    shapes=DECODER_SHAPES,
    retains_context=False,
    tiny=(
        Tiny(
            config={
                "vocab_size": 257,
                "hidden_size": 64,
                "expand": 2,
                "num_hidden_layers": 4,
                "state_size": 12,
                "conv_kernel": 3,
                "time_step_rank": 8,
                "layer_norm_epsilon": 1e-2,
                "initializer_range": 0.2,
            }
        ),
    ),
)
