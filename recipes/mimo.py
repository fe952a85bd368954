# SPDX-License-Identifier: Apache-2.0
"""MiMo 7B of Xiaomi, `qeff_zoo.export.architectures.mimo`: Qwen2, with a layer that drafts beside it."""

from dataclasses import replace

from .qwen2 import RECIPE as QWEN2

RECIPE = replace(
    QWEN2,
    model_type="mimo",
    architectures=("MiMoForCausalLM",),
    special="Plain Qwen2 under a name of its own; checkpoints have an MTP layer beside it.",
)
