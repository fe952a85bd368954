# SPDX-License-Identifier: Apache-2.0
"""Fuyu 8B, `transformers.models.fuyu`: Persimmon and a matrix that projects patches, without a vision encoder."""

from dataclasses import replace

from qeff_zoo.multimodal.families.fuyu import Fuyu
from qeff_zoo.recipe import Tiny

from .persimmon import RECIPE as PERSIMMON

RECIPE = replace(
    PERSIMMON,
    model_type="fuyu",
    architectures=("FuyuForCausalLM",),
    special="Patches of an image of any size become rows by a matrix; each line of them ends with a token.",
    task="image-text-to-text",
    images=Fuyu(),
    tiny=(
        Tiny(
            config={
                "text_config": {**PERSIMMON.tiny[0].config, "model_type": "persimmon"},
                "patch_size": 8,
                "image_token_id": 200,
            },
            image_processor={
                "image_processor_type": "FuyuImageProcessor",
                "size": {"height": 24, "width": 40},
                "patch_size": {"height": 8, "width": 8},
            },
        ),
    ),
)
