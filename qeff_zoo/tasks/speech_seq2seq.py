# SPDX-License-Identifier: Apache-2.0
"""The `speech-seq2seq` contract: a window of sound in, and tokens of what was said, one after the other.

Two programs: `encoder` reads a window once, `decoder` writes of what came of it. See `qeff_zoo.tasks.crossing` for
inputs and outputs. The Hub's tag is `automatic-speech-recognition`, as of models that label frames.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from qeff_zoo.recipe import WINDOW_SHAPES, Recipe, Shape
from qeff_zoo.tasks import SPEECH_SEQ2SEQ, Part, Task, Tracing, named, text_generation

if TYPE_CHECKING:
    from qeff_zoo.checkpoint import Checkpoint


def _probe(model: Any) -> Any:
    from qeff_zoo.tasks import crossing

    return crossing.probe(model)


def _read(model: Any) -> Tracing:
    from qeff_zoo.tasks import crossing

    return crossing.read_source(model)


def _tracing(model: Any, **variant: Any) -> Tracing:
    from qeff_zoo.tasks import crossing

    return crossing.tracing(model, **variant)


def _variant(
    checkpoint: "Checkpoint", recipe: Recipe, shape: Shape, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    return {"continuous_batching": True} if shape.full_batch_size else {}


def _windows(shape: Shape) -> list[dict[str, Any]]:
    """A window joins when a row is free, so that of several slots each is read alone."""
    return named("Encoder", [{"batch_size": 1 if shape.full_batch_size else shape.batch_size}])


def _session() -> Any:
    from qeff_zoo.runtime.speech_seq2seq import SpeechSeq2SeqSession

    return SpeechSeq2SeqSession


TASK = Task(
    name=SPEECH_SEQ2SEQ,
    role="decoder",
    before=(
        Part(
            role="encoder",
            probe=_probe,
            tracing=_read,
            half=lambda model: model.get_encoder(),
            specializations=_windows,
        ),
    ),
    answers="logits",
    reads="sound",
    auto_classes=("AutoModelForSpeechSeq2Seq",),
    suffixes=("ForConditionalGeneration",),
    shapes=WINDOW_SHAPES,
    probe=_probe,
    tracing=_tracing,
    half=lambda model: model.get_decoder(),
    variant=_variant,
    specializations=text_generation.TASK.specializations,
    problems=text_generation.not_alone(
        "a window of sound has one length, and few tokens", "seq_lens"
    ),
    session=_session,
    stages=text_generation.TASK.stages,
)
