# SPDX-License-Identifier: Apache-2.0
"""`run` of image-to-image packages: images in, PNG files out."""

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qeff_zoo.contract.commands import Run
from qeff_zoo.disk.staging import write_durably
from qeff_zoo.errors import GenerationError
from qeff_zoo.tasks.images.verbs import fetch_each
from qeff_zoo.terminal.printing import print_json, table


@dataclass(frozen=True)
class TransformImages(Run):
    """Computes an image for each image, and writes it to a file.

    Raises:
        GenerationError: There is neither a file nor JSON to write images to.
    """

    def __post_init__(self) -> None:
        """Check the outputs before the package is opened."""
        if not (self.arguments.output or self.arguments.json):
            raise GenerationError(
                "An image has no place to go; expected a file for each --image. Add --output image.png, or --json."
            )

    def __call__(self, session: Any) -> None:
        """Compute, write and print."""
        names = list(self.arguments.image)
        results = session.transform(fetch_each(names))
        contents = [result.as_png() for result in results]
        for path, content in zip(self.arguments.output, contents, strict=False):
            write_durably(Path(path), content)
        if self.arguments.json:
            outputs = [
                {"image": name, "reconstruction": base64.b64encode(content).decode()}
                for name, content in zip(names, contents, strict=True)
            ]
            print_json({"outputs": outputs})
            return
        rows = [
            [name, f"{width} x {height}", path]
            for name, result, path in zip(names, results, self.arguments.output, strict=True)
            for height, width, _ in [result.pixels.shape]
        ]
        print(table(rows, ["image", "pixels", "output"]))
