# SPDX-License-Identifier: Apache-2.0
"""Sample audio through a package that transcribes: by a label for each audio frame, or token by token."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qeff_zoo.tasks.speech.ctc_session import CtcSession
from qeff_zoo.tasks.speech.seq2seq_session import SpeechSeq2SeqSession
from qeff_zoo.tasks.text_generation.trial import DecoderTrial
from qeff_zoo.validation.judgement.parity import Array
from qeff_zoo.validation.trial import cases, sample_audio
from qeff_zoo.validation.trial.package_runner import Key, Trial, TrialContext


class CtcTrial:
    """Runs a CTC model on sample audio.

    Args:
        session: Session of the package.
    """

    def __init__(self, session: CtcSession) -> None:
        self.session = session

    def call_once(self) -> None:
        """Run the shortest audio of the package."""
        self.session.run(sample_audio.draw([self.session.sizes.seq_lens[0]], self.session))

    def run(self, context: TrialContext) -> Trial:
        """Run every stage."""
        session = self.session
        stages, lengths = context.task.stages()(session.sizes)
        recordings = sample_audio.draw(lengths, session)
        positions: list[list[int]] = [[] for _ in recordings]
        answers: dict[str, Array] = {}
        keys: dict[str, list[Key]] = {}
        for stage in stages:
            outputs: list[Array] = []
            keys[stage.name] = []
            for call in stage.calls:
                got = session.run([recordings[number] for number in call.sequences], call.seq_len)
                for number, frames in zip(call.sequences, got, strict=True):
                    positions[number] = list(range(len(frames)))
                    keys[stage.name] += [(number, index, 0) for index in positions[number]]
                    outputs.append(frames)
                context.step(1)
            answers[stage.name] = np.concatenate(outputs)
        return Trial(
            sequences=[[length] for length in lengths],
            positions=positions,
            keys=keys,
            answers=answers,
            runs=[],
            recordings=recordings,
        )


class SpeechSeq2SeqTrial(DecoderTrial):
    """Runs an encoder and a decoder on sample audio.

    Args:
        session: Session of the package.
    """

    session: SpeechSeq2SeqSession

    def call_once(self) -> None:
        """Transcribe silence to one token."""
        session = self.session
        session.generate(np.zeros((session.frames, *session.input_shape), np.float32), [0], 1)

    def draw(self, stages: Sequence[cases.Stage]) -> None:
        """Set the stages, the tokens of each sequence, and its audio."""
        super().draw(stages)
        lengths = _lengths(self.session, len(self.sequences))
        self._windows = sample_audio.draw(lengths, self.session)

    def begin(self, spans: Sequence[cases.Span]) -> None:
        """Encode the audio of sequences that begin."""
        self.session.listen({span.row: self._windows[span.sequence] for span in spans})

    def source_length(self, row: int) -> int:
        """Return how many encoder outputs a row attends to."""
        return self.session.sources.lengths[row]

    def continued(self, prompt: list[int], length: int) -> list[int]:
        """Continue the first sequence greedily; the last token of the context is not run."""
        length = min(length, self.session.decoder.sizes.ctx_len - len(prompt) + 1)
        return self.session.generate(self._windows[0], prompt, length)

    def about(self) -> Mapping[str, Any]:
        """Return the audio as the reference takes it."""
        return {"recordings": [self.session.as_given(window) for window in self._windows]}


def _lengths(session: SpeechSeq2SeqSession, count: int) -> list[int]:
    """Return the lengths of audio: windows, or the longest length and fractions of it in turn."""
    if not session.sources.any_length:
        return [session.frames] * count
    return [session.frames // (1 + number % 3) for number in range(count)]
