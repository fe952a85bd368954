# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-OCR 2, `transformers.models.deepseek_ocr2`: SAM's vision encoder, as many learned queries, and experts."""

from dataclasses import replace

from qeff_zoo.multimodal.families.deepseek_ocr2 import DeepSeekOcr2
from qeff_zoo.recipe import Tiny, experts, rms_norm

from ._tiny_parts import SAM_VISION
from .llama import RECIPE as LLAMA
from .llava import RECIPE as LLAVA
from .qwen2 import RECIPE as QWEN2

_TEXT_CONFIG = {**LLAMA.tiny[0].config, "max_position_embeddings": 2048}
_MOE = {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
_MLP_TYPES = {"mlp_layer_types": ["dense", "dense", "sparse", "sparse"], "n_shared_experts": 2}
# More than 144 rows of the whole, so that it has the queries of such, and fewer of a tile.
_SIZES = {"image_size": 98, "patch_size": 2, "num_attention_heads": 2}
_SAM_CONFIG = {**SAM_VISION, **_SIZES, "downsample_channels": [24, 64]}
_IMAGE_PROCESSOR = {
    "image_processor_type": "DeepseekOcr2ImageProcessor",
    "size": 98,
    "tile_size": 32,
}

RECIPE = replace(
    LLAVA,
    model_type="deepseek_ocr2",
    architectures=("DeepseekOcr2ForConditionalGeneration",),
    special="Queries read an image causally, and tiles of it in another size; dense layers, then experts.",
    transforms=(rms_norm(lambda config: 2 * config.num_hidden_layers + 1), experts()),
    images=DeepSeekOcr2(),
    tiny=(
        Tiny(
            config={
                "text_config": {**_TEXT_CONFIG, **_MOE, **_MLP_TYPES},
                "image_token_id": 200,
                "vision_config": {
                    "sam_config": _SAM_CONFIG,
                    "encoder_config": QWEN2.tiny[0].config,
                },
            },
            image_processor={**_IMAGE_PROCESSOR, "max_patches": 2},
            ctx_len=640,
        ),
    ),
)
