# SPDX-License-Identifier: Apache-2.0
"""The `image-text-embedding` contract: images and tokens in, the state of the last token out.

The programs are those of `image-text-to-text`, without an output head and without decode calls; long prompts take
several calls. See `qeff_zoo.multimodal.tracing.embedding_tracing` for the output.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from qeff_zoo.contract import FEATURE_EXTRACTION, IMAGE_TEXT_EMBEDDING, Default, Tracing, lazy
from qeff_zoo.contract.commands import PROMPTS, Commands
from qeff_zoo.contract.comparison import EMBEDDINGS
from qeff_zoo.multimodal.manifest import images_of
from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import Recipe, Shape
from qeff_zoo.tasks.encoders import feature_extraction

from . import image_text_to_text

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint

_GENERATES = image_text_to_text.TASK
_LAST = "lasttoken"


def _tracing(model: Any, *, images: Mapping[str, Any], **variant: Any) -> Tracing:
    from qeff_zoo.multimodal.tracing import embedding_tracing

    return embedding_tracing.tracing(model, images=images_of(images), **variant)


def _variant(
    checkpoint: "Checkpoint", recipe: Recipe, shape: Shape, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    pooled = {name: chosen[name] for name in ("pooling", "normalize")}
    return {**_GENERATES.variant(checkpoint, recipe, shape, chosen), **pooled}


def _defaults(checkpoint: "Checkpoint") -> Mapping[str, Default]:
    """Return pooling and normalization of modules.json; without it those of the published models."""
    if feature_extraction.TASK.companion in checkpoint.companions:
        return feature_extraction.TASK.defaults(checkpoint)
    return {"pooling": (_LAST, "default"), "normalize": (True, "default")}


def _specializations(shape: Shape) -> list[dict[str, Any]]:
    return image_text_to_text.specializations("image_rows", replace(shape, prefill_only=True))


def _problems(checkpoint: "Checkpoint", recipe: Recipe, request: Request) -> list[str]:
    problems = image_text_to_text.problems("images", checkpoint, recipe, request)
    pooling = request.pooling or _defaults(checkpoint)["pooling"][0]
    if pooling != _LAST:
        problems.append(
            f"--pooling is {pooling!r}, and a decoder embeds a prompt by its last token; expected {_LAST!r}. Give "
            f"--pooling {_LAST}, or build the language model alone for {FEATURE_EXTRACTION}."
        )
    drafts = [name for name in ("num_speculative_tokens", "draft_heads") if getattr(request, name)]
    problems += [
        f"--{name.replace('_', '-')} is for text generation, and the package embeds. Leave it out."
        for name in (*drafts, *(["decode_only"] if request.decode_only else []))
    ]
    return problems


TASK = replace(
    _GENERATES,
    name=IMAGE_TEXT_EMBEDDING,
    does="embed texts and images",
    guide="embeddings.md",
    tag=FEATURE_EXTRACTION,
    comparison=EMBEDDINGS,
    auto_classes=("AutoModel",),
    has_head=False,
    companion=feature_extraction.TASK.companion,
    beside=tuple(part for part in _GENERATES.beside if part.role == "frames"),
    tracing=_tracing,
    variant=_variant,
    specializations=_specializations,
    defaults=_defaults,
    problems=_problems,
    session=lazy(
        "qeff_zoo.tasks.multimodal.image_text_embedding_session:ImageTextEmbeddingSession"
    ),
    trial=lazy("qeff_zoo.tasks.multimodal.trial:EmbeddingTrial"),
    reference=lazy("qeff_zoo.tasks.multimodal.embedding_reference:EmbeddingReference"),
    commands=Commands(
        run=lazy("qeff_zoo.tasks.multimodal.verbs:EmbedWithMedia"),
        run_options=(*PROMPTS, "chat", "adapter", "image"),
        serve=lazy("qeff_zoo.tasks.multimodal.embedding_service:PromptEmbeddings"),
        serve_paths=("/v1/embeddings",),
        serve_options=("allow_image_url",),
    ),
)
