# SPDX-License-Identifier: Apache-2.0
"""The `object-detection` contract: logits of labels and a box for each query of the model.

IN   pixel_values: see `qeff_zoo.tasks.images.whole_images`; of any size, if the processor keeps aspect ratios
OUT  logits (batch_size, queries, labels)    with one more label, "no object", if scores are a softmax
     pred_boxes (batch_size, queries, 4)     center, width and height in shares of the image
"""

from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from qeff_zoo.contract import OBJECT_DETECTION, Task, Tracing, lazy
from qeff_zoo.contract.commands import Commands
from qeff_zoo.contract.comparison import VALUES
from qeff_zoo.errors import ZooError
from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import IMAGE_SHAPES, Recipe
from qeff_zoo.tasks.images import own_sizes, whole_images

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint

_size_problems = own_sizes.problems("set height and width as its `size`")


def _tracing(model: Any, *, height: int, width: int, any_size: bool = False) -> Tracing:
    from qeff_zoo.tasks.object_detection.tracing import Detect

    tracing = whole_images.describe(
        model, Detect(model), "logits", height=height, width=width, any_size=any_size
    )
    return replace(tracing, output_names=["logits", "pred_boxes"], then=None)


def has_timm_backbone(config: Mapping[str, Any]) -> bool:
    """Return whether a model has a backbone of timm, as all with a name in place of a configuration have by default.

    Args:
        config: Content of config.json.
    """
    if backbone := config.get("backbone_config"):
        return str(backbone.get("model_type")).startswith("timm")
    return bool(config.get("use_timm_backbone", "backbone" in config))


def _problems(checkpoint: "Checkpoint", recipe: Recipe, request: Request) -> list[str]:
    """Return the problems of a checkpoint's backbone and processor."""
    from qeff_zoo.media.image_processor import read_image_processor
    from qeff_zoo.tasks.object_detection.boxes import RULES

    if has_timm_backbone(checkpoint.config) and find_spec("timm") is None:
        return [
            f"{checkpoint.name!r} has a backbone of the package timm, which is not installed. Expected it, and "
            "torchvision; install the extra `timm`, or build a revision without it, such as --revision no_timm of "
            "facebook/detr-resnet-50."
        ]
    if problems := _size_problems(checkpoint, recipe, request):
        return problems
    try:
        processor = read_image_processor(checkpoint.companions, recipe.image_processor)
    except ZooError as error:
        return [str(error)]
    if processor.name not in RULES:
        return [
            f"The processor {processor.name!r} has no boxes of objects; expected {', '.join(RULES)}. Correct "
            "`image_processor_type` in preprocessor_config.json."
        ]
    if processor.settings.get("do_pad") and (size := processor.settings.get("pad_size")):
        return [
            f"The processor {processor.name!r} pads images to `pad_size` {size}, and boxes would be shares of the "
            "padded image. Expected images without padding; remove `pad_size` from preprocessor_config.json."
        ]
    return []


TASK = Task(
    name=OBJECT_DETECTION,
    does="detect objects",
    guide="images.md",
    role="vision",
    comparison=VALUES,
    labelled=True,
    reads="image",
    auto_classes=("AutoModelForObjectDetection",),
    suffixes=("ForObjectDetection",),
    shapes=IMAGE_SHAPES,
    probe=whole_images.run_once,
    tracing=_tracing,
    variant=own_sizes.variant,
    specializations=own_sizes.specializations("Detection"),
    sized=own_sizes.sized,
    problems=_problems,
    session=lazy("qeff_zoo.tasks.object_detection.session:ObjectDetectionSession"),
    public=(
        "qeff_zoo.tasks.object_detection.session:ObjectDetectionSession",
        "qeff_zoo.tasks.object_detection.boxes:Detection",
        "qeff_zoo.tasks.object_detection.boxes:Box",
    ),
    trial=lazy("qeff_zoo.tasks.object_detection.trial:DetectionTrial"),
    reference=lazy("qeff_zoo.tasks.object_detection.reference:DetectionReference"),
    commands=Commands(
        run=lazy("qeff_zoo.tasks.object_detection.verbs:DetectObjects"),
        run_options=("image", "threshold"),
        outputs=(".png",),
        serve=lazy("qeff_zoo.tasks.object_detection.service:Detections"),
    ),
    stages=lazy("qeff_zoo.tasks.images.trial:own_size_stages"),
)
