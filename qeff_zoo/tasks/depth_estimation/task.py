# SPDX-License-Identifier: Apache-2.0
"""The `depth-estimation` contract: a map of depths for each image.

IN   pixel_values: see `qeff_zoo.tasks.images.whole_images`; of any size, if the processor keeps aspect ratios
OUT  predicted_depth (batch_size, rows, columns)    in the model's own size; the session resizes it to the image
"""

from typing import Any

from qeff_zoo.contract import DEPTH_ESTIMATION, Task, Tracing, lazy
from qeff_zoo.contract.commands import Commands
from qeff_zoo.contract.comparison import VALUES
from qeff_zoo.recipe import IMAGE_SHAPES
from qeff_zoo.tasks.images import own_sizes, whole_images


def _tracing(model: Any, *, height: int, width: int, any_size: bool = False) -> Tracing:
    from qeff_zoo.tasks.images.image_tracing import Head

    return whole_images.describe(
        model,
        Head(model, "predicted_depth"),
        "predicted_depth",
        height=height,
        width=width,
        any_size=any_size,
    )


TASK = Task(
    name=DEPTH_ESTIMATION,
    does="estimate depth",
    guide="images.md",
    role="vision",
    comparison=VALUES,
    reads="image",
    auto_classes=("AutoModelForDepthEstimation",),
    suffixes=("ForDepthEstimation",),
    shapes=IMAGE_SHAPES,
    probe=whole_images.run_once,
    tracing=_tracing,
    variant=own_sizes.variant,
    specializations=own_sizes.specializations("Depth"),
    sized=own_sizes.sized,
    problems=own_sizes.problems("set `keep_aspect_ratio` to false"),
    session=lazy("qeff_zoo.tasks.depth_estimation.session:DepthEstimationSession"),
    public=(
        "qeff_zoo.tasks.depth_estimation.session:DepthEstimationSession",
        "qeff_zoo.tasks.depth_estimation.session:DepthEstimate",
    ),
    trial=lazy("qeff_zoo.tasks.depth_estimation.trial:DepthTrial"),
    reference=lazy("qeff_zoo.tasks.depth_estimation.reference:DepthReference"),
    commands=Commands(
        run=lazy("qeff_zoo.tasks.depth_estimation.verbs:EstimateDepth"),
        run_options=("image",),
        outputs=(".png", ".npy"),
        serve=lazy("qeff_zoo.tasks.depth_estimation.service:DepthMaps"),
    ),
    stages=lazy("qeff_zoo.tasks.images.trial:own_size_stages"),
)
