# SPDX-License-Identifier: Apache-2.0
"""D-FINE, `transformers.models.d_fine`: ustc-community/dfine-nano-coco to dfine-xlarge-coco, of COCO and Objects365.

Unusual: RT-DETR on HGNet v2; edges of boxes are sums of bins, weighted by a distribution that each layer of the decoder
refines, and its sharpness adds to the logits of labels.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny, Transform

from .rt_detr import RECIPE as RT_DETR

_BACKBONE = {
    "model_type": "hgnet_v2",
    "stem_channels": [3, 8, 16],
    "stage_in_channels": [16, 24, 32, 40],
    "stage_mid_channels": [8, 8, 12, 16],
    "stage_out_channels": [24, 32, 40, 48],
    "hidden_sizes": [24, 32, 40, 48],
    "stage_num_blocks": [1, 1, 2, 1],
    "stage_downsample": [False, True, True, True],
    "stage_light_block": [False, False, True, True],
    "stage_kernel_size": [3, 3, 5, 5],
    "stage_numb_of_layers": [2, 2, 2, 2],
    "use_learnable_affine_block": True,
    "out_features": ["stage2", "stage3", "stage4"],
}
_TINY = {
    **{key: value for key, value in RT_DETR.tiny[0].config.items() if key != "backbone_config"},
    "backbone_config": _BACKBONE,
    "encoder_in_channels": [32, 40, 48],
    "decoder_n_points": [3, 4, 2],
    "max_num_bins": 8,
    "reg_scale": 3.0,
    "depth_mult": 0.5,
    "lqe_hidden_dim": 16,
}
_IMAGE_PROCESSOR = {
    "image_processor_type": "RTDetrImageProcessor",
    **RT_DETR.tiny[0].image_processor,
}

RECIPE = replace(
    RT_DETR,
    model_type="d_fine",
    architectures=("DFineForObjectDetection",),
    transforms=(
        Transform(name="symbolic_sizes", count=lambda config: 1, parameters={"name": "DFineModel"}),
        Transform(
            name="symbolic_sizes",
            count=lambda config: config.decoder_layers,
            parameters={"name": "DFineMultiscaleDeformableAttention"},
        ),
    ),
    special="RT-DETR whose boxes' edges are sums of bins, weighted by distributions that layers refine.",
    tiny=(Tiny(config=_TINY, image_processor=_IMAGE_PROCESSOR),),
)
