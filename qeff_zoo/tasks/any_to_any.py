# SPDX-License-Identifier: Apache-2.0
"""The `any-to-any` contract: pictures, sounds and tokens in, the last valid position's logits and the states out.

Three programs: `vision` reads a picture, as for `image-text-to-text`, `audio` a sound, as for `audio-text-to-text`, and
`language` has the rows of both among its tokens. It is that of `image-text-to-text`: `image_embeds` has rows of sounds,
too, and what is added to the states after some layers is zero for those. Answers are texts.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import Recipe, Shape
from qeff_zoo.tasks.commands import (
    BENCH_GENERATION,
    DISAGGREGATED,
    GENERATION,
    GRAMMAR,
    PREFIX_CACHE,
    PROMPTS,
    SERVED_GENERATION,
    SPECULATION,
    Commands,
)

from . import ANY_TO_ANY, audio_text_to_text, image_text_to_text, lazy

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint

_SEES, _HEARS = image_text_to_text.TASK, audio_text_to_text.TASK


def _variant(
    checkpoint: "Checkpoint", recipe: Recipe, shape: Shape, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    of_both = (checkpoint, recipe, shape, chosen)
    return {**_SEES.variant(*of_both), **_HEARS.variant(*of_both)}


def _media(
    checkpoint: "Checkpoint", recipe: Recipe, shape: Shape, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    """Say what a recipe says of both: a sound may be read otherwise where a prompt has pictures."""
    found = _variant(checkpoint, recipe, shape, chosen)
    return {name: found[name] for name in ("images", "sounds")}


def _problems(checkpoint: "Checkpoint", recipe: Recipe, request: Request) -> list[str]:
    """Say what is wrong with a request; of adapters, that for pictures is on where a prompt has both."""
    of_pictures = _SEES.problems(checkpoint, recipe, request)
    return [*of_pictures, *audio_text_to_text.without_encoder(checkpoint, recipe)]


TASK = replace(
    _SEES,
    name=ANY_TO_ANY,
    before=(*_SEES.before, *(replace(part, variant=_media) for part in _HEARS.before)),
    auto_classes=("AutoModelForMultimodalLM",),
    variant=_variant,
    problems=_problems,
    session=lazy("qeff_zoo.runtime.any_to_any:AnyToAnySession"),
    trial=lazy("qeff_zoo.tasks.multimodal.trial:MediaTrial"),
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
        serve=lazy("qeff_zoo.serving.services:Generation"),
        serve_options=(*SERVED_GENERATION, *DISAGGREGATED, "allow_image_url"),
        bench="generation",
        bench_options=(*BENCH_GENERATION, "image", "audio"),
    ),
)
