# SPDX-License-Identifier: Apache-2.0
"""RT-DETR, `transformers.models.rt_detr`: PekingU/rtdetr_r18vd, PekingU/rtdetr_r50vd and others.

Unusual: maps of three resolutions, fused by convolutions; queries are the places with the best scores, whose states a
decoder samples at learned offsets. Images are squares of 640 pixels.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, Transform

from .yolos import RECIPE as YOLOS

_BACKBONE = {
    "model_type": "rt_detr_resnet",
    "embedding_size": 16,
    "hidden_sizes": [16, 24, 32, 40],
    "depths": [2, 2, 2, 2],
    "layer_type": "basic",
    "out_features": ["stage2", "stage3", "stage4"],
}
_TINY = {
    "backbone_config": _BACKBONE,
    "encoder_in_channels": [24, 32, 40],
    "encoder_hidden_dim": 32,
    "encoder_layers": 2,
    "encoder_ffn_dim": 48,
    "encoder_attention_heads": 2,
    "hidden_expansion": 0.5,
    "d_model": 64,
    "num_queries": 7,
    "decoder_in_channels": [32, 32, 32],
    "decoder_ffn_dim": 80,
    "decoder_n_points": 3,
    "decoder_layers": 3,
    "decoder_attention_heads": 4,
    "num_denoising": 0,
    "initializer_range": 0.2,
    "id2label": YOLOS.tiny[0].config["id2label"],
}

RECIPE = replace(
    YOLOS,
    model_type="rt_detr",
    architectures=("RTDetrForObjectDetection",),
    transforms=(
        Transform(
            name="symbolic_sizes", count=lambda config: 1, parameters={"name": "RTDetrModel"}
        ),
    ),
    special="Decoder of the places with the best scores, which samples maps of several resolutions.",
    image_processor="RTDetrImageProcessor",
    tiny=(Tiny(config=_TINY, image_processor={"size": {"height": 96, "width": 64}}),),
)
