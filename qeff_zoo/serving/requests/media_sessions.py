# SPDX-License-Identifier: Apache-2.0
"""Sessions of multimodal prompts, as requests use them; the classes are in `qeff_zoo.tasks.multimodal`."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from qeff_zoo.media.steps import Steps
from qeff_zoo.media.videos import OpenedVideo
from qeff_zoo.runtime.decoding.multimodal_spans import Encoded


class MediaSession(Protocol):
    """Session whose prompts have images, videos or audio."""

    def encoding(self, argument: str, given: Sequence[Any]) -> list[Steps[Encoded]]:
        """Return the encoding, in steps, of each image or recording of a prompt."""

    def run_of(self, encoded: Encoded) -> list[int]:
        """Return the placeholder tokens of an image or audio input."""


class SingleImageSession(Protocol):
    """Session whose requests are one image each."""

    def preparation(self, image: bytes) -> "partial[dict[str, Any]]":
        """Return a call that processes an image, and that another process can make."""


class ImageSession(MediaSession, Protocol):
    """Session whose prompts have images, and perhaps videos."""

    def tokens_of(
        self, sizes: Sequence[tuple[int, int]], options: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Return the minimum number of tokens that each image of a prompt takes, by its width and height."""

    def video_tokens_of(self, videos: Sequence[Any], opened: Sequence[OpenedVideo]) -> list[int]:
        """Return the minimum number of tokens that each video of a prompt takes, by its header."""

    def preparation(self, given: Any, count: int) -> "partial[dict[str, Any]]":
        """Return a call that prepares one of `count` images, and that another process can make."""

    def check_reads_videos(self) -> None:
        """Raise `GenerationError` if the package does not support videos."""

    def video_preparation(self, given: Any) -> "partial[dict[str, Any]]":
        """Return a call that decodes and processes a video, and that another process can make."""

    def preparing_video(self, given: Any, arrays: Mapping[str, Any] | None = None) -> Steps[Any]:
        """Prepare a video, or the result of `video_preparation`, and pause after each of its frames."""

    def video_rows(self, prepared: Any) -> int:
        """Return the minimum number of placeholder tokens of a prepared video."""
