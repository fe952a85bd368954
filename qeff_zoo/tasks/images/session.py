# SPDX-License-Identifier: Apache-2.0
"""Sessions of image encoder packages: a label with its score, or one vector, for each image."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from qeff_zoo.contract import IMAGE_CLASSIFICATION, IMAGE_FEATURE_EXTRACTION
from qeff_zoo.errors import GenerationError
from qeff_zoo.media.image_processor import ImageProcessor, load_image_processor
from qeff_zoo.media.images import LIMITS, ImageLimits, ImageSource, read_image
from qeff_zoo.package.files import read_json
from qeff_zoo.runtime import labels
from qeff_zoo.runtime.labels import Score, best_first
from qeff_zoo.runtime.program import Array, Program, require
from qeff_zoo.runtime.sizes import batch_sizes
from qeff_zoo.tasks.encoders.similarity import cosines

#: Number of images whose arrays are in memory at a time.
TOGETHER = 64


class ImageSession:
    """Base class of sessions of image encoder packages.

    Args:
        folder: The package.
        program: Opened program of the package.
        image_processor: Image processor class of transformers, if the package's files name none.

    Raises:
        GenerationError: The package is of another task.
    """

    #: Hub pipeline tag, and name of the graph's output.
    task: ClassVar[str]
    output: ClassVar[str]
    #: Whether it reads texts to match images with.
    reads_texts: ClassVar[bool] = False

    def __init__(self, folder: Path, program: Program, image_processor: str | None = None) -> None:
        require(program, folder, self.task, {"pixel_values"}, {self.output})
        self.folder, self._program = folder, program
        self.processor = load_image_processor(folder, image_processor)
        #: Numbers of images per call, ascending.
        self.batch_sizes = batch_sizes(program.specializations)
        #: Height and width of processed images; names of symbols if each image has its own.
        self.size = program.inputs["pixel_values"].shape[2:]
        self.config = read_json(folder / "config.json")

    def prepare(self, images: Sequence[ImageSource], limits: ImageLimits = LIMITS) -> Array:
        """Decode images and compute the input of the graph. Thread-safe.

        Args:
            images: Paths, bytes of files, Pillow images or arrays of uint8, (height, width, 3).
            limits: Limits of each image.

        Returns:
            float32, (images, 3, height, width).

        Raises:
            MediaError: An image cannot be read, or exceeds a limit.
        """
        return self.input_of(self.preparation(images, limits)())

    def preparation(
        self, images: Sequence[ImageSource], limits: ImageLimits = LIMITS
    ) -> Callable[[], dict[str, Any]]:
        """Return a call that processes images for `input_of`, and that another process can make; see `prepare`."""
        return partial(self.processor, images, limits)

    def sized_preparation(
        self, image: ImageSource, limits: ImageLimits = LIMITS
    ) -> Callable[[], tuple[dict[str, Any], tuple[int, int]]]:
        """Return a call as that of `preparation`, which returns the height and width of an image as well."""
        return partial(_sized, self.processor, image, limits)

    def input_of(self, processed: Mapping[str, Any]) -> Array:
        """Return the input of the graph.

        Args:
            processed: Output of the processor.

        Raises:
            GenerationError: It does not fit the graph.
        """
        pixels: Array = processed["pixel_values"]
        if pixels.shape[2:] != self.size and not any(isinstance(side, str) for side in self.size):
            raise GenerationError(
                f"The processor of {str(self.folder)!r} makes images of {pixels.shape[2:]}, but its graph takes "
                f"{self.size}. Expected the processor that it was built with. Build the package again."
            )
        return pixels.astype(np.float32, copy=False)

    def run(self, pixels: Array) -> Array:
        """Run as many calls as needed, without unused rows.

        Args:
            pixels: float32, (images, 3, height, width).

        Returns:
            float32, (images, …): the graph's output for each image.
        """
        answers = []
        for start, stop in self.calls(len(pixels)):
            feeds = {"pixel_values": np.ascontiguousarray(pixels[start:stop])}
            answers.append(self._program.run(feeds)[self.output].astype(np.float32, copy=False))
        return np.concatenate(answers)

    def calls(self, count: int) -> Iterator[tuple[int, int]]:
        """Yield start and end of the calls that together process a number of images."""
        start = 0
        while start < count:
            rows = max(size for size in self.batch_sizes if size <= count - start)
            yield start, start + rows
            start += rows

    @staticmethod
    def listed(images: ImageSource | Sequence[ImageSource]) -> list[Any]:
        """Return images as a list, also one alone.

        Raises:
            GenerationError: There are no images.
        """
        several: list[Any] = list(images) if isinstance(images, list | tuple) else [images]
        if not several:
            raise GenerationError(
                "There is nothing to look at in []; expected at least one image. Give one."
            )
        return several

    def answers(
        self, images: ImageSource | Sequence[ImageSource], limits: ImageLimits
    ) -> Iterator[tuple[Array, tuple[int, int]]]:
        """Yield the graph's output for each image, and its height and width; adjacent images of one size share calls.

        Args:
            images: Images, see `prepare`.
            limits: Limits of each image.

        Raises:
            GenerationError: There are no images.
            MediaError: An image cannot be read, or exceeds a limit.
        """
        read = (read_image(image, limits) for image in self.listed(images))
        for size, alike in groupby(read, key=lambda pixels: pixels.shape[:2]):
            while part := list(islice(alike, TOGETHER)):
                for output in self.run(self.prepare(part, limits)):
                    yield output, size

    def _answer(self, images: ImageSource | Sequence[ImageSource], limits: ImageLimits) -> Array:
        several = self.listed(images)
        parts = (several[start : start + TOGETHER] for start in range(0, len(several), TOGETHER))
        return np.concatenate([self.run(self.prepare(part, limits)) for part in parts])


def _sized(
    processor: ImageProcessor, image: ImageSource, limits: ImageLimits
) -> tuple[dict[str, Any], tuple[int, int]]:
    """Return the output of an image processor, and the height and width of the image."""
    pixels = read_image(image, limits)
    height, width = pixels.shape[:2]
    return processor([pixels], limits), (height, width)


class ImageEmbeddingSession(ImageSession):
    """An opened package of the task `image-feature-extraction`; see `ImageSession` for how to open it.

    Example:
        >>> session = qeff_zoo.load("packages/dinov2-base")  # doctest: +SKIP
        >>> session.similarity(session.embed(["cat.png", "kitten.jpg"]))  # doctest: +SKIP
    """

    task = IMAGE_FEATURE_EXTRACTION
    output = "output"

    def embed(
        self, images: ImageSource | Sequence[ImageSource], limits: ImageLimits = LIMITS
    ) -> Array:
        """Return one embedding per image; see `prepare`.

        Returns:
            float32, (images, hidden).
        """
        return self._answer(images, limits)

    similarity = staticmethod(cosines)


class ImageClassificationSession(ImageSession):
    """An opened package of the task `image-classification`; see `ImageSession` for how to open it.

    Raises:
        GenerationError: The labels do not fit the graph; or an error of the base class.

    Example:
        >>> session = qeff_zoo.load("packages/vit-base-patch16-224")  # doctest: +SKIP
        >>> [scores[0].label for scores in session.classify(["cat.png"])]  # doctest: +SKIP
    """

    task = IMAGE_CLASSIFICATION
    output = "logits"

    def __init__(self, folder: Path, program: Program, **given: Any) -> None:
        super().__init__(folder, program, **given)
        self.labels = labels.names_of(self.config, int(program.outputs[self.output].shape[-1]))
        self._activate = labels.activation_of(self.config, len(self.labels))

    def classify(
        self, images: ImageSource | Sequence[ImageSource], limits: ImageLimits = LIMITS
    ) -> list[tuple[Score, ...]]:
        """Return the score of every label for each image, the best first; see `prepare`."""
        return [
            best_first(self.labels, self._activate(logits))
            for logits in self._answer(images, limits)
        ]
