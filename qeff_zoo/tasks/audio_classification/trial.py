# SPDX-License-Identifier: Apache-2.0
"""Sample audio through a package that classifies recordings."""

import numpy as np

from qeff_zoo.tasks.audio_classification.session import AudioClassificationSession
from qeff_zoo.validation.judgement.parity import Array
from qeff_zoo.validation.trial import sample_audio
from qeff_zoo.validation.trial.package_runner import Key, Trial, TrialContext


class AudioTrial:
    """Runs an audio classifier on sample audio.

    Args:
        session: Session of the package.
    """

    def __init__(self, session: AudioClassificationSession) -> None:
        self.session = session

    def call_once(self) -> None:
        """Run the shortest audio of the package."""
        self.session.run(sample_audio.draw([self.session.sizes.seq_lens[0]], self.session))

    def run(self, context: TrialContext) -> Trial:
        """Run every stage."""
        session = self.session
        stages, lengths = context.task.stages()(session.sizes)
        recordings = sample_audio.draw(lengths, session)
        answers: dict[str, Array] = {}
        keys: dict[str, list[Key]] = {}
        for stage in stages:
            numbers = [number for call in stage.calls for number in call.sequences]
            outputs = []
            for call in stage.calls:
                outputs += [
                    *session.run(
                        [recordings[sequence] for sequence in call.sequences], call.seq_len
                    )
                ]
                context.step(1)
            keys[stage.name] = [(number, 0, 0) for number in numbers]
            answers[stage.name] = np.stack(outputs)
        return Trial(
            sequences=[[length] for length in lengths],
            positions=[[0] for _ in lengths],
            keys=keys,
            answers=answers,
            runs=[],
            recordings=recordings,
        )
