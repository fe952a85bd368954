# SPDX-License-Identifier: Apache-2.0
"""The `keypoint-detection` contract: a heat map of each keypoint for the box of a person.

IN   pixel_values (batch_size, 3, height, width) f32        the part of an image around a box, of one size
     dataset_index (batch_size,) int64                      of models with experts, which belong to data sets
OUT  heatmaps (batch_size, keypoints, rows, columns) f32    a fourth of the image's size; the session finds the points
"""

from typing import TYPE_CHECKING, Any

from qeff_zoo.contract import Task, Tracing, lazy
from qeff_zoo.contract.commands import Commands
from qeff_zoo.contract.comparison import VALUES
from qeff_zoo.errors import ZooError
from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import IMAGE_SHAPES, Recipe
from qeff_zoo.tasks.images import whole_images

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint

#: Hub pipeline tag.
NAME = "keypoint-detection"


def _probe(model: Any) -> None:
    from qeff_zoo.tasks.keypoint_detection import tracing

    tracing.run_once(model)


def _tracing(model: Any, *, height: int, width: int) -> Tracing:
    from qeff_zoo.tasks.keypoint_detection import tracing

    return tracing.describe(model, height=height, width=width)


def _problems(checkpoint: "Checkpoint", recipe: Recipe, request: Request) -> list[str]:
    """Return the problems of a checkpoint's processor."""
    from qeff_zoo.media.image_processor import read_image_processor

    if problems := whole_images.problems(checkpoint, recipe, request):
        return problems
    try:
        processor = read_image_processor(checkpoint.companions, recipe.image_processor)
    except ZooError as error:
        return [str(error)]
    if processor.name != recipe.image_processor:
        return [
            f"The processor {processor.name!r} has no boxes of people; expected {recipe.image_processor}. Correct "
            "`image_processor_type` in preprocessor_config.json."
        ]
    return []


TASK = Task(
    name=NAME,
    does="find keypoints of people",
    guide="images.md",
    role="vision",
    comparison=VALUES,
    labelled=True,
    reads="image",
    auto_classes=("AutoModelForPoseEstimation",),
    suffixes=("ForPoseEstimation",),
    shapes=IMAGE_SHAPES,
    probe=_probe,
    tracing=_tracing,
    variant=whole_images.variant,
    specializations=whole_images.specializations("Poses"),
    problems=_problems,
    session=lazy("qeff_zoo.tasks.keypoint_detection.session:KeypointDetectionSession"),
    public=(
        "qeff_zoo.tasks.keypoint_detection.session:KeypointDetectionSession",
        "qeff_zoo.tasks.keypoint_detection.poses:Pose",
        "qeff_zoo.tasks.keypoint_detection.poses:Keypoint",
    ),
    trial=lazy("qeff_zoo.tasks.keypoint_detection.trial:KeypointTrial"),
    reference=lazy("qeff_zoo.tasks.keypoint_detection.reference:KeypointReference"),
    commands=Commands(
        run=lazy("qeff_zoo.tasks.keypoint_detection.verbs:FindKeypoints"),
        run_options=("image", "box", "threshold", "dataset_index"),
        outputs=(".png",),
    ),
    stages=whole_images.stages,
)
