# SPDX-License-Identifier: Apache-2.0
"""Phi-4 multimodal, `transformers.models.phi4_multimodal`: Phi-4-mini, and SigLIP on tiles of a picture.

Unusual: the decoder puts features among its embeddings itself. Adapters lie beside a checkpoint, one for pictures and
one for sounds, which transformers leaves to its users: a package has that for pictures merged.
"""

from dataclasses import replace

from qeff_zoo.recipe import Images, Tiny

from .phi3 import RECIPE as PHI3

_VISION = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 28,
    "crop_size": 28, "patch_size": 7, "image_token_id": 200,
}  # fmt: skip
_AUDIO = {
    "hidden_size": 16, "intermediate_size": 16, "num_blocks": 1, "num_attention_heads": 2, "ext_pw_out_channel": 16,
    "depthwise_separable_out_channel": 16, "nemo_conv_channels": 4, "bias_max_distance": 8, "audio_token_id": 201,
}  # fmt: skip
_PARTS = {"sliding_window": None, "vision_config": _VISION, "audio_config": _AUDIO}
_PROCESSOR = {
    "image_processor_type": "Phi4MultimodalImageProcessor", "size": {"height": 28, "width": 28}, "patch_size": 7,
    "dynamic_hd": 4,
}  # fmt: skip

RECIPE = replace(
    PHI3,
    model_type="phi4_multimodal",
    architectures=("Phi4MultimodalForCausalLM",),
    task="image-text-to-text",
    special="Tiles of a picture without their padding, in lines that end with a learned row, then the whole.",
    images=Images(
        token="vision_config.image_token_id", layout="cut_lines", pixels="image_pixel_values",
        mask="image_attention_mask", adapter="vision-lora",
    ),
    tiny=(Tiny(config={**PHI3.tiny[1].config, **_PARTS, "bos_token_id": 1}, image_processor=_PROCESSOR),),
)  # fmt: skip
