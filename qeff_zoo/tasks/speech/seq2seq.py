# SPDX-License-Identifier: Apache-2.0
"""The `speech-seq2seq` contract: audio in, and tokens of the transcript out.

Two programs: `encoder` encodes audio once, `decoder` generates from its states, see
`qeff_zoo.export.tracing.encoder_decoder_tracing`. Checkpoints with alignment heads, which follow the audio, have a
third program, `alignment`, for word-level timestamps, see `qeff_zoo.tasks.speech.alignment_tracing`. A model takes
windows of one length, or audio of any length, by `AudioShape`. The Hub's tag is `automatic-speech-recognition`, as for
CTC models.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from qeff_zoo.contract import SPEECH_SEQ2SEQ, Part, Task, Tracing, lazy, named
from qeff_zoo.contract.commands import BENCH_SPEECH, TIMES, Commands
from qeff_zoo.contract.comparison import LOGITS
from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import WINDOW_SHAPES, AudioShape, Recipe, Shape, Speech
from qeff_zoo.tasks.speech.speech_settings import speech_problems, speech_warnings
from qeff_zoo.tasks.text_generation import task

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint


def _probe(model: Any) -> Any:
    from qeff_zoo.export.tracing import encoder_decoder_tracing

    return encoder_decoder_tracing.probe(model)


def _read(model: Any) -> Tracing:
    from qeff_zoo.export.tracing import encoder_decoder_tracing

    return encoder_decoder_tracing.read_source(model)


def _tracing(model: Any, *, speech: Any = None, **variant: Any) -> Tracing:
    from qeff_zoo.export.tracing import encoder_decoder_tracing

    return encoder_decoder_tracing.tracing(model, **variant)


def _variant(
    checkpoint: "Checkpoint", recipe: Recipe, shape: Shape, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        **({"continuous_batching": True} if shape.full_batch_size else {}),
        **({"speech": _prompt_settings(recipe.speech)} if recipe.speech else {}),
    }


def _prompt_settings(speech: Speech) -> dict[str, Any]:
    return {name: value for name, value in asdict(speech).items() if value}


def _align(model: Any, **variant: Any) -> Tracing:
    from . import alignment_tracing

    return alignment_tracing.tracing(model, **variant)


def _heads(checkpoint: "Checkpoint") -> list[list[int]]:
    """Return layer and head of each alignment head; empty if the checkpoint sets none."""
    heads = checkpoint.generation_config.get("alignment_heads") or []
    return [[int(layer), int(head)] for layer, head in heads]


def _heads_variant(
    checkpoint: "Checkpoint", recipe: Recipe, shape: Shape, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    return {"alignment_heads": _heads(checkpoint)}


def _whole(shape: Shape) -> list[dict[str, Any]]:
    return named("Alignment", [{"batch_size": 1, "seq_len": shape.ctx_len}])


def sources(shape: Shape) -> list[dict[str, Any]]:
    """Return the encoder's specializations: one row with several batch slots, since recordings join one by one."""
    rows = {"batch_size": 1 if shape.full_batch_size else shape.batch_size}
    lengths = [{"seq_len": length} for length in shape.seq_lens]
    return named("Encoder", [{**rows, **length} for length in lengths or [{}]])


def specializations(shape: Shape) -> list[dict[str, Any]]:
    """Return the specializations of text generation; for audio of any length, with states of the longest."""
    calls = task.TASK.specializations(shape)
    inputs = shape.inputs_per_row if isinstance(shape, AudioShape) else 1
    for one in calls if shape.seq_lens else ():
        one["symbols"]["encoder_ctx_len"] = str(-(-max(shape.seq_lens) // inputs))
    return calls


def _problems(checkpoint: "Checkpoint", recipe: Recipe, request: Request) -> list[str]:
    problems = task.not_alone("a transcript is short")(checkpoint, recipe, request)
    windows = _has_windows(recipe)
    problems += speech_problems(checkpoint.config, checkpoint.generation, windows)
    if not windows:
        return problems
    return [*problems, *task.of_one_length(checkpoint, request, "recordings in windows")]


def _has_windows(recipe: Recipe) -> bool:
    return not any(isinstance(shape, AudioShape) for shape in recipe.shapes.values())


TASK = Task(
    name=SPEECH_SEQ2SEQ,
    does="transcribe speech token by token",
    guide="speech.md",
    role="decoder",
    before=(
        Part(
            role="encoder",
            probe=_probe,
            tracing=_read,
            half=lambda model: model.get_encoder(),
            specializations=sources,
        ),
    ),
    beside=(
        Part(
            role="alignment",
            probe=None,
            tracing=_align,
            wanted=lambda checkpoint: bool(_heads(checkpoint)),
            variant=_heads_variant,
            specializations=_whole,
        ),
    ),
    tag="automatic-speech-recognition",
    comparison=LOGITS,
    reads="audio",
    auto_classes=("AutoModelForSpeechSeq2Seq",),
    suffixes=("ForConditionalGeneration",),
    shapes=WINDOW_SHAPES,
    probe=_probe,
    tracing=_tracing,
    half=lambda model: model.get_decoder(),
    variant=_variant,
    specializations=specializations,
    problems=_problems,
    generation_warnings=lambda generation, recipe: speech_warnings(
        generation, _has_windows(recipe)
    ),
    session=lazy("qeff_zoo.tasks.speech.seq2seq_session:SpeechSeq2SeqSession"),
    public=(
        "qeff_zoo.tasks.speech.seq2seq_session:SpeechSeq2SeqSession",
        "qeff_zoo.tasks.speech.transcription_options:TEMPERATURE_FALLBACK",
        "qeff_zoo.tasks.speech.transcription_options:TranscriptionOptions",
    ),
    trial=lazy("qeff_zoo.tasks.speech.trial:SpeechSeq2SeqTrial"),
    reference=lazy("qeff_zoo.tasks.speech.reference:SpeechReference"),
    commands=Commands(
        run=lazy("qeff_zoo.tasks.speech.verbs:TranscribeByTokens"),
        run_options=(
            "audio",
            "prompt",
            "prompts_file",
            "language",
            "target_language",
            "translate",
            "temperature_fallback",
            "temperature",
            "seed",
            "generation_len",
            *TIMES,
        ),
        serve=lazy("qeff_zoo.tasks.speech.service:Transcriptions"),
        serve_paths=("/v1/audio/transcriptions", "/v1/audio/translations"),
        bench="speech",
        bench_options=(*BENCH_SPEECH, "generation_len", "language"),
    ),
    stages=task.TASK.stages,
)
