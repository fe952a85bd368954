# SPDX-License-Identifier: Apache-2.0
"""Inpainting, `diffusers.pipelines.stable_diffusion_xl`: diffusers/stable-diffusion-xl-1.0-inpainting-0.1.

Unusual: the UNet reads nine channels: latents, a mask, and latents of the image without its masked part.
"""

from dataclasses import replace

from qeff_zoo.recipe import Pipeline, Tiny

from .StableDiffusionXLPipeline import RECIPE as STABLE_DIFFUSION_XL

_BASE = STABLE_DIFFUSION_XL.tiny[0].config

RECIPE = replace(
    STABLE_DIFFUSION_XL,
    model_type="StableDiffusionXLInpaintPipeline",
    architectures=("StableDiffusionXLInpaintPipeline",),
    special="A UNet that also reads a mask, and latents of the image without its masked part.",
    pipeline=Pipeline(
        family="stable_diffusion_xl_inpaint",
        components={
            "text_encoder": "CLIPTextModel",
            "text_encoder_2": "CLIPTextModelWithProjection",
            "unet": "UNet2DConditionModel",
            "vae": "AutoencoderKL",
        },
    ),
    tiny=(Tiny(config={**_BASE, "unet": {**_BASE["unet"], "in_channels": 9}}),),
)
