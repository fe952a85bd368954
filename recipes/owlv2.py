# SPDX-License-Identifier: Apache-2.0
"""OWLv2, `transformers.models.owlv2`: google/owlv2-base-patch16-ensemble, owlv2-large-patch14 and others.

Unusual: images are padded to squares, so that boxes are shares of the longer side. transformers' processor needs scipy.
"""

from dataclasses import replace

from .owlvit import RECIPE as OWLVIT

RECIPE = replace(
    OWLVIT,
    model_type="owlv2",
    architectures=("Owlv2ForObjectDetection",),
    special="OWL-ViT on padded squares.",
    requires=("scipy",),
    image_processor="Owlv2ImageProcessor",
)
