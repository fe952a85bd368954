# SPDX-License-Identifier: Apache-2.0
"""The `automatic-speech-recognition` contract of models with a label for each audio frame (CTC).

See `qeff_zoo.export.tracing.ctc_tracing` for inputs and outputs.
"""

from typing import TYPE_CHECKING, Any

from qeff_zoo.contract import SPEECH_RECOGNITION, Task, Tracing, lazy
from qeff_zoo.contract.commands import BENCH_SPEECH, TIMES, Commands
from qeff_zoo.contract.comparison import SCORES
from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import AUDIO_SHAPES, LEAST_SAMPLES, Recipe
from qeff_zoo.tasks.encoders import whole_texts

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint


#: Field of the config with the strides of convolutions over samples.
_CONVOLUTIONS = "conv_stride"


def _run_once(model: Any) -> None:
    from qeff_zoo.export.tracing import ctc_tracing

    ctc_tracing.run_once(model)


def _tracing(model: Any) -> Tracing:
    from qeff_zoo.export.tracing import ctc_tracing

    return ctc_tracing.tracing(model)


def _problems(checkpoint: "Checkpoint", recipe: Recipe, request: Request) -> list[str]:
    problems, shortest = list[str](), min(request.seq_lens or [LEAST_SAMPLES])
    if checkpoint.config.get("add_adapter"):
        problems.append(
            f"{checkpoint.name!r} has an adapter behind its encoder (`add_adapter` in config.json), which mixes the "
            "end of a recording with what lies behind it. Expected a model without; use another checkpoint."
        )
    if _CONVOLUTIONS in checkpoint.config and shortest < LEAST_SAMPLES:
        problems.append(
            f"--seq-lens has {shortest}, but {checkpoint.name!r} reads samples, and takes at least "
            f"{LEAST_SAMPLES:,}. Choose more."
        )
    return problems


TASK = Task(
    name=SPEECH_RECOGNITION,
    does="transcribe speech by CTC",
    guide="speech.md",
    role="encoder",
    comparison=SCORES,
    by_token=True,
    reads="audio",
    auto_classes=("AutoModelForCTC",),
    suffixes=("ForCTC",),
    shapes=AUDIO_SHAPES,
    probe=_run_once,
    tracing=_tracing,
    specializations=whole_texts.specializations("Audio"),
    problems=_problems,
    session=lazy("qeff_zoo.tasks.speech.ctc_session:CtcSession"),
    public=(
        "qeff_zoo.tasks.speech.ctc_session:CtcSession",
        "qeff_zoo.tasks.speech.speech_results:Segment",
        "qeff_zoo.tasks.speech.speech_results:TimedText",
        "qeff_zoo.tasks.speech.speech_results:Transcription",
    ),
    trial=lazy("qeff_zoo.tasks.speech.trial:CtcTrial"),
    reference=lazy("qeff_zoo.tasks.speech.reference:CtcReference"),
    commands=Commands(
        run=lazy("qeff_zoo.tasks.speech.verbs:TranscribeByLabels"),
        run_options=("audio", *TIMES),
        serve=lazy("qeff_zoo.tasks.speech.service:Transcriptions"),
        serve_paths=("/v1/audio/transcriptions", "/v1/audio/translations"),
        bench="speech",
        bench_options=BENCH_SPEECH,
    ),
    stages=lazy("qeff_zoo.validation.trial.cases:audio_stages"),
)
