# SPDX-License-Identifier: Apache-2.0
"""The `image-classification` contract: a score of every label for each image.

IN   pixel_values: see `qeff_zoo.tasks.images.whole_images`
OUT  logits (batch_size, labels)
"""

from typing import Any

from qeff_zoo.contract import IMAGE_CLASSIFICATION, Task, Tracing, lazy
from qeff_zoo.contract.commands import Commands
from qeff_zoo.contract.comparison import SCORES
from qeff_zoo.recipe import IMAGE_SHAPES

from . import whole_images


def _tracing(model: Any, *, height: int, width: int) -> Tracing:
    from qeff_zoo.tasks.images.image_tracing import Head

    return whole_images.describe(model, Head(model, "logits"), "logits", height=height, width=width)


TASK = Task(
    name=IMAGE_CLASSIFICATION,
    does="classify images",
    guide="images.md",
    role="vision",
    comparison=SCORES,
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
    public=("qeff_zoo.tasks.images.session:ImageClassificationSession",),
    trial=lazy("qeff_zoo.tasks.images.trial:ImageTrial"),
    reference=lazy("qeff_zoo.tasks.images.reference:ImageReference"),
    commands=Commands(
        run=lazy("qeff_zoo.tasks.images.verbs:ClassifyImages"),
        run_options=("image",),
    ),
    stages=whole_images.stages,
)
