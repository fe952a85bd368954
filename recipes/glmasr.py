# SPDX-License-Identifier: Apache-2.0
"""GLM-ASR, `transformers.models.glmasr`: Whisper's encoder with RoPE, four of its states to a row, and Llama."""

from dataclasses import replace

from qeff_zoo.multimodal.families.audio_windows import AudioWindows
from qeff_zoo.recipe import Tiny

from .voxtral import RECIPE as VOXTRAL

_AUDIO_CONFIG = dict(VOXTRAL.tiny[0].config["audio_config"])
_AUDIO_CONFIG["max_position_embeddings"] = _AUDIO_CONFIG.pop("max_source_positions")

RECIPE = replace(
    VOXTRAL,
    model_type="glmasr",
    architectures=("GlmAsrForConditionalGeneration",),
    special="Independent windows of 30 seconds, 21 at most; an encoder with RoPE in half of a head.",
    audio=AudioWindows(mask="input_features_mask", windows=21),
    tiny=(
        Tiny(
            config={
                "text_config": VOXTRAL.tiny[0].config["text_config"],
                "audio_config": _AUDIO_CONFIG,
                "audio_token_id": 200,
            }
        ),
    ),
)
