# SPDX-License-Identifier: Apache-2.0
"""Perception LM, `transformers.models.perception_lm`: tiles, a tower of the package timm, and Llama."""

from dataclasses import replace

from qeff_zoo.multimodal.images import Images
from qeff_zoo.recipe import Tiny

from .llava import RECIPE as LLAVA
from .llava import TEXT

_SMALL = {
    "embed_dim": 64, "depth": 3, "num_heads": 4, "img_size": [56, 56], "ref_feat_shape": [4, 4],
}  # fmt: skip
_VISION = {"model_type": "timm_wrapper", "hidden_size": 64}
_LARGE = {**_VISION, "architecture": "vit_pe_lang_large_patch14_448", "model_args": _SMALL}
_GIGANTIC = {**_VISION, "architecture": "vit_pe_lang_gigantic_patch14_448", "model_args": _SMALL}
_TINY = {
    "text_config": TEXT, "image_token_id": 200, "video_token_id": 201, "projector_pooling_ratio": 2,
}  # fmt: skip
_TILES = {"image_processor_type": "PerceptionLMImageProcessor", "tile_size": 56, "max_num_tiles": 4}

RECIPE = replace(
    LLAVA,
    model_type="perception_lm",
    architectures=("PerceptionLMForConditionalGeneration",),
    special="Tiles and the whole picture by a tower of the package timm; squares of their rows are averaged.",
    requires=("timm",),
    images=Images(nested=True, embedded=True),
    tiny=(
        Tiny(
            config={**_TINY, "vision_config": _LARGE, "vision_use_cls_token": True},
            image_processor=_TILES,
        ),
        Tiny(
            config={**_TINY, "vision_config": _GIGANTIC, "vision_use_cls_token": False},
            image_processor=_TILES,
            name="gigantic",
        ),
    ),
)
