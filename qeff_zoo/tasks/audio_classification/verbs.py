# SPDX-License-Identifier: Apache-2.0
"""`run` of audio classification packages: recordings in, scores of labels out."""

import argparse
from dataclasses import dataclass
from typing import Any

from qeff_zoo.tasks.images.verbs import print_scores


@dataclass(frozen=True)
class ClassifyRecordings:
    """Scores the labels of recordings.

    Args:
        task: Name of the package's task.
        prompts: Prompts of the command, which has none.
        arguments: Arguments of the command.
    """

    task: str
    prompts: list[str]
    arguments: argparse.Namespace

    def __call__(self, session: Any) -> None:
        """Classify and print."""
        recordings = [str(path) for path in self.arguments.audio]
        found = session.classify(recordings)
        print_scores("audio", recordings, found, as_json=self.arguments.json)
