# SPDX-License-Identifier: Apache-2.0
"""Swin2SR, `transformers.models.swin2sr`: caidas/swin2SR-classical-sr-x2-64, caidas/swin2SR-lightweight-x2-64 and more.

Unusual: Swin v2 without patches or merging, in residual blocks with convolutions; one of four upsamplers computes
pixels of the last states, or corrects the image's own. Images have any size; the processor pads them to whole
windows.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, Transform

from .vit import RECIPE as VIT

_TINY = {
    "embed_dim": 24,
    "depths": [2, 2],
    "num_heads": [2, 3],
    "window_size": 4,
    "image_size": 16,
    "img_range": 2.0,
    "initializer_range": 0.1,
}
_UPSAMPLERS = (
    ("base", {"upsampler": "pixelshuffle", "upscale": 2}),
    ("aux", {"upsampler": "pixelshuffle_aux", "upscale": 4}),
    ("direct", {"upsampler": "pixelshuffledirect", "upscale": 3, "resi_connection": "3conv"}),
    ("nearest", {"upsampler": "nearest+conv", "upscale": 4}),
    ("restoring", {"upsampler": "", "upscale": 1}),
)

RECIPE = replace(
    VIT,
    model_type="swin2sr",
    architectures=("Swin2SRForImageSuperResolution",),
    task="image-to-image",
    transforms=(Transform(name="whole_windows", count=lambda config: 1 + sum(config.depths)),),
    special="Swin v2 on pixels, in residual blocks with convolutions, and upsamplers to a larger image.",
    image_processor="Swin2SRImageProcessor",
    tiny=tuple(
        Tiny(name=name, config={**_TINY, **upsampler}, image_processor={"size_divisor": 4})
        for name, upsampler in _UPSAMPLERS
    ),
)
