# SPDX-License-Identifier: Apache-2.0
"""Inpainting with Stable Diffusion XL: a UNet that also reads a mask, and latents of the image behind it.

IN   as in `stable_diffusion_xl`, with the channels of `stable_diffusion_inpaint`
OUT  output (batch_size, channels, latent_height, latent_width)   of the latents alone
"""

from qeff_zoo.tasks.diffusion.families.stable_diffusion_xl import StableDiffusionXL


class StableDiffusionXLInpaint(StableDiffusionXL):
    """See `Family`."""

    reads_masks = True
    guidance_scale = 7.5

    def problems(self) -> list[str]:
        """Return inputs of the UNet that the pipeline does not compute."""
        found = super().problems()
        if self.config.get("requires_aesthetics_score"):
            found.append(
                "has a UNet that reads a score of the image (requires_aesthetics_score), as refiners do; expected one "
                "that reads sizes. Use another checkpoint."
            )
        if self.lost_with_masks:
            found.append(
                "has a VAE with latents_mean, which diffusers' inpainting leaves out; expected one without. Use "
                "another checkpoint."
            )
        return found


FAMILY = StableDiffusionXLInpaint
