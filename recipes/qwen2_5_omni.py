# SPDX-License-Identifier: Apache-2.0
"""Qwen2.5-Omni, `transformers.models.qwen2_5_omni`: Qwen2.5-VL that encodes audio, too.

Unusual: a checkpoint of several models, of which the thinker alone is built; what makes speech is left out.
"""

from dataclasses import replace

from qeff_zoo.multimodal.families.qwen2_5_omni_audio import Qwen25OmniAudio
from qeff_zoo.multimodal.families.qwen_omni import QwenOmni
from qeff_zoo.recipe import Tiny

from ._tiny_parts import QWEN_OMNI_AUDIO, QWEN_VISION
from .qwen2_5_vl import RECIPE as QWEN2_5_VL

_TOKENS = {
    "image_token_index": 200,
    "video_token_index": 201,
    "vision_start_token_id": 202,
    "vision_end_token_id": 204,
    "audio_token_index": 203,
    "audio_start_token_id": 205,
    "audio_end_token_id": 206,
}
_VISION_CONFIG = {
    **QWEN_VISION,
    "depth": 3,
    "window_size": 16,
    "fullatt_block_indexes": [1],
    "out_hidden_size": 64,
    "intermediate_size": 48,
}
_TINY = {
    **_TOKENS,
    "text_config": QWEN2_5_VL.tiny[0].config["text_config"],
    "vision_config": _VISION_CONFIG,
    "audio_config": QWEN_OMNI_AUDIO,
}

RECIPE = replace(
    QWEN2_5_VL,
    model_type="qwen2_5_omni",
    architectures=("Qwen2_5OmniForConditionalGeneration", "Qwen2_5OmniModel"),
    special="Qwen2.5-VL's images; or audio, in windows of 2 seconds; the thinker alone: no speech output.",
    images=QwenOmni(
        video="video_token_id",
        video_processor="Qwen2_5OmniProcessor",
    ),
    audio=Qwen25OmniAudio(mask="feature_attention_mask", embedded=True),
    tiny=(Tiny(config={"thinker_config": _TINY}),),
)
