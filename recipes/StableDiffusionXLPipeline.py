# SPDX-License-Identifier: Apache-2.0
"""Stable Diffusion XL, `diffusers.pipelines.stable_diffusion_xl`: stabilityai/stable-diffusion-xl-base-1.0, sdxl-turbo.

Unusual: two text encoders, of which the second also returns a vector of the text; and a UNet that reads the size of the
image. Without a negative prompt, an image is guided away from zeros.
"""

from dataclasses import replace

from qeff_zoo.recipe import Pipeline, Tiny

from .StableDiffusionPipeline import RECIPE as STABLE_DIFFUSION

_BASE = STABLE_DIFFUSION.tiny[0].config
_TEXT_ENCODERS = {
    "text_encoder": _BASE["text_encoder"],
    "text_encoder_2": {**_BASE["text_encoder"], "hidden_size": 32, "hidden_act": "gelu"},
}
_UNET = {
    **_BASE["unet"],
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"],
    "transformer_layers_per_block": [1, 2],
    "attention_head_dim": [2, 4],
    "use_linear_projection": True,
    "cross_attention_dim": 56,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 8,
    "projection_class_embeddings_input_dim": 64,
}
_VAE = {**_BASE["vae"], "scaling_factor": 0.13025}
_NOISE = {
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "steps_offset": 1,
}

RECIPE = replace(
    STABLE_DIFFUSION,
    model_type="StableDiffusionXLPipeline",
    architectures=("StableDiffusionXLPipeline",),
    special="Two text encoders, one with a vector of the text; a UNet that reads them and the size of the image.",
    pipeline=Pipeline(
        family="stable_diffusion_xl",
        components={
            "text_encoder": "CLIPTextModel",
            "text_encoder_2": "CLIPTextModelWithProjection",
            "unet": "UNet2DConditionModel",
            "vae": "AutoencoderKL",
        },
    ),
    tiny=(
        Tiny(
            config={
                **_TEXT_ENCODERS,
                "unet": _UNET,
                "vae": _VAE,
                "scheduler": {"_class_name": "EulerDiscreteScheduler", **_NOISE},
            }
        ),
        Tiny(
            name="ancestral",
            config={
                **_TEXT_ENCODERS,
                "unet": {**_UNET, "transformer_layers_per_block": 1},
                "vae": {
                    **_VAE,
                    "latents_mean": [0.1, -0.2, 0.3, -0.4],
                    "latents_std": [0.8, 1.1, 0.9, 1.2],
                },
                "scheduler": {
                    "_class_name": "EulerAncestralDiscreteScheduler",
                    "timestep_spacing": "trailing",
                    **_NOISE,
                },
                "force_zeros_for_empty_prompt": False,
            },
        ),
    ),
)
