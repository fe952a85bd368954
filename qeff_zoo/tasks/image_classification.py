# SPDX-License-Identifier: Apache-2.0
"""The `image-classification` contract: a score of every label for each picture.

IN   pixel_values: see `qeff_zoo.tasks.images`
OUT  logits (batch_size, labels)
"""

from typing import Any

from qeff_zoo.recipe import IMAGE_SHAPES

from . import IMAGE_CLASSIFICATION, Task, Tracing, images


def _tracing(model: Any, *, height: int, width: int) -> Tracing:
    from qeff_zoo.tasks.image_tracing import Recognize

    return images.describe(model, Recognize(model), "logits", height=height, width=width)


def _session() -> Any:
    from qeff_zoo.runtime.images import ImageClassificationSession

    return ImageClassificationSession


TASK = Task(
    name=IMAGE_CLASSIFICATION,
    role="vision",
    answers="scores",
    reads="image",
    auto_classes=("AutoModelForImageClassification",),
    suffixes=("ForImageClassification", "ForImageClassificationWithTeacher"),
    shapes=IMAGE_SHAPES,
    probe=images.run_once,
    tracing=_tracing,
    variant=images.variant,
    specializations=images.specializations("Classification"),
    problems=images.problems,
    session=_session,
    stages=images.stages,
)
