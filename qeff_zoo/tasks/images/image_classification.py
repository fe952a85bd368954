# SPDX-License-Identifier: Apache-2.0
"""The `image-classification` contract: a score of every label for each image.

IN   pixel_values: see `qeff_zoo.tasks.images.whole_images`
OUT  logits (batch_size, labels)
"""

from typing import Any

from qeff_zoo.recipe import IMAGE_SHAPES
from qeff_zoo.tasks import IMAGE_CLASSIFICATION, Task, Tracing, lazy
from qeff_zoo.tasks.commands import Commands

from . import whole_images


def _tracing(model: Any, *, height: int, width: int) -> Tracing:
    from qeff_zoo.tasks.images.image_tracing import Recognize

    return whole_images.describe(model, Recognize(model), "logits", height=height, width=width)


TASK = Task(
    name=IMAGE_CLASSIFICATION,
    role="vision",
    answers="scores",
    reads="image",
    auto_classes=("AutoModelForImageClassification",),
    suffixes=("ForImageClassification", "ForImageClassificationWithTeacher"),
    shapes=IMAGE_SHAPES,
    probe=whole_images.run_once,
    tracing=_tracing,
    variant=whole_images.variant,
    specializations=whole_images.specializations("Classification"),
    problems=whole_images.problems,
    session=lazy("qeff_zoo.tasks.images.session:ImageClassificationSession"),
    trial=lazy("qeff_zoo.tasks.images.trial:ImageTrial"),
    reference=lazy("qeff_zoo.tasks.images.reference:ImageReference"),
    commands=Commands(
        run=lazy("qeff_zoo.tasks.images.verbs:ClassifyImages"),
        run_options=("image",),
    ),
    stages=whole_images.stages,
)
