# SPDX-License-Identifier: Apache-2.0
"""Molmo 2, `transformers.models.molmo2`: overlapping crops of an image, and Qwen 3 or OLMo 3 as one class."""

from dataclasses import replace

from qeff_zoo.multimodal.families.molmo2 import Molmo2
from qeff_zoo.recipe import Tiny, rms_norm

from .llama import RECIPE as LLAMA
from .llava import RECIPE as LLAVA

_ENCODER_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "initializer_range": 0.2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
_COMMON = {
    "vision_config": {
        **_ENCODER_SIZES,
        "num_hidden_layers": 3,
        "image_size": [12, 12],
        "patch_size": 4,
    },
    "adapter_config": {
        **_ENCODER_SIZES,
        "vision_feature_layer": [-1, 0],
        "text_hidden_size": 64,
    },
    "image_patch_id": 257,
    "low_res_image_start_token_id": 258,
    "image_start_token_id": 259,
    "image_col_id": 260,
    "image_end_token_id": 261,
    "frame_start_token_id": 262,
    "frame_end_token_id": 263,
}
_QWEN_TEXT = {**LLAMA.tiny[0].config, "additional_vocab_size": 7}
_OLMO_TEXT = {
    **_QWEN_TEXT,
    "qk_norm_type": "olmo",
    "norm_after": True,
    "rope_scaling_layers": [1, 3],
}
_IMAGE_PROCESSOR = {
    "image_processor_type": "Molmo2ImageProcessor",
    "size": {"height": 12, "width": 12},
    "patch_size": 4,
    "overlap_margins": [1, 1],
    "max_crops": 3,
}

RECIPE = replace(
    LLAVA,
    model_type="molmo2",
    architectures=("Molmo2ForConditionalGeneration",),
    special="Rows of patches of overlapping crops are added to embeddings; bidirectional attention among all images.",
    transforms=(rms_norm(lambda config: 4 * config.num_hidden_layers + 1),),
    images=Molmo2(
        video="<|video|>", video_processor="Molmo2VideoProcessor", stamp=("{:.1f} ", "", " ")
    ),
    tiny=(
        Tiny(config={"text_config": _QWEN_TEXT, **_COMMON}, image_processor=_IMAGE_PROCESSOR),
        Tiny(
            config={"text_config": _OLMO_TEXT, **_COMMON},
            image_processor=_IMAGE_PROCESSOR,
            name="olmo",
        ),
    ),
)
