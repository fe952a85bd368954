# SPDX-License-Identifier: Apache-2.0
"""Wan, image to video, `diffusers.pipelines.wan`: Wan-AI/Wan2.2-I2V-A14B-Diffusers, Wan2.1-I2V-14B-480P-Diffusers.

Unusual: transformers also read a mask of the first frame, and its latents; those of version 2.1 the states of an image,
too.
"""

from dataclasses import replace

from qeff_zoo.recipe import Pipeline, Tiny

from .WanPipeline import RECIPE as WAN

_BASE = WAN.tiny[0].config
_TRANSFORMER = {**_BASE["transformer"], "in_channels": 12}
_IMAGE_ENCODER = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}

RECIPE = replace(
    WAN,
    model_type="WanImageToVideoPipeline",
    architectures=("WanImageToVideoPipeline",),
    task="image-to-video",
    special="Transformers of latents of a video that also read a mask of the first frame, and its latents.",
    pipeline=Pipeline(
        family="wan_image",
        components={
            "text_encoder": "UMT5EncoderModel",
            "image_encoder": "CLIPVisionModel",
            "transformer": "WanTransformer3DModel",
            "transformer_2": "WanTransformer3DModel",
            "vae": "AutoencoderKLWan",
        },
        optional=("image_encoder", "transformer_2"),
    ),
    tiny=(
        Tiny(
            name="2.2",
            config={**_BASE, "transformer": _TRANSFORMER, "transformer_2": _TRANSFORMER},
        ),
        Tiny(
            name="2.1",
            config={
                **WAN.tiny[1].config,
                "image_encoder": _IMAGE_ENCODER,
                "transformer": {**_TRANSFORMER, "image_dim": 16, "added_kv_proj_dim": 24},
            },
        ),
    ),
)
