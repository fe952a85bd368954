# SPDX-License-Identifier: Apache-2.0
"""`run` of text-to-video packages: texts in, files of videos out."""

import time
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from qeff_zoo.contract.commands import Run
from qeff_zoo.errors import GenerationError
from qeff_zoo.tasks.diffusion.options import VideoOptions
from qeff_zoo.tasks.diffusion.verbs import shortened
from qeff_zoo.tasks.images.verbs import fetch_each
from qeff_zoo.tasks.video_diffusion.video import check_file, check_rate
from qeff_zoo.terminal.printing import print_json, table


@dataclass(frozen=True)
class DrawVideos(Run):
    """Draws videos of texts, and writes each to a file.

    Raises:
        GenerationError: There is no file to write a video to, or one that no video is written to.
    """

    def __post_init__(self) -> None:
        """Check the outputs before the package is opened."""
        if not self.arguments.output:
            raise GenerationError(
                "A video has no place to go; expected a file for each prompt. Add --output video.mp4, video.gif or "
                "video-%03d.png."
            )
        for path in self.arguments.output:
            check_file(path)
        check_rate(self.arguments.fps)

    def __call__(self, session: Any) -> None:
        """Draw, write and print."""
        from qeff_zoo.terminal.progress_bars import reporter

        given = self.arguments
        names = (field.name for field in fields(VideoOptions))
        options = session.options(**{name: getattr(given, name, None) for name in names})
        further, results, bars = self.further(session), [], reporter()
        for prompt, path in zip(self.prompts, given.output, strict=True):
            begun = time.perf_counter()
            bars.begin("draw", session.calls(options), "step")
            try:
                video = session.draw_with(prompt, options, partial(bars.advance, 1), **further)
            finally:
                bars.end()
            video.write(path, given.fps)
            seconds = time.perf_counter() - begun
            results.append(
                {"prompt": prompt, "seed": options.seed, "file": path, "seconds": seconds}
            )
        if given.json:
            print_json({"outputs": results})
            return
        size = f"{options.width}x{options.height}x{options.frames}"
        rows = [
            [
                shortened(one["prompt"]),
                size,
                str(options.steps),
                str(options.seed),
                f"{one['seconds']:.1f}",
            ]
            for one in results
        ]
        print(table(rows, ["prompt", "size", "steps", "seed", "seconds"]))

    def further(self, session: Any) -> dict[str, Any]:
        """Return further arguments of `draw_with`."""
        return {}


@dataclass(frozen=True)
class DrawVideosOfImages(DrawVideos):
    """Draws videos that begin with an image.

    Raises:
        GenerationError: There is not one image, or no file to write a video to.
    """

    def __post_init__(self) -> None:
        """Check inputs and outputs before the package is opened."""
        super().__post_init__()
        if (count := len(self.arguments.image)) != 1:
            raise GenerationError(
                f"--image is given {count} times; expected one image, with which every video begins. Run the command "
                "for each image."
            )

    def further(self, session: Any) -> dict[str, Any]:
        """Return the image."""
        return {"initial": session.read(fetch_each(self.arguments.image)[0])}
