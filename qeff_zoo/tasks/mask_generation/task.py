# SPDX-License-Identifier: Apache-2.0
"""The `mask-generation` contract: an image, and then prompts of points and boxes in; masks with scores out.

Two programs: `vision` encodes an image once, `encoder` reads prompts, as often as there are any, and returns masks. See
`qeff_zoo.tasks.mask_generation.tracing`.

IN   pixel_values: see `qeff_zoo.tasks.images.whole_images`
OUT  image_embeddings (batch_size, hidden, rows, columns)
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from qeff_zoo.contract import Part, Task, Tracing, lazy, named
from qeff_zoo.contract.commands import Commands
from qeff_zoo.contract.comparison import VALUES
from qeff_zoo.errors import ZooError
from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import IMAGE_SHAPES, Recipe, Shape
from qeff_zoo.tasks.images import whole_images

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint

#: Hub pipeline tag.
NAME = "mask-generation"
#: Numbers of tokens of a prompt, of programs with fixed shapes: one to four points or corners of a box, and an end.
_TOKENS = (2, 3, 4, 5)


def _look_once(model: Any) -> None:
    from qeff_zoo.tasks.mask_generation import tracing

    tracing.look_once(model)


def _look(model: Any, *, height: int, width: int) -> Tracing:
    from qeff_zoo.tasks.mask_generation import tracing

    return tracing.of_images(model, height=height, width=width)


def _read(model: Any) -> Tracing:
    from qeff_zoo.tasks.mask_generation import tracing

    return tracing.of_prompts(model)


def _nothing(
    checkpoint: "Checkpoint", recipe: Recipe, shape: Shape, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    return {}


def _prompts(shape: Shape) -> list[dict[str, Any]]:
    return named("Prompts", [{"prompts": 1, "tokens": count} for count in _TOKENS])


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
            f"The processor {processor.name!r} has no masks of prompts; expected {recipe.image_processor}. Correct "
            "`image_processor_type` in preprocessor_config.json."
        ]
    return []


TASK = Task(
    name=NAME,
    does="segment what points and boxes show",
    guide="images.md",
    role="vision",
    comparison=VALUES,
    reads="image",
    before=(
        Part(
            role="encoder",
            probe=None,
            tracing=_read,
            variant=_nothing,
            specializations=_prompts,
        ),
    ),
    auto_classes=("AutoModelForMaskGeneration",),
    suffixes=("SamModel",),
    shapes=IMAGE_SHAPES,
    probe=_look_once,
    tracing=_look,
    half=lambda model: model.vision_encoder,
    variant=whole_images.variant,
    specializations=whole_images.specializations("Images"),
    problems=_problems,
    session=lazy("qeff_zoo.tasks.mask_generation.session:MaskGenerationSession"),
    public=(
        "qeff_zoo.tasks.mask_generation.session:MaskGenerationSession",
        "qeff_zoo.tasks.mask_generation.session:EncodedImage",
        "qeff_zoo.tasks.mask_generation.prompts:MaskPrompt",
        "qeff_zoo.tasks.mask_generation.prompts:GeneratedMask",
    ),
    trial=lazy("qeff_zoo.tasks.mask_generation.trial:MaskTrial"),
    reference=lazy("qeff_zoo.tasks.mask_generation.reference:MaskReference"),
    commands=Commands(
        run=lazy("qeff_zoo.tasks.mask_generation.verbs:GenerateMasks"),
        run_options=("image", "point", "negative_point", "box"),
        outputs=(".png",),
    ),
    stages=whole_images.stages,
)
