# SPDX-License-Identifier: Apache-2.0
"""Tracing of an inpainting pipeline: that of its family without masks; the UNet has more channels."""

from qeff_zoo.tasks.diffusion.families.stable_diffusion_xl_tracing import (
    text_encoder,
    text_encoder_2,
    unet,
)

__all__ = ["text_encoder", "text_encoder_2", "unet"]
