# SPDX-License-Identifier: Apache-2.0
"""The `zero-shot-image-classification` contract: images and texts in, embeddings in one space out.

Two programs: `vision` encodes images, `encoder` encodes texts. The score of an image and a text is their cosine with a
scale and, for models that were trained on pairs, a bias. See `qeff_zoo.tasks.images.text_matching_tracing`.

IN   pixel_values: see `qeff_zoo.tasks.images.whole_images`
OUT  output (batch_size, hidden)    of length 1
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from qeff_zoo.contract import ZERO_SHOT, Part, Tracing, lazy
from qeff_zoo.contract.commands import Commands
from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import Recipe, Shape

from . import image_feature_extraction, whole_images

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint


def _see(model: Any, *, height: int, width: int) -> Tracing:
    from qeff_zoo.tasks.images.image_tracing import Embed

    module = Embed(model, None, normalize=True)
    return whole_images.describe(model, module, "output", height=height, width=width)


def _read_once(model: Any) -> None:
    from . import text_matching_tracing

    text_matching_tracing.run_once(model)


def _read(model: Any) -> Tracing:
    from . import text_matching_tracing

    return text_matching_tracing.tracing(model)


def _nothing(
    checkpoint: "Checkpoint", recipe: Recipe, shape: Shape, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    return {}


def _problems(checkpoint: "Checkpoint", recipe: Recipe, request: Request) -> list[str]:
    problems = whole_images.problems(checkpoint, recipe, request)
    if request.pooling is not None:
        problems.append(
            f"--pooling {request.pooling} does not apply: images and texts meet in the space that the model was "
            "trained for. Leave it out, or build for --task image-feature-extraction."
        )
    return problems


TASK = replace(
    image_feature_extraction.TASK,
    name=ZERO_SHOT,
    does="match images with labels",
    guide="images.md",
    before=(
        Part(
            role="encoder",
            probe=_read_once,
            tracing=_read,
            half=lambda model: model.text_model,
            variant=_nothing,
            specializations=whole_images.specializations("Texts"),
        ),
    ),
    # For a model with both encoders; its own automatic class creates the same.
    auto_classes=("AutoModelForZeroShotImageClassification", "AutoModel"),
    suffixes=("CLIPModel", "SiglipModel"),
    tracing=_see,
    half=lambda model: model.vision_model,
    variant=whole_images.variant,
    defaults=lambda checkpoint: {},
    problems=_problems,
    session=lazy("qeff_zoo.tasks.images.zero_shot_session:ZeroShotSession"),
    public=("qeff_zoo.tasks.images.zero_shot_session:ZeroShotSession",),
    trial=lazy("qeff_zoo.tasks.images.trial:ZeroShotTrial"),
    commands=Commands(
        run=lazy("qeff_zoo.tasks.images.verbs:MatchImages"),
        run_options=("image", "label"),
        serve=lazy("qeff_zoo.tasks.images.service:ImageEmbeddings"),
        serve_paths=("/v1/embeddings",),
        serve_options=("allow_image_url",),
    ),
)
