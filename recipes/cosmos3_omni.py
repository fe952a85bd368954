# SPDX-License-Identifier: Apache-2.0
"""Cosmos 3 Omni, `transformers.models.cosmos3_omni`: Qwen3-VL, whose other halves are left out."""

from dataclasses import replace

from .qwen3_vl import RECIPE as QWEN3_VL

RECIPE = replace(
    QWEN3_VL,
    model_type="cosmos3_omni",
    architectures=("Cosmos3OmniForConditionalGeneration",),
    special="Qwen3-VL's images and text.",
    embeds=False,
)
