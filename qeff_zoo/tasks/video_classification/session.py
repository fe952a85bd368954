# SPDX-License-Identifier: Apache-2.0
"""Session of a video classification package: videos in, scores of labels out."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.media.images import LIMITS, ImageLimits
from qeff_zoo.media.video_processor import load_video_processor
from qeff_zoo.media.videos import Video
from qeff_zoo.package.files import read_json
from qeff_zoo.runtime import labels
from qeff_zoo.runtime.program import Array, Program, require
from qeff_zoo.runtime.sizes import batch_sizes
from qeff_zoo.tasks.video_classification.task import NAME


class VideoClassificationSession:
    """An opened package of the task `video-classification`.

    Args:
        folder: The package.
        program: Opened program of the package.
        image_processor: Video processor class of transformers, if the package's files name none.

    Raises:
        GenerationError: The package is of another task, or its labels do not fit the graph.

    Example:
        >>> session = qeff_zoo.load("packages/videomae-base-finetuned-kinetics")  # doctest: +SKIP
        >>> session.classify(["match.mp4"])[0][0].label  # doctest: +SKIP
        'playing basketball'
    """

    task = NAME

    def __init__(self, folder: Path, program: Program, image_processor: str | None = None) -> None:
        require(program, folder, self.task, {"pixel_values"}, {"logits"})
        self.folder, self._program = folder, program
        #: Number of frames, channels, height and width of a processed video.
        self.shape = tuple(map(int, program.inputs["pixel_values"].shape[1:]))
        processor = load_video_processor(folder, image_processor or "")
        sampled = {"do_sample_frames": True, "num_frames": self.shape[0], "fps": None}
        self.processor = replace(processor, settings={**processor.settings, **sampled})
        #: Numbers of videos per call, ascending.
        self.batch_sizes = batch_sizes(program.specializations)
        self.config = read_json(folder / "config.json")
        self.labels = labels.names_of(self.config, int(program.outputs["logits"].shape[-1]))
        self._activate = labels.activation_of(self.config, len(self.labels))

    def prepare(self, video: Video, limits: ImageLimits = LIMITS) -> Array:
        """Decode a video and compute the input of the graph: frames at equal distances. Thread-safe.

        Args:
            video: Path or bytes of a file, folder or list of images, or array of uint8, (frames, height, width, 3).
            limits: Limits of the video.

        Returns:
            float32, (1, frames, 3, height, width).

        Raises:
            MediaError: The video cannot be read, has fewer frames than the model reads, or exceeds a limit.
        """
        pixels: Array = self.processor(video, limits)["pixel_values_videos"]
        if pixels.shape[1:] != self.shape:
            raise GenerationError(
                f"The processor of {str(self.folder)!r} makes videos of {pixels.shape[1:]}, but its graph takes "
                f"{self.shape}. Expected the processor that it was built with. Build the package again."
            )
        return pixels.astype(np.float32, copy=False)

    def run(self, pixels: Array) -> Array:
        """Run as many calls as needed, without unused rows.

        Args:
            pixels: float32, (videos, frames, 3, height, width).

        Returns:
            float32, (videos, labels).
        """
        answers, start = [], 0
        while start < len(pixels):
            rows = max(size for size in self.batch_sizes if size <= len(pixels) - start)
            feeds = {"pixel_values": np.ascontiguousarray(pixels[start : start + rows])}
            answers.append(self._program.run(feeds)["logits"].astype(np.float32, copy=False))
            start += rows
        return np.concatenate(answers)

    def classify(
        self, videos: Sequence[Video], limits: ImageLimits = LIMITS
    ) -> list[tuple[labels.Score, ...]]:
        """Return the score of every label for each video, the best first.

        Args:
            videos: Videos, see `prepare`.
            limits: Limits of each video.

        Raises:
            GenerationError: There are no videos.
            MediaError: A video cannot be read, has fewer frames than the model reads, or exceeds a limit.
        """
        if not len(videos):
            raise GenerationError(
                "There is nothing to look at in []; expected at least one video. Give one."
            )
        scores, most = list[tuple[labels.Score, ...]](), self.batch_sizes[-1]
        for start in range(0, len(videos), most):
            pixels = [self.prepare(video, limits) for video in videos[start : start + most]]
            logits = self.run(np.concatenate(pixels))
            scores += [labels.best_first(self.labels, self._activate(row)) for row in logits]
        return scores
