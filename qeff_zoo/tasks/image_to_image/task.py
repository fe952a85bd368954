# SPDX-License-Identifier: Apache-2.0
"""The `image-to-image` contract: an image for each image, `upscale` times as large.

IN   pixel_values (batch_size, 3, height, width) f32    of any size, padded by the processor to multiples of a window
OUT  reconstruction (batch_size, 3, rows, columns)      colors from 0 to 1, with the padding; the session removes it
"""

from typing import TYPE_CHECKING, Any

from qeff_zoo import targets
from qeff_zoo.contract import Task, Tracing, lazy
from qeff_zoo.contract.commands import Commands
from qeff_zoo.contract.comparison import VALUES
from qeff_zoo.errors import ZooError
from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import IMAGE_SHAPES, Recipe
from qeff_zoo.tasks.images import own_sizes, whole_images

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint

#: Hub pipeline tag.
NAME = "image-to-image"
_WINDOW, _COLORS = 8, 3  # defaults of the configuration


def _tracing(model: Any, *, height: int, width: int, any_size: bool = False) -> Tracing:
    from qeff_zoo.tasks.image_to_image import tracing

    return tracing.describe(model, height=height, width=width)


def _problems(checkpoint: "Checkpoint", recipe: Recipe, request: Request) -> list[str]:
    """Return the problems of a checkpoint's colors and processor, and of a target with fixed sizes."""
    from qeff_zoo.media.families.swin2sr import divisor_of_windows
    from qeff_zoo.media.image_processor import read_image_processor

    target = targets.find(request.target or targets.NAMES[0])
    if target.static_shapes:
        return [
            f"Images of {checkpoint.name!r} keep their size, and programs of --target {target.name} have one size. "
            "Expected a target whose programs take any size; choose --target ort."
        ]
    if (colors := checkpoint.config.get("num_channels", _COLORS)) != _COLORS:
        return [
            f"{checkpoint.name!r} reads images of {colors} colors (`num_channels`); expected {_COLORS}. Build a model "
            "of colored images."
        ]
    try:
        processor = read_image_processor(checkpoint.companions, recipe.image_processor)
    except ZooError as error:
        return [str(error)]
    window = checkpoint.config.get("window_size", _WINDOW)
    if processor.name != recipe.image_processor:
        return [
            f"The processor {processor.name!r} does not pad images to windows; expected {recipe.image_processor}. "
            "Correct `image_processor_type` in preprocessor_config.json."
        ]
    if not processor.settings["do_pad"] or divisor_of_windows(processor.settings) % window:
        return [
            f"The processor pads images to multiples of {divisor_of_windows(processor.settings)} pixels (`do_pad`: "
            f"{processor.settings['do_pad']}), and the model has windows of {window}. Expected padding to whole "
            f"windows; set `do_pad` and `size_divisor` {window} in preprocessor_config.json."
        ]
    return []


TASK = Task(
    name=NAME,
    does="enlarge and restore images",
    guide="images.md",
    role="vision",
    comparison=VALUES,
    reads="image",
    auto_classes=("AutoModelForImageToImage",),
    suffixes=("ForImageSuperResolution",),
    shapes=IMAGE_SHAPES,
    probe=whole_images.run_once,
    tracing=_tracing,
    variant=own_sizes.variant,
    specializations=own_sizes.specializations("Image"),
    sized=own_sizes.sized,
    problems=_problems,
    session=lazy("qeff_zoo.tasks.image_to_image.session:ImageToImageSession"),
    public=(
        "qeff_zoo.tasks.image_to_image.session:ImageToImageSession",
        "qeff_zoo.tasks.image_to_image.session:Reconstruction",
    ),
    trial=lazy("qeff_zoo.tasks.image_to_image.trial:ImageToImageTrial"),
    reference=lazy("qeff_zoo.tasks.image_to_image.reference:ImageToImageReference"),
    commands=Commands(
        run=lazy("qeff_zoo.tasks.image_to_image.verbs:TransformImages"),
        run_options=("image",),
        outputs=(".png",),
        serve=lazy("qeff_zoo.tasks.image_to_image.service:Reconstructions"),
    ),
    stages=lazy("qeff_zoo.tasks.image_to_image.trial:stages"),
)
