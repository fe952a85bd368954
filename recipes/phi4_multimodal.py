# SPDX-License-Identifier: Apache-2.0
"""Phi-4 multimodal, `transformers.models.phi4_multimodal`: Phi-4-mini, SigLIP on tiles of an image, and a Conformer.

Unusual: the decoder puts features among its embeddings itself. Adapters lie beside a checkpoint, one for images and
one for audio, which transformers leaves to its users: a package has that of its task merged.
"""

from dataclasses import replace

from qeff_zoo.multimodal.families.phi4 import Phi4
from qeff_zoo.multimodal.families.phi4_audio import Phi4Audio
from qeff_zoo.recipe import Tiny

from .phi3 import RECIPE as PHI3

_ENCODER_SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
_VISION_CONFIG = {"num_hidden_layers": 3, "image_size": 28, "crop_size": 28, "patch_size": 7}
_AUDIO_CONFIG = {
    "num_blocks": 2,
    "ext_pw_out_channel": 16,
    "depthwise_separable_out_channel": 16,
    "nemo_conv_channels": 4,
    "input_size": 24,
    "bias_max_distance": 4,
    "initializer_range": 0.4,
}
_ENCODERS = {
    "vision_config": {**_ENCODER_SIZES, **_VISION_CONFIG, "image_token_id": 200},
    "audio_config": {**_ENCODER_SIZES, **_AUDIO_CONFIG, "audio_token_id": 201},
}
_IMAGE_PROCESSOR = {
    "image_processor_type": "Phi4MultimodalImageProcessor",
    "patch_size": 7,
    "dynamic_hd": 4,
}
_TOKENS = "vision_config.image_token_id", "audio_config.audio_token_id"
_CONFIG = {**PHI3.tiny[1].config, "bos_token_id": 1, **_ENCODERS}

RECIPE = replace(
    PHI3,
    model_type="phi4_multimodal",
    architectures=("Phi4MultimodalForCausalLM",),
    task="image-text-to-text",
    special="Tiles of an image without padding, in lines with a learned row, then the whole; or audio of any length.",
    images=Phi4(token=_TOKENS[0]),
    audio=Phi4Audio(token=_TOKENS[1], adapter="speech-lora"),
    tiny=(
        Tiny(
            config=_CONFIG,
            image_processor={**_IMAGE_PROCESSOR, "size": {"height": 28, "width": 28}},
        ),
    ),
)
