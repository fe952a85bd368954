# SPDX-License-Identifier: Apache-2.0
"""The `any-to-any` contract: images, audio and tokens in, the last valid position's logits and the states out.

Three programs: `vision` encodes an image, as for `image-text-to-text`, `audio` encodes audio, as for
`audio-text-to-text`, and `language` takes the feature rows of both among its tokens. It is that of
`image-text-to-text`: `image_embeds` has the rows of audio, too, and the deepstack features added after some layers are
zero for these. The output is text.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from qeff_zoo.contract import ANY_TO_ANY, lazy
from qeff_zoo.contract.commands import (
    BENCH_GENERATION,
    DECODER_CONVERSATION,
    DISAGGREGATED,
    GENERATION,
    GRAMMAR,
    PREFIX_CACHE,
    PROMPTS,
    SERVED_GENERATION,
    SPECULATION,
    Commands,
)
from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import Recipe, Shape

from . import audio_text_to_text, image_text_to_text

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint

_IMAGES, _AUDIO = image_text_to_text.TASK, audio_text_to_text.TASK


def _variant(
    checkpoint: "Checkpoint", recipe: Recipe, shape: Shape, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    of_both = (checkpoint, recipe, shape, chosen)
    return {**_IMAGES.variant(*of_both), **_AUDIO.variant(*of_both)}


def _media(
    checkpoint: "Checkpoint", recipe: Recipe, shape: Shape, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the recipe's variant of both inputs: an audio encoder may differ if a prompt has images."""
    variant = _variant(checkpoint, recipe, shape, chosen)
    return {name: variant[name] for name in ("images", "audio")}


def _problems(checkpoint: "Checkpoint", recipe: Recipe, request: Request) -> list[str]:
    """Return the problems of a request; for prompts with both inputs the adapter for images applies."""
    of_images = _IMAGES.problems(checkpoint, recipe, request)
    return [*of_images, *audio_text_to_text.without_encoder(checkpoint, recipe)]


TASK = replace(
    _IMAGES,
    name=ANY_TO_ANY,
    does="answer about images and audio in one prompt",
    guide="vision-language.md",
    before=(*_IMAGES.before, *(replace(part, variant=_media) for part in _AUDIO.before)),
    auto_classes=("AutoModelForMultimodalLM",),
    variant=_variant,
    problems=_problems,
    session=lazy("qeff_zoo.tasks.multimodal.any_to_any_session:AnyToAnySession"),
    trial=lazy("qeff_zoo.tasks.multimodal.trial:AnyToAnyTrial"),
    commands=Commands(
        run=lazy("qeff_zoo.tasks.multimodal.verbs:GenerateWithMedia"),
        run_options=(
            *PROMPTS,
            *GENERATION,
            *GRAMMAR,
            *SPECULATION,
            *PREFIX_CACHE,
            "adapter",
            "image",
            "video",
            "audio",
        ),
        chat_options=DECODER_CONVERSATION,
        serve=lazy("qeff_zoo.tasks.text_generation.service:Generation"),
        serve_options=(*SERVED_GENERATION, *DISAGGREGATED, "allow_image_url"),
        bench="generation",
        bench_options=(*BENCH_GENERATION, "image", "audio"),
    ),
)
