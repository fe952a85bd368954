# SPDX-License-Identifier: Apache-2.0
"""Perception LM, `transformers.models.perception_lm`: tiles, a tower of the package timm, and Llama."""

from dataclasses import replace

from qeff_zoo.multimodal.families.perception_lm import PerceptionLm
from qeff_zoo.recipe import Tiny

from .llava import RECIPE as LLAVA

_MODEL_ARGS = {
    "embed_dim": 64,
    "depth": 3,
    "num_heads": 4,
    "img_size": [56, 56],
    "ref_feat_shape": [4, 4],
}
_TIMM = {"model_type": "timm_wrapper", "hidden_size": 64}
_LARGE_VISION = {
    **_TIMM,
    "architecture": "vit_pe_lang_large_patch14_448",
    "model_args": _MODEL_ARGS,
}
_GIGANTIC_VISION = {
    **_TIMM,
    "architecture": "vit_pe_lang_gigantic_patch14_448",
    "model_args": _MODEL_ARGS,
}
_TINY = {
    "text_config": LLAVA.tiny[0].config["text_config"],
    "image_token_id": 200,
    "video_token_id": 201,
    "projector_pooling_ratio": 2,
}
_IMAGE_PROCESSOR = {
    "image_processor_type": "PerceptionLMImageProcessor",
    "tile_size": 56,
    "max_num_tiles": 4,
}

RECIPE = replace(
    LLAVA,
    model_type="perception_lm",
    architectures=("PerceptionLMForConditionalGeneration",),
    special="Tiles and the whole image by a tower of the package timm; squares of their rows are averaged.",
    requires=("timm",),
    images=PerceptionLm(),
    tiny=(
        Tiny(
            config={**_TINY, "vision_config": _LARGE_VISION, "vision_use_cls_token": True},
            image_processor=_IMAGE_PROCESSOR,
        ),
        Tiny(
            config={**_TINY, "vision_config": _GIGANTIC_VISION, "vision_use_cls_token": False},
            image_processor=_IMAGE_PROCESSOR,
            name="gigantic",
        ),
    ),
)
