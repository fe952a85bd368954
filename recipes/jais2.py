# SPDX-License-Identifier: Apache-2.0
"""Jais 2 8B and 70B, `transformers.models.jais2`: Llama with layer norms, biases, and a squared ReLU without a gate."""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .llama import RECIPE as LLAMA

RECIPE = replace(
    LLAMA,
    model_type="jais2",
    architectures=("Jais2ForCausalLM",),
    special="Layer norms; biases throughout; MLPs with a squared ReLU and no gate.",
    transforms=(),
    tiny=(Tiny(config={**LLAMA.tiny[0].config, "layer_norm_eps": 1e-2}),),
)
