# SPDX-License-Identifier: Apache-2.0
"""`run` of mask generation packages: an image, points and boxes in, masks out."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo.contract.commands import Run
from qeff_zoo.disk.staging import write_durably
from qeff_zoo.errors import GenerationError
from qeff_zoo.media.images import read_image
from qeff_zoo.tasks.images.verbs import fetch_each
from qeff_zoo.tasks.mask_generation.prompts import GeneratedMask, MaskPrompt, check_prompts
from qeff_zoo.terminal.printing import print_json, table

#: Colors of objects, one for each in turn.
_COLORS = (
    (230, 25, 75),
    (60, 180, 75),
    (67, 99, 216),
    (245, 130, 49),
    (145, 30, 180),
    (0, 128, 128),
)


@dataclass(frozen=True)
class GenerateMasks(Run):
    """Generates masks of what points and boxes show, and draws the best one of each object.

    Raises:
        GenerationError: There are no points and no boxes, several images, or points and several boxes.
    """

    def __post_init__(self) -> None:
        """Check the prompts before the package is opened."""
        if len(self.arguments.image) > 1:
            raise GenerationError(
                f"--image is given {len(self.arguments.image)} times; expected one image, to which points and boxes "
                "belong. Run each image alone."
            )
        self._prompts()

    def _prompts(self) -> list[MaskPrompt]:
        """Return the prompts: all points with the box, or each box alone."""
        inside, outside = list(self.arguments.point), list(self.arguments.negative_point)
        boxes = list(self.arguments.box)
        if (inside or outside) and len(boxes) > 1:
            raise GenerationError(
                f"--box is given {len(boxes)} times beside points, which belong to one object; expected one box with "
                "points, or boxes alone. Run each object alone."
            )
        if not (inside or outside or boxes):
            raise GenerationError(
                "No object is shown; expected --point X,Y or --box X,Y,WIDTH,HEIGHT. Give one of them."
            )
        points, labels = [*inside, *outside], [True] * len(inside) + [False] * len(outside)
        shown: list[Any] = boxes or [None]
        return check_prompts([MaskPrompt(points=points, labels=labels, box=box) for box in shown])

    def __call__(self, session: Any) -> None:
        """Generate, draw and print."""
        (name,) = self.arguments.image
        (file,) = fetch_each([name])
        generated = session.segment(session.encode(file), self._prompts())
        for path in self.arguments.output:
            write_durably(Path(path), drawn(file, generated))
        if self.arguments.json:
            masks = [
                [
                    {"score": mask.score, "mask": base64.b64encode(mask.as_png()).decode()}
                    for mask in masks
                ]
                for masks in generated
            ]
            print_json({"outputs": [{"image": name, "masks": masks}]})
            return
        rows = [
            [name, str(number), f"{mask.score:.4f}", f"{mask.mask.mean():.4f}"]
            for number, masks in enumerate(generated)
            for mask in masks
        ]
        print(table(rows, ["image", "object", "score", "share of the image"]))


def drawn(image: str | bytes, objects: Sequence[Sequence[GeneratedMask]]) -> bytes:
    """Return a PNG file of an image with the best mask of each object in colors.

    Args:
        image: Path or content of the image's file.
        objects: Masks of each object.
    """
    from PIL import Image

    canvas = read_image(image).astype(np.float32)
    for number, masks in enumerate(objects):
        best = max(masks, key=lambda one: one.score)
        color = np.array(_COLORS[number % len(_COLORS)], np.float32)
        canvas[best.mask] = (canvas[best.mask] + color) / 2
    file = BytesIO()
    Image.fromarray(canvas.astype(np.uint8)).save(file, "PNG")
    return file.getvalue()
