# SPDX-License-Identifier: Apache-2.0
"""Cosmos 3 Edge, `transformers.models.cosmos3_edge`: SigLIP 2 over patches of any image, and a plain Llama."""

from dataclasses import replace

from qeff_zoo.multimodal.patch_grid import PatchGrid
from qeff_zoo.recipe import Tiny

from ._tiny_parts import QWEN_TOKENS, SIGLIP2_VISION
from .qwen2_5_vl import RECIPE as QWEN2_5_VL

_VISION_CONFIG = {
    **SIGLIP2_VISION,
    "model_type": "cosmos3_edge_vision",
    "num_patches": 16,
    "patch_size": 4,
}

RECIPE = replace(
    QWEN2_5_VL,
    model_type="cosmos3_edge",
    architectures=("Cosmos3EdgeForConditionalGeneration",),
    special="Patches of images of any size; learned positions, interpolated with antialiasing; three axes of RoPE.",
    images=PatchGrid(axes=3, types="mm_token_type_ids", taps="antialiased"),
    tiny=(
        Tiny(
            config={
                **QWEN_TOKENS,
                "text_config": {
                    **QWEN2_5_VL.tiny[0].config["text_config"],
                    "model_type": "cosmos3_edge_text",
                    "head_dim": 16,
                },
                "vision_config": _VISION_CONFIG,
                "projector_hidden_size": 96,
            }
        ),
    ),
)
