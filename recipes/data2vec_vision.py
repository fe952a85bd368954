# SPDX-License-Identifier: Apache-2.0
"""Data2Vec for images, `transformers.models.data2vec`: facebook/data2vec-vision-base and others.

Unusual: BEiT in other words, which returns no vector of an image without a head; the maps of a segmentation model have
the size of its configuration.
"""

from dataclasses import replace

from .beit import RECIPE as BEIT

RECIPE = replace(
    BEIT,
    model_type="data2vec-vision",
    architectures=(
        "Data2VecVisionForImageClassification",
        "Data2VecVisionForSemanticSegmentation",
    ),
    task="image-classification",
    tiny=BEIT.tiny[:1],
)
