# SPDX-License-Identifier: Apache-2.0
"""Sample images, and texts to match them with, through a package that reads each of them in one call."""

import numpy as np

from qeff_zoo.tasks.images.session import ImageSession
from qeff_zoo.tasks.images.zero_shot_session import ZeroShotSession
from qeff_zoo.validation import sample_images, sample_texts
from qeff_zoo.validation.package_runner import Key, Trial, TrialContext
from qeff_zoo.validation.parity import Array


class ImageTrial:
    """Runs an image encoder on sample images.

    Args:
        session: Session of the package.
    """

    def __init__(self, session: ImageSession) -> None:
        self.session = session

    def call_once(self) -> None:
        """Run one image of four pixels."""
        self.session.run(self.session.prepare([np.zeros((2, 2, 3), np.uint8)]))

    def run(self, context: TrialContext) -> Trial:
        """Run every stage."""
        session = self.session
        stages, images = context.task.stages()(session.batch_sizes)
        pixels = session.prepare([sample_images.draw(*image) for image in images])
        answers: dict[str, Array] = {}
        keys: dict[str, list[Key]] = {}
        for stage in stages:
            found = []
            for call in stage.calls:
                found.append(session.run(pixels[list(call)]))
                context.step(1)
            keys[stage.name] = [(number, 0, 0) for call in stage.calls for number in call]
            answers[stage.name] = np.concatenate(found)
        texts = self.run_texts(context, len(images), keys, answers)
        return Trial(
            sequences=images,
            positions=[[0] for _ in (*images, *texts)],
            keys=keys,
            answers=answers,
            runs=[],
            texts=texts,
        )

    def run_texts(
        self,
        context: TrialContext,
        first: int,
        keys: dict[str, list[Key]],
        answers: dict[str, Array],
    ) -> list[list[int]]:
        """Add stages of sample texts, and return these; none for a package that reads images alone.

        Args:
            context: Context of the trial.
            first: Number of the first text among the sequences.
            keys: Keys by stage, extended in place.
            answers: Outputs by stage, extended in place.
        """
        return []


class ZeroShotTrial(ImageTrial):
    """Runs an image encoder and a text encoder on sample images and texts.

    Args:
        session: Session of the package.
    """

    session: ZeroShotSession

    def run_texts(
        self,
        context: TrialContext,
        first: int,
        keys: dict[str, list[Key]],
        answers: dict[str, Array],
    ) -> list[list[int]]:
        """Add stages of sample texts, and return these."""
        session = self.session
        longest = session.max_length
        lengths = [longest, longest // 2 + 1, 1, longest // 3 + 1]
        texts = sample_texts.draw(lengths, session.tokenizer, session.vocab_size, whole=True)
        for size in session.batch_sizes:
            rows = [number % len(texts) for number in range(max(size, len(texts)))]
            calls = [
                rows[start : start + size] for start in range(0, len(rows) // size * size, size)
            ]
            found = [session.run_texts([texts[one] for one in call])["output"] for call in calls]
            stage = f"texts_{size}"
            keys[stage] = [(first + one, 0, 0) for call in calls for one in call]
            answers[stage] = np.concatenate(found)
            context.step(1)
        return texts
