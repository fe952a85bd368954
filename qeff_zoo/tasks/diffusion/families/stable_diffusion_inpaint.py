# SPDX-License-Identifier: Apache-2.0
"""Inpainting with Stable Diffusion 1 and 2: a UNet that also reads a mask, and latents of the image behind it.

IN   as in `stable_diffusion`, where the channels of `sample` are the latents, the mask (1 where the image is drawn
     anew), and the latents of the image without its masked part
OUT  output (batch_size, channels, latent_height, latent_width)   of the latents alone
"""

from qeff_zoo.tasks.diffusion.families.stable_diffusion import StableDiffusion


class StableDiffusionInpaint(StableDiffusion):
    """See `Family`."""

    reads_masks = True


FAMILY = StableDiffusionInpaint
