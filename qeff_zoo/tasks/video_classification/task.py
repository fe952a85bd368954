# SPDX-License-Identifier: Apache-2.0
"""The `video-classification` contract: a score of every label for each video.

IN   pixel_values (batch_size, frames, 3, height, width) f32    frames at equal distances, as the processor makes them
OUT  logits (batch_size, labels)
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from qeff_zoo.contract import Task, Tracing, lazy
from qeff_zoo.contract.commands import Commands
from qeff_zoo.contract.comparison import SCORES
from qeff_zoo.errors import ZooError
from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import IMAGE_SHAPES, Recipe, Shape
from qeff_zoo.tasks.images import whole_images

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint

#: Hub pipeline tag.
NAME = "video-classification"


def _probe(model: Any) -> None:
    from qeff_zoo.tasks.video_classification import tracing

    tracing.run_once(model)


def _tracing(model: Any, *, height: int, width: int) -> Tracing:
    from qeff_zoo.tasks.video_classification import tracing

    return tracing.describe(model, height=height, width=width)


def _variant(
    checkpoint: "Checkpoint", recipe: Recipe, shape: Shape, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the size of frames."""
    from qeff_zoo.tasks.video_classification.frames import frame_size

    height, width = frame_size(checkpoint, recipe)
    return {"height": height, "width": width}


def _problems(checkpoint: "Checkpoint", recipe: Recipe, request: Request) -> list[str]:
    from qeff_zoo.tasks.video_classification.frames import frame_size

    try:
        frame_size(checkpoint, recipe)
    except ZooError as error:
        return [str(error)]
    return []


TASK = Task(
    name=NAME,
    does="classify videos",
    guide="images.md",
    role="vision",
    comparison=SCORES,
    reads="video",
    auto_classes=("AutoModelForVideoClassification",),
    suffixes=("ForVideoClassification",),
    shapes=IMAGE_SHAPES,
    probe=_probe,
    tracing=_tracing,
    variant=_variant,
    specializations=whole_images.specializations("Classification"),
    problems=_problems,
    session=lazy("qeff_zoo.tasks.video_classification.session:VideoClassificationSession"),
    public=("qeff_zoo.tasks.video_classification.session:VideoClassificationSession",),
    trial=lazy("qeff_zoo.tasks.video_classification.trial:VideoTrial"),
    reference=lazy("qeff_zoo.tasks.video_classification.reference:VideoReference"),
    commands=Commands(
        run=lazy("qeff_zoo.tasks.video_classification.verbs:ClassifyVideos"),
        run_options=("video",),
    ),
    stages=whole_images.stages,
)
