# SPDX-License-Identifier: Apache-2.0
"""The `zero-shot-object-detection` contract: images and texts in; a box, and a score of each text, for each patch out.

Two programs: `vision` encodes images, `encoder` encodes texts. The logit of a patch and a text is their cosine, with a
shift and a scale of the patch. See `qeff_zoo.tasks.zero_shot_detection.tracing`.

IN   pixel_values: see `qeff_zoo.tasks.images.whole_images`
OUT  class_embeds (batch_size, patches, hidden)    of length 1
     factors (batch_size, patches, 2)              shift and scale of logits
     pred_boxes (batch_size, patches, 4)           center, width and height in shares of the processed image
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from qeff_zoo.contract import Part, Task, Tracing, lazy
from qeff_zoo.contract.commands import Commands
from qeff_zoo.contract.comparison import VALUES
from qeff_zoo.errors import ZooError
from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import IMAGE_SHAPES, Recipe, Shape
from qeff_zoo.tasks.images import whole_images

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint

#: Hub pipeline tag.
NAME = "zero-shot-object-detection"


def _look_once(model: Any) -> None:
    from qeff_zoo.tasks.zero_shot_detection import tracing

    tracing.look_once(model)


def _look(model: Any, *, height: int, width: int) -> Tracing:
    from qeff_zoo.tasks.zero_shot_detection import tracing

    return tracing.of_images(model, height=height, width=width)


def _read_once(model: Any) -> None:
    from qeff_zoo.tasks.zero_shot_detection import tracing

    tracing.read_once(model)


def _read(model: Any) -> Tracing:
    from qeff_zoo.tasks.zero_shot_detection import tracing

    return tracing.of_texts(model)


def _nothing(
    checkpoint: "Checkpoint", recipe: Recipe, shape: Shape, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    return {}


def _problems(checkpoint: "Checkpoint", recipe: Recipe, request: Request) -> list[str]:
    """Return the problems of a checkpoint's processor."""
    from qeff_zoo.media.image_processor import read_image_processor
    from qeff_zoo.tasks.zero_shot_detection.objects import PADDED

    if problems := whole_images.problems(checkpoint, recipe, request):
        return problems
    try:
        processor = read_image_processor(checkpoint.companions, recipe.image_processor)
    except ZooError as error:
        return [str(error)]
    if processor.name not in PADDED:
        return [
            f"The processor {processor.name!r} has no boxes of objects that texts name; expected {', '.join(PADDED)}. "
            "Correct `image_processor_type` in preprocessor_config.json."
        ]
    whole = (
        processor.settings["do_pad"]
        if PADDED[processor.name]
        else not processor.settings["do_center_crop"]
    )
    if not (processor.settings["do_resize"] and whole):
        return [
            f"The processor {processor.name!r} does not resize a whole image, and boxes would be shares of a part. "
            "Expected `do_resize`, `do_pad` of OWLv2, and no `do_center_crop`; correct preprocessor_config.json."
        ]
    return []


TASK = Task(
    name=NAME,
    does="detect objects that texts name",
    guide="images.md",
    role="vision",
    comparison=VALUES,
    reads="image",
    before=(
        Part(
            role="encoder",
            probe=_read_once,
            tracing=_read,
            half=lambda model: model.base_model.text_model,
            variant=_nothing,
            specializations=whole_images.specializations("Texts"),
        ),
    ),
    auto_classes=("AutoModelForZeroShotObjectDetection",),
    suffixes=("OwlViTForObjectDetection", "Owlv2ForObjectDetection"),
    shapes=IMAGE_SHAPES,
    probe=_look_once,
    tracing=_look,
    half=lambda model: model.base_model.vision_model,
    variant=whole_images.variant,
    specializations=whole_images.specializations("Detection"),
    problems=_problems,
    session=lazy("qeff_zoo.tasks.zero_shot_detection.session:ZeroShotDetectionSession"),
    public=("qeff_zoo.tasks.zero_shot_detection.session:ZeroShotDetectionSession",),
    trial=lazy("qeff_zoo.tasks.zero_shot_detection.trial:ZeroShotDetectionTrial"),
    reference=lazy("qeff_zoo.tasks.zero_shot_detection.reference:ZeroShotDetectionReference"),
    commands=Commands(
        run=lazy("qeff_zoo.tasks.zero_shot_detection.verbs:DetectNamedObjects"),
        run_options=("image", "label", "threshold"),
        outputs=(".png",),
        serve=lazy("qeff_zoo.tasks.zero_shot_detection.service:NamedDetections"),
    ),
    stages=whole_images.stages,
)
