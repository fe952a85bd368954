# SPDX-License-Identifier: Apache-2.0
"""`run` of video classification packages: videos in, scores of labels out."""

from typing import Any

from qeff_zoo.contract.commands import Run
from qeff_zoo.tasks.images.verbs import fetch_each, print_scores


class ClassifyVideos(Run):
    """Scores the labels of videos."""

    def __call__(self, session: Any) -> None:
        """Classify and print."""
        videos = list(self.arguments.video)
        scores = session.classify(fetch_each(videos, "video"))
        print_scores("video", videos, scores, as_json=self.arguments.json)
