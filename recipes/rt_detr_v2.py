# SPDX-License-Identifier: Apache-2.0
"""RT-DETR v2, `transformers.models.rt_detr_v2`: PekingU/rtdetr_v2_r18vd, docling-project/docling-layout-heron and more.

Unusual: the decoder samples maps bilinearly, or (`decoder_method` "discrete") at whole pixels.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, Transform

from .rt_detr import RECIPE as RT_DETR

_TINY = {**RT_DETR.tiny[0].config, "decoder_offset_scale": 0.7}
_IMAGE_PROCESSOR = {
    "image_processor_type": "RTDetrImageProcessor",
    **RT_DETR.tiny[0].image_processor,
}

RECIPE = replace(
    RT_DETR,
    model_type="rt_detr_v2",
    architectures=("RTDetrV2ForObjectDetection",),
    transforms=(
        Transform(
            name="symbolic_sizes", count=lambda config: 1, parameters={"name": "RTDetrV2Model"}
        ),
        Transform(
            name="symbolic_sizes",
            count=lambda config: config.decoder_layers,
            parameters={"name": "RTDetrV2MultiscaleDeformableAttention"},
        ),
    ),
    special="RT-DETR whose offsets have a scale, and which samples between pixels or at whole ones.",
    tiny=tuple(
        Tiny(
            name=name,
            config={**_TINY, "decoder_method": method},
            image_processor=_IMAGE_PROCESSOR,
        )
        for name, method in (("base", "default"), ("discrete", "discrete"))
    ),
)
