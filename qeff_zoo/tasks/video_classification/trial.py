# SPDX-License-Identifier: Apache-2.0
"""Sample videos through a package that classifies videos."""

import numpy as np

from qeff_zoo.tasks.video_classification.session import VideoClassificationSession
from qeff_zoo.validation.judgement.parity import Array
from qeff_zoo.validation.trial import sample_images
from qeff_zoo.validation.trial.package_runner import Key, Trial, TrialContext


class VideoTrial:
    """Runs a video classifier on sample videos.

    Args:
        session: Session of the package.
    """

    def __init__(self, session: VideoClassificationSession) -> None:
        self.session = session

    def call_once(self) -> None:
        """Run one black video."""
        frames = self.session.shape[0]
        self.session.run(self.session.prepare(np.zeros((frames, 64, 64, 3), np.uint8)))

    def run(self, context: TrialContext) -> Trial:
        """Run every stage."""
        session = self.session
        stages, images = context.task.stages()(session.batch_sizes)
        videos = [[*image, session.shape[0]] for image in images]
        pixels = [session.prepare(sample_images.draw_video(*video)) for video in videos]
        answers: dict[str, Array] = {}
        keys: dict[str, list[Key]] = {}
        for stage in stages:
            logits = []
            for call in stage.calls:
                logits.append(session.run(np.concatenate([pixels[number] for number in call])))
                context.step(1)
            keys[stage.name] = [(number, 0, 0) for call in stage.calls for number in call]
            answers[stage.name] = np.concatenate(logits)
        return Trial(
            sequences=videos,
            positions=[[0] for _ in videos],
            keys=keys,
            answers=answers,
            runs=[],
        )
