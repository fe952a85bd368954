# SPDX-License-Identifier: Apache-2.0
"""Nemotron-4 and Minitron, `transformers.models.nemotron`.

Unusual: layer norms that store weight - 1, MLPs without a gate and with a squared ReLU, RoPE over half of each head.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .llama import RECIPE as LLAMA
from .phi import RECIPE as PHI

RECIPE = replace(
    LLAMA,
    model_type="nemotron",
    architectures=("NemotronForCausalLM", "NemotronForSequenceClassification"),
    special="Layer norms that store weight - 1; squared ReLU without a gate; partial RoPE.",
    transforms=(),
    tiny=(
        Tiny(
            config={
                **LLAMA.tiny[0].config,
                "norm_eps": 1e-2,
                "rope_parameters": PHI.tiny[0].config["rope_parameters"],
            }
        ),
    ),
)
