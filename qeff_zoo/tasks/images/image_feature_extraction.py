# SPDX-License-Identifier: Apache-2.0
"""The `image-feature-extraction` contract: one embedding per image.

IN   pixel_values: see `qeff_zoo.tasks.images.whole_images`
OUT  output (batch_size, hidden)    the model's own summary of an image, for CLIP in the space of its texts; or its
                                    last states pooled as configured; normalized on request
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from qeff_zoo.contract import IMAGE_FEATURE_EXTRACTION, Default, Task, Tracing, lazy
from qeff_zoo.contract.commands import Commands
from qeff_zoo.contract.comparison import EMBEDDINGS
from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import IMAGE_SHAPES, Recipe, Shape

from . import whole_images

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint


def _tracing(
    model: Any, *, height: int, width: int, pooling: str | None = None, normalize: bool = False
) -> Tracing:
    from qeff_zoo.tasks.images.image_tracing import Embed

    module = Embed(model, pooling, normalize)
    return whole_images.describe(model, module, "output", height=height, width=width)


def _variant(
    checkpoint: "Checkpoint", recipe: Recipe, shape: Shape, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    settings = {name: chosen[name] for name in ("pooling", "normalize") if name in chosen}
    return {**whole_images.variant(checkpoint, recipe, shape, chosen), **settings}


def _defaults(checkpoint: "Checkpoint") -> Mapping[str, Default]:
    return {"normalize": (False, "default")}


def _problems(checkpoint: "Checkpoint", recipe: Recipe, request: Request) -> list[str]:
    problems = whole_images.problems(checkpoint, recipe, request)
    if request.pooling in ("lasttoken", "none"):
        problems.append(
            f"--pooling {request.pooling} is for texts; expected mean, max or cls for images. Choose one, or leave it "
            "out for what the model itself makes."
        )
    return problems


TASK = Task(
    name=IMAGE_FEATURE_EXTRACTION,
    does="embed images",
    guide="images.md",
    role="vision",
    comparison=EMBEDDINGS,
    reads="image",
    auto_classes=("AutoModel",),
    suffixes=("Model",),
    has_head=False,
    shapes=IMAGE_SHAPES,
    probe=whole_images.run_once,
    tracing=_tracing,
    variant=_variant,
    specializations=whole_images.specializations("Embedding"),
    defaults=_defaults,
    problems=_problems,
    session=lazy("qeff_zoo.tasks.images.session:ImageEmbeddingSession"),
    public=("qeff_zoo.tasks.images.session:ImageEmbeddingSession",),
    trial=lazy("qeff_zoo.tasks.images.trial:ImageTrial"),
    reference=lazy("qeff_zoo.tasks.images.reference:ImageReference"),
    commands=Commands(
        run=lazy("qeff_zoo.tasks.images.verbs:EmbedImages"),
        run_options=("image",),
        serve=lazy("qeff_zoo.tasks.images.service:ImageEmbeddings"),
        serve_paths=("/v1/embeddings",),
        serve_options=("allow_image_url",),
    ),
    stages=whole_images.stages,
)
