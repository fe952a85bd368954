# SPDX-License-Identifier: Apache-2.0
"""SAM, `transformers.models.sam`: facebook/sam-vit-base, sam-vit-large, sam-vit-huge and others.

Unusual: a ViT whose layers attend within windows or to all patches, with relative positions; a decoder in which tokens
of points, boxes and masks, and the patches of an image attend to each other.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, Transform

from .vit import RECIPE as VIT

_VISION_CONFIG = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "mlp_dim": 96,
    "output_channels": 32,
    "image_size": 64,
    "patch_size": 8,
    "window_size": 3,
    "global_attn_indexes": [1, 3],
    "num_pos_feats": 16,
    "initializer_range": 0.2,
}
_TINY = {
    "vision_config": _VISION_CONFIG,
    "prompt_encoder_config": {"hidden_size": 32, "image_size": 64, "patch_size": 8},
    "mask_decoder_config": {
        "hidden_size": 32,
        "mlp_dim": 48,
        "num_attention_heads": 4,
        "iou_head_hidden_dim": 24,
    },
    "initializer_range": 0.2,
}

RECIPE = replace(
    VIT,
    model_type="sam",
    architectures=("SamModel",),
    task="mask-generation",
    transforms=(
        Transform(
            name="prompt_attention",
            count=lambda config: 3 * config.mask_decoder_config.num_hidden_layers + 1,
        ),
    ),
    special="ViT with windows and relative positions; a decoder of masks for points and boxes.",
    image_processor="SamImageProcessor",
    tiny=(
        Tiny(
            config=_TINY,
            image_processor={
                "size": {"longest_edge": 64},
                "pad_size": {"height": 64, "width": 64},
                "mask_size": {"longest_edge": 32},
                "mask_pad_size": {"height": 32, "width": 32},
            },
        ),
    ),
)
