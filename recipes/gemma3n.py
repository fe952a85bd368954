# SPDX-License-Identifier: Apache-2.0
"""Gemma 3n, `transformers.models.gemma3n`: images by a tower of the package timm, MobileNet V5; audio in chunks."""

from dataclasses import replace

from qeff_zoo.multimodal.families.gemma3n import Gemma3n
from qeff_zoo.multimodal.families.gemma3n_audio import Gemma3nAudio
from qeff_zoo.recipe import Tiny

from .gemma3n_text import RECIPE as GEMMA3N_TEXT
from .llava import RECIPE as LLAVA

# Tokens of images and audio come after those of the text, and have tables of their own.
_TEXT_CONFIG = {"model_type": "gemma3n_text", "vocab_size_per_layer_input": 240}
_VISION_CONFIG = {
    "model_type": "gemma3n_vision",
    "vocab_size": 5,
    "vocab_offset": 240,
    "initializer_range": 0.2,
    "model_args": {"channel_multiplier": 0.05, "msfa_output_resolution": 2},
}
_AUDIO_CONFIG = {
    "model_type": "gemma3n_audio",
    "vocab_size": 12,
    "vocab_offset": 245,
    "initializer_range": 0.3,
    "hidden_size": 32,
    "input_feat_size": 8,
    "sscp_conv_channel_size": [4, 3],
    "conf_num_attention_heads": 2,
    "conf_num_hidden_layers": 2,
    "conf_attention_chunk_size": 3,
    "conf_attention_context_left": 5,
    "conf_attention_context_right": 1,
    "conf_attention_logit_cap": 5.0,
    "conf_conv_kernel_size": 3,
    "conf_reduction_factor": 2,
}
_TINY = {
    "boi_token_id": 240,
    "image_token_id": 241,
    "eoi_token_id": 242,
    "vision_soft_tokens_per_image": 4,
    "boa_token_id": 245,
    "audio_token_id": 246,
    "eoa_token_id": 247,
    "audio_soft_tokens_per_image": 5,
    "text_config": {**GEMMA3N_TEXT.tiny[0].config, **_TEXT_CONFIG},
    "vision_config": _VISION_CONFIG,
    "audio_config": _AUDIO_CONFIG,
}
_IMAGE_PROCESSOR = {
    "image_processor_type": "SiglipImageProcessor",
    "size": {"height": 64, "width": 64},
}

RECIPE = replace(
    LLAVA,
    model_type="gemma3n",
    architectures=("Gemma3nForConditionalGeneration",),
    requires=("timm",),
    special="Convolutions, and attention among them, of the package timm, or audio in chunks; tables for their tokens.",
    images=Gemma3n(),
    audio=Gemma3nAudio(),
    tiny=(Tiny(config=_TINY, image_processor=_IMAGE_PROCESSOR),),
)
