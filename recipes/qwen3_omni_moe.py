# SPDX-License-Identifier: Apache-2.0
"""Qwen3-Omni with experts, `transformers.models.qwen3_omni_moe`: Qwen3-VL with experts that encodes audio, too.

Unusual: as of Qwen2.5-Omni, whose checkpoints have other models beside the thinker.
"""

from dataclasses import replace

from qeff_zoo.multimodal.families.audio_stream import AudioStream
from qeff_zoo.multimodal.families.qwen_omni import QwenOmni
from qeff_zoo.recipe import Tiny

from ._tiny_parts import QWEN_OMNI_AUDIO
from .qwen3_vl_moe import RECIPE as QWEN3_VL_MOE

_END_TOKENS = {"vision_end_token_id": 204, "audio_start_token_id": 205, "audio_end_token_id": 206}
_AUDIO_CONFIG = {
    **QWEN_OMNI_AUDIO,
    "n_window": 50,
    "n_window_infer": 300,
    "downsample_hidden_size": 6,
}
_CONFIG = {
    **QWEN3_VL_MOE.tiny[0].config,
    "audio_token_id": 203,
    **_END_TOKENS,
    "audio_config": _AUDIO_CONFIG,
}

RECIPE = replace(
    QWEN3_VL_MOE,
    model_type="qwen3_omni_moe",
    architectures=("Qwen3OmniMoeForConditionalGeneration",),
    special="Qwen3-VL's images and experts; or audio, in windows of 8 seconds; the thinker alone: no speech output.",
    images=QwenOmni(
        deepstack="deepstack_visual_indexes",
        video="video_token_id",
        video_processor="Qwen3OmniMoeProcessor",
        fractions=True,
    ),
    audio=AudioStream(mask="feature_attention_mask", window="n_window_infer", embedded=True),
    tiny=(Tiny(config={"thinker_config": _CONFIG}),),
)
