# SPDX-License-Identifier: Apache-2.0
"""`run` of audio classification packages: recordings in, scores of labels out."""

from typing import Any

from qeff_zoo.contract.commands import Run
from qeff_zoo.tasks.images.verbs import print_scores


class ClassifyRecordings(Run):
    """Scores the labels of recordings."""

    def __call__(self, session: Any) -> None:
        """Classify and print."""
        recordings = [str(path) for path in self.arguments.audio]
        scores = session.classify(recordings)
        print_scores("audio", recordings, scores, as_json=self.arguments.json)
