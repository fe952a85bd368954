# SPDX-License-Identifier: Apache-2.0
"""The `image-segmentation` contract: labels of pixels, or a label and a mask for each query of the model.

IN   pixel_values: see `qeff_zoo.tasks.images.whole_images`; of any size, if the processor keeps aspect ratios
OUT  logits (batch_size, labels, rows, columns)         in the model's own size; the session resizes them to the image
     of a model with queries, each with a label and a mask:
     logits (batch_size, queries, labels + 1)           the last for "no object"
     pred_masks (batch_size, queries, rows, columns)    in the model's own size
"""

from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from qeff_zoo.contract import IMAGE_SEGMENTATION, Task, Tracing, lazy
from qeff_zoo.contract.commands import Commands
from qeff_zoo.contract.comparison import VALUES
from qeff_zoo.errors import ZooError
from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import IMAGE_SHAPES, Recipe
from qeff_zoo.tasks.images import own_sizes, whole_images
from qeff_zoo.tasks.object_detection.task import has_timm_backbone

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint

#: Suffix of transformers' classes without queries.
_PIXELS = "ForSemanticSegmentation"

_size_problems = own_sizes.problems("set height and width as its `size`")


def _tracing(model: Any, *, height: int, width: int, any_size: bool = False) -> Tracing:
    from qeff_zoo.tasks.image_segmentation.tracing import describe

    module, names = describe(model, queries=not type(model).__name__.endswith(_PIXELS))
    tracing = whole_images.describe(
        model, module, names[0], height=height, width=width, any_size=any_size
    )
    return replace(tracing, output_names=names, then=_name_output_axes if any_size else None)


def _name_output_axes(graph: Any) -> None:
    """Name the axes of outputs whose sizes are expressions of those of images."""
    for output in graph.graph.outputs:
        if len(output.shape) == 4:
            output.shape = type(output.shape)(("batch_size", output.shape[1], "rows", "columns"))


def _problems(checkpoint: "Checkpoint", recipe: Recipe, request: Request) -> list[str]:
    """Return the problems of a checkpoint's backbone and processor."""
    from qeff_zoo.media.image_processor import read_image_processor
    from qeff_zoo.tasks.image_segmentation.rules import RULES, has_queries

    if has_timm_backbone(checkpoint.config) and find_spec("timm") is None:
        return [
            f"{checkpoint.name!r} has a backbone of the package timm, which is not installed. Expected it, and "
            "torchvision; install the extra `timm`, or build a model without it."
        ]
    if problems := _size_problems(checkpoint, recipe, request):
        return problems
    backbone = checkpoint.config.get("backbone_config") or {}
    shape = own_sizes.variant(checkpoint, recipe, IMAGE_SHAPES["latency"], {})
    if "window_size" in backbone and shape.get("any_size"):  # its padding branches on sizes
        return [
            f"{checkpoint.name!r} has a backbone {backbone.get('model_type')!r} with windows, whose graph is for "
            "images of one size, and its processor keeps the aspect ratio of images. Expected a processor with one "
            "size: set height and width as its `size` in preprocessor_config.json."
        ]
    try:
        processor = read_image_processor(checkpoint.companions, recipe.image_processor)
    except ZooError as error:
        return [str(error)]
    architectures = checkpoint.config.get("architectures") or [_PIXELS]
    queries = not architectures[0].endswith(_PIXELS)
    fitting = [name for name in RULES if has_queries(name) is queries]
    if processor.name not in fitting:
        return [
            f"The processor {processor.name!r} returns no segments of the outputs of this model; expected "
            f"{', '.join(fitting)}. Correct `image_processor_type` in preprocessor_config.json."
        ]
    if size := processor.settings.get("pad_size"):
        return [
            f"The processor {processor.name!r} pads images to `pad_size` {size}, and masks would be those of the "
            "padded image. Expected images without padding; remove `pad_size` from preprocessor_config.json."
        ]
    return []


TASK = Task(
    name=IMAGE_SEGMENTATION,
    does="segment images",
    guide="images.md",
    role="vision",
    comparison=VALUES,
    labelled=True,
    reads="image",
    auto_classes=("AutoModelForSemanticSegmentation", "AutoModelForUniversalSegmentation"),
    suffixes=(_PIXELS, "ForInstanceSegmentation", "ForUniversalSegmentation", "ForSegmentation"),
    shapes=IMAGE_SHAPES,
    probe=whole_images.run_once,
    tracing=_tracing,
    variant=own_sizes.variant,
    specializations=own_sizes.specializations("Segmentation"),
    sized=own_sizes.sized,
    problems=_problems,
    session=lazy("qeff_zoo.tasks.image_segmentation.session:ImageSegmentationSession"),
    public=(
        "qeff_zoo.tasks.image_segmentation.session:ImageSegmentationSession",
        "qeff_zoo.tasks.image_segmentation.segments:ImageSegment",
        "qeff_zoo.tasks.image_segmentation.segments:Thresholds",
    ),
    trial=lazy("qeff_zoo.tasks.image_segmentation.trial:SegmentationTrial"),
    reference=lazy("qeff_zoo.tasks.image_segmentation.reference:SegmentationReference"),
    commands=Commands(
        run=lazy("qeff_zoo.tasks.image_segmentation.verbs:SegmentImages"),
        run_options=(
            *("image", "subtask", "threshold", "mask_threshold", "overlap_mask_area_threshold"),
        ),
        outputs=(".png",),
        serve=lazy("qeff_zoo.tasks.image_segmentation.service:Segmentation"),
    ),
    stages=lazy("qeff_zoo.tasks.images.trial:own_size_stages"),
)
