# SPDX-License-Identifier: Apache-2.0
"""Granite for Docling, `transformers.models.granite_docling`: tiles that the prompt names, perhaps in finer rows."""

from dataclasses import replace

from qeff_zoo.multimodal.families.granite_docling import GraniteDocling
from qeff_zoo.recipe import Tiny

from ._tiny_parts import IDEFICS3_VISION
from .granite import RECIPE as GRANITE
from .idefics3 import RECIPE as IDEFICS3

_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_VISION_CONFIG = {
    **IDEFICS3_VISION,
    "deepstack_visual_indexes": [0, 2],
    "out_hidden_size": 64,
    "num_hidden_layers": 4,
}
_CONFIG = {
    "text_config": {**GRANITE.tiny[0].config, **_TOKENS, "model_type": "granite_docling_text"},
    "vision_config": {**_VISION_CONFIG, "scale_factor": 2, "use_fine_route": False},
    "image_token_id": 200,
    "pad_token_id": 0,
}
_ROUTED_CONFIG = {**_CONFIG, "vision_config": _VISION_CONFIG, "density_router_hidden_size": 16}
_IMAGE_PROCESSOR = {
    "image_processor_type": "GraniteDoclingImageProcessor",
    "size": 28,
    "max_patches": 4,
}

RECIPE = replace(
    IDEFICS3,
    model_type="granite_docling",
    architectures=("GraniteDoclingForConditionalGeneration",),
    special="Tiles that the prompt names; features of several vision layers; perhaps four times as many rows.",
    transforms=GRANITE.transforms,
    images=GraniteDocling(),
    tiny=(
        Tiny(config=_CONFIG, image_processor=_IMAGE_PROCESSOR),
        Tiny(
            config=_ROUTED_CONFIG,
            image_processor={**_IMAGE_PROCESSOR, "fine_route": True},
            name="fine",
        ),
    ),
)
