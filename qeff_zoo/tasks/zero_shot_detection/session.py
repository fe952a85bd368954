# SPDX-License-Identifier: Apache-2.0
"""Session of a zero-shot object detection package: images and texts in, labels, scores and boxes out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo.media.images import LIMITS, ImageLimits, ImageSource
from qeff_zoo.runtime.program import Array, Program, require
from qeff_zoo.runtime.text.texts import Text
from qeff_zoo.tasks.images.text_session import TextImageSession
from qeff_zoo.tasks.object_detection.boxes import Detection, check_threshold
from qeff_zoo.tasks.zero_shot_detection.objects import THRESHOLD, check_labels, objects_of
from qeff_zoo.tasks.zero_shot_detection.task import NAME

_OUTPUTS = ("class_embeds", "factors", "pred_boxes")


class ZeroShotDetectionSession(TextImageSession):
    """An opened package of the task `zero-shot-object-detection`; see `ImageSession` for how to open it.

    Args:
        folder: The package.
        program: Opened image encoder of the package.
        encoder: Opened text encoder of the package.
        **given: Arguments of `ImageSession`.

    Example:
        >>> session = qeff_zoo.load("packages/owlvit-base-patch32")  # doctest: +SKIP
        >>> session.detect(["cats.jpg"], ["a cat", "a couch"])[0][0].label  # doctest: +SKIP
        'a cat'
    """

    task = NAME
    output = "class_embeds"
    padding = 0

    def __init__(self, folder: Path, program: Program, *, encoder: Program, **given: Any) -> None:
        super().__init__(folder, program, encoder=encoder, **given)
        require(program, folder, self.task, {"pixel_values"}, {*_OUTPUTS})
        #: Number of patches of an image, each with a box.
        self.patches = int(program.outputs[self.output].shape[1])

    def run(self, pixels: Array) -> Array:
        """Run as many calls as needed, without unused rows.

        Args:
            pixels: float32, (images, 3, height, width).

        Returns:
            float32, (images, patches, hidden + 6): the embedding, the shift and scale of logits, and the box of each
            patch.
        """
        answers = []
        for start, stop in self.calls(len(pixels)):
            outputs = self._program.run({"pixel_values": np.ascontiguousarray(pixels[start:stop])})
            every = [outputs[name] for name in _OUTPUTS]
            answers.append(np.concatenate(every, axis=2).astype(np.float32, copy=False))
        return np.concatenate(answers)

    def embed_texts(self, texts: Sequence[Text]) -> Array:
        """Return one embedding per text, float32, (texts, hidden).

        Args:
            texts: Texts, truncated to `max_length` tokens; or token ids, unchanged.
        """
        rows = [one.ids for one in self.read(texts)]
        outputs = [self.run_texts(rows[a:b])["output"] for a, b in self.calls(len(rows))]
        return np.concatenate(outputs).astype(np.float32, copy=False)

    @staticmethod
    def logits_of(output: Array, texts: Array) -> tuple[Array, Array]:
        """Return the logits of texts, (…, patches, texts), and the boxes, (…, patches, 4).

        Args:
            output: Row of `run`, or several.
            texts: Embeddings of texts, see `embed_texts`.
        """
        embeddings, factors, boxes = output[..., :-6], output[..., -6:-4], output[..., -4:]
        return (embeddings @ texts.T + factors[..., :1]) * factors[..., 1:], boxes

    def detect(
        self,
        images: ImageSource | Sequence[ImageSource],
        labels: Sequence[str],
        threshold: float = THRESHOLD,
        *,
        one_label: bool = False,
        limits: ImageLimits = LIMITS,
    ) -> list[tuple[Detection, ...]]:
        """Return the objects of each image that texts name; adjacent images of one size share calls. See `prepare`.

        Args:
            images: Images, see `prepare`.
            labels: Texts that name objects, such as "a cat".
            threshold: Score from 0 to 1 that objects exceed.
            one_label: Whether a box has its best label alone, as in transformers' `post_process_grounded_object_
                detection`; False for each label that exceeds the threshold, as in its pipeline.
            limits: Limits of each image.

        Raises:
            GenerationError: There are no images or labels, or the threshold is not from 0 to 1.
            MediaError: An image cannot be read, or exceeds a limit.
        """
        check_threshold(threshold)
        names, several = check_labels(labels), self.listed(images)
        texts = self.embed_texts(names)
        return [
            self.objects_of(output, size, names, texts, threshold, one_label=one_label)
            for output, size in self.answers(several, limits)
        ]

    def objects_of(
        self,
        output: Array,
        size: tuple[int, int],
        labels: Sequence[str],
        texts: Array,
        threshold: float,
        *,
        one_label: bool = False,
    ) -> tuple[Detection, ...]:
        """Return the objects of an image from a row of `run`.

        Args:
            output: Row of `run`.
            size: Height and width of the image.
            labels: Texts that name objects.
            texts: Their embeddings.
            threshold: Score that objects exceed.
            one_label: Whether a box has its best label alone.
        """
        logits, boxes = self.logits_of(output, texts)
        return objects_of(
            logits,
            boxes,
            size,
            processor=self.processor.name,
            labels=labels,
            threshold=threshold,
            one_label=one_label,
        )
