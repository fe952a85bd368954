# SPDX-License-Identifier: Apache-2.0
"""Music Flamingo, `transformers.models.musicflamingo`: Audio Flamingo 3, whose rows turn with the time they are of."""

from dataclasses import replace

from qeff_zoo.multimodal.families.musicflamingo import MusicFlamingoAudio
from qeff_zoo.recipe import Tiny

from ._tiny_parts import WHISPER_AUDIO
from .audioflamingo3 import RECIPE as AUDIO_FLAMINGO

_CONFIG = {
    "text_config": AUDIO_FLAMINGO.tiny[0].config["text_config"],
    "audio_config": {**WHISPER_AUDIO, "model_type": "audioflamingo3_encoder"},
    "audio_token_id": 200,
    "audio_bos_token_id": 201,
    "audio_eos_token_id": 202,
    "audio_frame_step": 0.7,
    "rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.4},
}

RECIPE = replace(
    AUDIO_FLAMINGO,
    model_type="musicflamingo",
    architectures=("MusicFlamingoForConditionalGeneration",),
    special="Twenty minutes of audio at most, in windows of 30 seconds; a rotary embedding of window, row and time.",
    audio=MusicFlamingoAudio(
        mask="input_features_mask",
        windows=40,
        before=("audio_bos_token_id",),
        after=("audio_eos_token_id",),
    ),
    tiny=(Tiny(config=_CONFIG),),
)
