# SPDX-License-Identifier: Apache-2.0
"""The `audio-text-to-text` contract: audio and tokens in, the last valid position's logits and the states out.

Two programs: `audio` encodes a window of audio once, `language` takes its feature rows among the tokens. See
`audio_encoder_tracing` and `language_tracing` of this folder for inputs and outputs.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from qeff_zoo.contract import AUDIO_TEXT_TO_TEXT, Part, Tracing, lazy, named
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
from qeff_zoo.multimodal.manifest import audio_of, entry_of, images_of
from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import Recipe, Shape
from qeff_zoo.tasks.text_generation import task

from . import image_text_to_text

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint


_BLOCKS, _WINDOWS = 8, 107
_GROUPS = 500


def _read_window(
    model: Any, *, audio: Mapping[str, Any], images: Mapping[str, Any] | None = None
) -> Tracing:
    traced: Tracing = audio_of(audio).trace(model, images_of(images) if images else None)
    return traced


def _audio(
    checkpoint: "Checkpoint", recipe: Recipe, shape: Shape, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    assert recipe.audio is not None
    return {"audio": entry_of(image_text_to_text.of_checkpoint(checkpoint, recipe.audio))}


def _variant(
    checkpoint: "Checkpoint", recipe: Recipe, shape: Shape, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        **task.TASK.variant(checkpoint, recipe, shape, chosen),
        **_audio(checkpoint, recipe, shape, chosen),
    }


def without_encoder(checkpoint: "Checkpoint", recipe: Recipe) -> list[str]:
    """Return a problem if a checkpoint of a multimodal type has no audio encoder."""
    if checkpoint.model_config.get("audio_config", ()) is not None:
        return []
    return [
        f"{checkpoint.name!r} has no audio encoder (`audio_config` of its config.json is null); expected one, as "
        f"other checkpoints of {recipe.model_type!r} have it. Choose one of those, or another --task."
    ]


def _problems(checkpoint: "Checkpoint", recipe: Recipe, request: Request) -> list[str]:
    of_adapters = image_text_to_text.problems("recordings", checkpoint, recipe, request)
    return [*of_adapters, *without_encoder(checkpoint, recipe)]


def _windows(shape: Shape) -> list[dict[str, Any]]:
    # Blocks are of a program for audio of any length: 8 of them are 32 seconds of Granite Speech. Groups are of frames:
    # 500 of them are 40 seconds, and one span, of Phi-4 multimodal.
    blocks = {"blocks": _BLOCKS, "windows": _WINDOWS}
    groups = {"groups": _GROUPS, "spans": 1, "width": _GROUPS}
    return named("Window", [{"batch_size": 1, **blocks, **groups}])


TASK = replace(
    image_text_to_text.TASK,
    name=AUDIO_TEXT_TO_TEXT,
    does="answer about audio",
    guide="audio.md",
    before=(
        Part(
            role="audio",
            probe=None,
            tracing=_read_window,
            variant=_audio,
            specializations=_windows,
        ),
    ),
    auto_classes=("AutoModelForMultimodalLM", "AutoModelForSeq2SeqLM"),
    variant=_variant,
    specializations=partial(image_text_to_text.specializations, "audio_rows"),
    problems=_problems,
    session=lazy("qeff_zoo.tasks.multimodal.audio_text_session:AudioTextToTextSession"),
    trial=lazy("qeff_zoo.tasks.multimodal.trial:AudioTrial"),
    commands=Commands(
        run=lazy("qeff_zoo.tasks.multimodal.verbs:GenerateWithMedia"),
        run_options=(
            *PROMPTS,
            *GENERATION,
            *GRAMMAR,
            *SPECULATION,
            *PREFIX_CACHE,
            "adapter",
            "audio",
        ),
        chat_options=DECODER_CONVERSATION,
        serve=lazy("qeff_zoo.tasks.text_generation.service:Generation"),
        serve_options=(*SERVED_GENERATION, *DISAGGREGATED),
        bench="generation",
        bench_options=(*BENCH_GENERATION, "audio"),
    ),
)
