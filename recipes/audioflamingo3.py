# SPDX-License-Identifier: Apache-2.0
"""Audio Flamingo 3, `transformers.models.audioflamingo3`: Qwen2-Audio with two matrices, and windows one by one."""

from dataclasses import replace

from qeff_zoo.multimodal.families.audio_windows import AudioWindows

from .qwen2_audio import RECIPE as QWEN2_AUDIO

RECIPE = replace(
    QWEN2_AUDIO,
    model_type="audioflamingo3",
    architectures=("AudioFlamingo3ForConditionalGeneration",),
    special="Ten minutes of audio at most, in independent windows of 30 seconds; 25 rows a second.",
    audio=AudioWindows(mask="input_features_mask", windows=20),
)
