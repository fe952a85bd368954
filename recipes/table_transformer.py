# SPDX-License-Identifier: Apache-2.0
"""Table Transformer, `transformers.models.table_transformer`: microsoft/table-transformer-detection and others.

Unusual: DETR with norms before attention, and one more after the encoder.
"""

from dataclasses import replace

from qeff_zoo.recipe import Tiny

from .detr import RECIPE as DETR

RECIPE = replace(
    DETR,
    model_type="table-transformer",
    architectures=("TableTransformerForObjectDetection",),
    special="DETR with norms before attention, and one more after the encoder.",
    tiny=(Tiny(config=DETR.tiny[0].config, image_processor=DETR.tiny[0].image_processor),),
)
