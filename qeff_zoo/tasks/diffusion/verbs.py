# SPDX-License-Identifier: Apache-2.0
"""`run` of text-to-image packages: texts in, and an initial image if there is one; PNG files out."""

import base64
import time
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from qeff_zoo.contract.commands import Run
from qeff_zoo.disk.staging import write_durably
from qeff_zoo.errors import GenerationError
from qeff_zoo.tasks.diffusion.initial_image import InitialImage
from qeff_zoo.tasks.diffusion.options import GeneratedImage, ImageOptions
from qeff_zoo.tasks.images.verbs import fetch_each
from qeff_zoo.terminal.printing import print_json, table

_SHORT = 40  # characters of a text in the table
_OPTIONS = tuple(field.name for field in fields(ImageOptions))


@dataclass(frozen=True)
class DrawImages(Run):
    """Draws images of texts, and writes each to a file.

    Raises:
        GenerationError: There is neither a file nor JSON to write images to.
    """

    def __post_init__(self) -> None:
        """Check the outputs before the package is opened."""
        if not (self.arguments.output or self.arguments.json):
            raise GenerationError(
                "An image has no place to go; expected a file for each prompt. Add --output image.png, or --json."
            )
        if (count := len(self.arguments.image)) > 1:
            raise GenerationError(
                f"--image is given {count} times; expected one initial image, which every prompt changes. Run the "
                "command for each image."
            )

    def __call__(self, session: Any) -> None:
        """Draw, write and print."""
        given = self.arguments
        initial = session.read(*self._files())
        chosen = {name: getattr(given, name) for name in _OPTIONS}
        options = session.options_for(initial, **chosen)
        begun = time.perf_counter()
        images = self._drawn(session, options, initial)
        seconds = time.perf_counter() - begun
        contents = [image.as_png() for image in images]
        for path, content in zip(given.output, contents, strict=False):
            write_durably(Path(path), content)
        if given.json:
            outputs = [
                {
                    "prompt": prompt,
                    "seed": options.seed,
                    "image": base64.b64encode(content).decode(),
                }
                for prompt, content in zip(self.prompts, contents, strict=True)
            ]
            print_json({"outputs": outputs})
            return
        size = f"{options.width}x{options.height}"
        rows = [
            [
                shortened(prompt),
                size,
                str(options.steps),
                str(options.seed),
                f"{seconds / len(images):.1f}",
            ]
            for prompt in self.prompts
        ]
        print(table(rows, ["prompt", "size", "steps", "seed", "seconds"]))

    def _files(self) -> list[str | bytes | None]:
        """Return the initial image and its mask, or their contents if they are URLs; None for each that is absent."""
        image = self.arguments.image[0] if self.arguments.image else None
        return [one and fetch_each([one])[0] for one in (image, self.arguments.mask)]

    def _drawn(
        self, session: Any, options: ImageOptions, initial: InitialImage | None
    ) -> list[GeneratedImage]:
        """Draw the images of all prompts, and show the steps."""
        from qeff_zoo.terminal.progress_bars import reporter

        bars = reporter()
        bars.begin("draw", session.calls(options) * len(self.prompts), "step")
        try:
            images: list[GeneratedImage] = session.draw_all(
                self.prompts, options, partial(bars.advance, 1), initial=initial
            )
        finally:
            bars.end()
        return images


def shortened(text: str) -> str:
    """Return the beginning of a text for a table."""
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 1]}…"
