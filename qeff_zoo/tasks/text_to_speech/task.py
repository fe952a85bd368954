# SPDX-License-Identifier: Apache-2.0
"""The `text-to-speech` contract: a text in, samples out.

Two programs: `encoder` returns the duration of each token and the priors of its frames, `audio` makes samples of
frames. See `qeff_zoo.tasks.text_to_speech.vits_tracing` for inputs and outputs.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from qeff_zoo.contract import Part, Task, Tracing, lazy, named
from qeff_zoo.contract.commands import PROMPTS, Commands
from qeff_zoo.contract.comparison import VALUES
from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import ENCODER_SHAPES, Recipe, Shape
from qeff_zoo.tasks.encoders import whole_texts

if TYPE_CHECKING:
    from qeff_zoo.checkpoint.opening import Checkpoint

#: Hub pipeline tag.
NAME = "text-to-speech"
#: Frames of a program with fixed shapes for each token that it reads; spoken text has about two.
FRAMES_PER_TOKEN = 4
#: Least tokens of a program: relative positions of fewer have a branch of their own in transformers.
LEAST_TOKENS = 8


def _encoder(model: Any) -> Tracing:
    from . import vits_tracing

    return vits_tracing.encoder_tracing(model)


def _audio(model: Any) -> Tracing:
    from . import vits_tracing

    return vits_tracing.audio_tracing(model)


def _run_once(model: Any) -> None:
    from . import vits_tracing

    vits_tracing.run_once(model)


def _audio_specializations(shape: Shape) -> list[dict[str, Any]]:
    sizes = [
        {"batch_size": shape.batch_size, "seq_len": FRAMES_PER_TOKEN * seq_len}
        for seq_len in shape.seq_lens
    ]
    return named("Frames", sizes)


def _problems(checkpoint: "Checkpoint", recipe: Recipe, request: Request) -> list[str]:
    config, problems = checkpoint.config, list[str]()
    if (shortest := min(request.seq_lens or [LEAST_TOKENS])) < LEAST_TOKENS:
        problems.append(
            f"--seq-lens has {shortest}, but a text has at least {LEAST_TOKENS} tokens for a program. Choose more."
        )
    pairs = zip(
        config.get("upsample_kernel_sizes", ()), config.get("upsample_rates", ()), strict=False
    )
    if odd := [pair for pair in pairs if pair[0] < pair[1] or (pair[0] - pair[1]) % 2]:
        problems.append(
            f"{checkpoint.name!r} has an upsampling kernel of {odd[0][0]} for the rate {odd[0][1]}; expected one that "
            "exceeds its rate by an even number, so that each frame has as many samples. Use another checkpoint."
        )
    window = config.get("window_size", 4)
    if not isinstance(window, int) or not 0 < window <= LEAST_TOKENS - 2:
        problems.append(
            f"{checkpoint.name!r} has the window_size {window!r}; expected 1 to {LEAST_TOKENS - 2}. Use another "
            "checkpoint."
        )
    return problems


_specializations: Callable[[Shape], list[dict[str, Any]]] = whole_texts.specializations("Text")

TASK = Task(
    name=NAME,
    does="speak texts",
    guide="text-to-speech.md",
    role="encoder",
    comparison=VALUES,
    before=(
        Part(
            role="audio",
            probe=None,
            tracing=_audio,
            specializations=_audio_specializations,
        ),
    ),
    auto_classes=("AutoModelForTextToWaveform",),
    suffixes=("VitsModel",),
    shapes=ENCODER_SHAPES,
    reads_characters=True,
    probe=_run_once,
    tracing=_encoder,
    specializations=_specializations,
    problems=_problems,
    session=lazy("qeff_zoo.tasks.text_to_speech.session:TextToSpeechSession"),
    public=(
        "qeff_zoo.tasks.text_to_speech.session:TextToSpeechSession",
        "qeff_zoo.tasks.text_to_speech.speech:Speech",
        "qeff_zoo.tasks.text_to_speech.speech:SpeechOptions",
    ),
    trial=lazy("qeff_zoo.tasks.text_to_speech.trial:SpeechTrial"),
    reference=lazy("qeff_zoo.tasks.text_to_speech.reference:SpeechReference"),
    commands=Commands(
        run=lazy("qeff_zoo.tasks.text_to_speech.verbs:SpeakTexts"),
        run_options=(*PROMPTS, "seed", "speed", "voice"),
        outputs=(".wav", ".flac", ".mp3", ".opus"),
        serve=lazy("qeff_zoo.tasks.text_to_speech.service:Voices"),
        serve_paths=("/v1/audio/speech",),
    ),
    stages=lazy("qeff_zoo.validation.trial.cases:encoder_stages"),
)
