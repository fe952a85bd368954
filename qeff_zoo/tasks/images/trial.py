# SPDX-License-Identifier: Apache-2.0
"""Sample images, and texts to match them with, through a package that reads each of them in one call."""

from collections.abc import Sequence

import numpy as np

from qeff_zoo.tasks.images.session import ImageSession
from qeff_zoo.tasks.images.text_session import TextImageSession
from qeff_zoo.validation.judgement.parity import Array
from qeff_zoo.validation.trial import sample_images, sample_texts
from qeff_zoo.validation.trial.cases import ImageStage
from qeff_zoo.validation.trial.package_runner import Key, Trial, TrialContext


class ImageTrial:
    """Runs an image encoder on sample images.

    Args:
        session: Session of the package.
    """

    #: Compared rows of an image.
    rows: int = 1

    def __init__(self, session: ImageSession) -> None:
        self.session = session

    def call_once(self) -> None:
        """Run one black image."""
        self.session.run(self.session.prepare([np.zeros((64, 64, 3), np.uint8)]))

    def run(self, context: TrialContext) -> Trial:
        """Run every stage."""
        session = self.session
        stages, images = context.task.stages()(session.batch_sizes)
        pixels = [session.prepare([sample_images.draw(*image)]) for image in images]
        answers: dict[str, Array] = {}
        keys: dict[str, list[Key]] = {}
        for stage in stages:
            rows = []
            for call in stage.calls:
                outputs = session.run(np.concatenate([pixels[number] for number in call]))
                rows.append(self.values_of(outputs))
                context.step(1)
            keys[stage.name] = [
                (number, row, 0)
                for call in stage.calls
                for number in call
                for row in range(self.rows)
            ]
            answers[stage.name] = np.concatenate(rows)
        texts = self.run_texts(context, len(images), keys, answers)
        return Trial(
            sequences=images,
            positions=[*([*range(self.rows)] for _ in images), *([0] for _ in texts)],
            keys=keys,
            answers=answers,
            runs=[],
            texts=texts,
        )

    def values_of(self, outputs: Array) -> Array:
        """Return the compared values of the graph's outputs, (images * rows, values)."""
        return outputs

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

    session: TextImageSession

    def texts(self) -> list[list[int]]:
        """Return the sample texts, always the same."""
        session, longest = self.session, self.session.max_length
        lengths = [longest, longest // 2 + 1, 1, longest // 3 + 1]
        return sample_texts.draw(lengths, session.tokenizer, session.vocab_size, whole=True)

    def text_values_of(self, outputs: Array) -> Array:
        """Return the compared values of texts, a row for each, from outputs of the text encoder."""
        return outputs

    def run_texts(
        self,
        context: TrialContext,
        first: int,
        keys: dict[str, list[Key]],
        answers: dict[str, Array],
    ) -> list[list[int]]:
        """Add stages of sample texts, and return these."""
        session, texts = self.session, self.texts()
        for size in session.batch_sizes:
            rows = [number % len(texts) for number in range(max(size, len(texts)))]
            calls = [
                rows[start : start + size] for start in range(0, len(rows) // size * size, size)
            ]
            outputs = [session.run_texts([texts[one] for one in call])["output"] for call in calls]
            stage = f"texts_{size}"
            keys[stage] = [(first + one, 0, 0) for call in calls for one in call]
            answers[stage] = self.text_values_of(np.concatenate(outputs))
            context.step(1)
        return texts


#: Least side of a sample image in pixels: GLPN rounds sides down to multiples of 32.
_LEAST = 62


def own_size_stages(batch_sizes: Sequence[int]) -> tuple[list[ImageStage], list[list[int]]]:
    """Return the stages of a package for images of any size: all shapes, each image alone, then batches of one shape.

    Args:
        batch_sizes: Numbers of images per call.

    Returns:
        The stages, and the arguments of `sample_images.draw` for their images.
    """
    shapes = [_at_least(_LEAST, *shape) for shape in sample_images.SHAPES]
    images = [[number, *shape] for number, shape in enumerate(shapes)]
    images += [[len(shapes) + number, *shapes[0]] for number in range(1, max(batch_sizes))]
    alike = [0, *range(len(shapes), len(images))]
    alone = ImageStage(name="batch_1", calls=tuple((number,) for number in range(len(shapes))))
    together = [
        ImageStage(name=f"batch_{size}", calls=(tuple(alike[:size]),))
        for size in batch_sizes
        if size > 1
    ]
    return [alone, *together], images


def _at_least(least: int, width: int, height: int) -> tuple[int, int]:
    """Return the width and height of an image, doubled if a side is shorter than the least."""
    return (2 * width, 2 * height) if min(width, height) < least else (width, height)
