# SPDX-License-Identifier: Apache-2.0
"""Inpainting, `diffusers.pipelines.stable_diffusion`: stable-diffusion-v1-5/stable-diffusion-inpainting.

Unusual: the UNet reads nine channels: latents, a mask, and latents of the image without its masked part.
"""

from dataclasses import replace

from qeff_zoo.recipe import Pipeline, Tiny

from .StableDiffusionPipeline import RECIPE as STABLE_DIFFUSION

RECIPE = replace(
    STABLE_DIFFUSION,
    model_type="StableDiffusionInpaintPipeline",
    architectures=("StableDiffusionInpaintPipeline",),
    special="A UNet that also reads a mask, and latents of the image without its masked part.",
    pipeline=Pipeline(
        family="stable_diffusion_inpaint",
        components={
            "text_encoder": "CLIPTextModel",
            "unet": "UNet2DConditionModel",
            "vae": "AutoencoderKL",
        },
    ),
    tiny=tuple(
        Tiny(name=one.name, config={**one.config, "unet": {**one.config["unet"], "in_channels": 9}})
        for one in STABLE_DIFFUSION.tiny
    ),
)
