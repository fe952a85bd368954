# SPDX-License-Identifier: Apache-2.0
"""Granite Speech, `transformers.models.granite_speech`: a Conformer in blocks, a Q-Former for each window, and Granite.

Unusual: audio of any length is encoded at once. Some checkpoints have an adapter beside them that is on only where a
prompt has audio: a package has it merged, and accepts only prompts with audio.
"""

from qeff_zoo.multimodal.families.granite_speech import GraniteSpeechAudio
from qeff_zoo.recipe import DECODER_SHAPES, Recipe, Tiny

from .granite import RECIPE as GRANITE

_ENCODER_CONFIG = {
    "input_dim": 16,
    "num_layers": 4,
    "hidden_dim": 32,
    "feedforward_mult": 2,
    "num_heads": 4,
    "output_dim": 12,
    "context_size": 14,
    "max_pos_emb": 16,
    "conv_kernel_size": 5,
    "initializer_range": 0.2,
}
_PROJECTOR_CONFIG = {
    "model_type": "blip_2_qformer",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "encoder_hidden_size": 32,
    "cross_attention_frequency": 1,
    "initializer_range": 0.2,
}
_TINY = {
    "text_config": {**GRANITE.tiny[0].config, "model_type": "granite"},
    "encoder_config": _ENCODER_CONFIG,
    "projector_config": _PROJECTOR_CONFIG,
    "audio_token_index": 200,
    "has_lora_adapter": False,
    "window_size": 6,
    "downsample_rate": 3,
}

RECIPE = Recipe(
    model_type="granite_speech",
    architectures=("GraniteSpeechForConditionalGeneration",),
    task="audio-text-to-text",
    special="Audio of any length, attended to in blocks of 4 seconds; an adapter for prompts with audio is merged.",
    transforms=GRANITE.transforms,
    audio=GraniteSpeechAudio(adapter="."),
    shapes=DECODER_SHAPES,
    tiny=(Tiny(config=_TINY),),
)
