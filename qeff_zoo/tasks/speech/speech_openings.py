# SPDX-License-Identifier: Apache-2.0
"""Preparation of recordings: samples or features in, a `Recording` for the windows of a session out."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.media.audio import OpenedAudio, decoding
from qeff_zoo.media.features import Features
from qeff_zoo.media.steps import Steps
from qeff_zoo.runtime.decoding.encoder_inputs import Sources
from qeff_zoo.runtime.program import Array
from qeff_zoo.runtime.text.tokenizer import Tokenizer
from qeff_zoo.tasks.speech.speech_tokens import SpeechTokens
from qeff_zoo.tasks.speech.speech_windows import Recording
from qeff_zoo.tasks.speech.transcription_options import TranscriptionOptions

_LEAST = 0.1  # seconds, for audio of any length


class Transcriber(Protocol):
    """Session for which a recording is prepared, such as `SpeechSeq2SeqSession`."""

    sources: Sources
    features: Features
    tokenizer: Tokenizer | None
    tokens: SpeechTokens

    @property
    def rate(self) -> int:
        """Sampling rate, in samples per second."""

    @property
    def frames(self) -> int:
        """Number of frames of a window."""

    @property
    def seconds(self) -> float:
        """Duration of a window."""

    def language_token(self, language: str | None) -> int | None:
        """Return the token of a language."""


def recording_of(
    session: Transcriber,
    audio: OpenedAudio,
    choices: TranscriptionOptions,
    prompt: Sequence[int],
) -> Steps[Recording]:
    """Decode a recording and compute its features, in steps."""
    # A window includes silence; a click is too short for a frame of the encoder.
    any_length = session.sources.any_length
    least = int(_LEAST * session.rate) if any_length else session.frames * session.features.step
    samples = yield from decoding(audio, session.rate)
    length = len(samples)
    if length < least:
        samples = np.pad(samples, (0, least - length))
    parts = []
    for part in session.features.cut(samples):
        parts.append((yield from session.features.computing(part)))
        yield
    return begun(session, parts, choices, prompt, length / session.rate)


def begun(
    session: Transcriber,
    parts: Sequence[Array],
    choices: TranscriptionOptions,
    prompt: Sequence[int],
    seconds: float | None = None,
) -> Recording:
    """Return a recording of given features, one array per piece; its duration defaults to that of the features."""
    assert session.tokenizer is not None
    samples = parts[0] if len(parts) == 1 else np.concatenate(parts)
    longest = max(map(len, parts))
    if session.sources.any_length and longest > session.frames:
        raise GenerationError(
            f"The recording has {longest * session.features.step / session.rate:,.1f} seconds; expected at most "
            f"{session.seconds:,.1f}, the largest of the package's seq_lens. Cut it, or build the package with a "
            "larger --seq-lens."
        )
    recording = Recording(
        samples,
        seconds=len(samples) * session.features.step / session.rate if seconds is None else seconds,
        frames=len(samples) if session.sources.any_length else session.frames,
        choices=choices,
        tokens=session.tokens,
        prompt=prompt,
        decode=session.tokenizer.decode,
        step=session.features.step / session.rate,
        ends=np.cumsum([*map(len, parts)]).tolist() if len(parts) > 1 else (),
    )
    recording.language = session.language_token(choices.language)
    if recording.has_timestamps:
        session.tokens.beginning(
            recording.language, choices.task, times=True, target=choices.target_language
        )
    elif not session.sources.any_length and len(recording) > session.frames:
        raise GenerationError(
            f"The recording has {recording.seconds:,.0f} seconds; expected at most {session.seconds:,.0f} without "
            "timestamps, by which a longer one is cut. Request timestamps, or cut it."
        )
    return recording
