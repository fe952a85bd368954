# SPDX-License-Identifier: Apache-2.0
"""`run` of image segmentation packages: images in, segments out, and images with their masks in colors."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, fields
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo.contract.commands import Run
from qeff_zoo.disk.staging import write_durably
from qeff_zoo.media.images import read_image
from qeff_zoo.tasks.image_segmentation.segments import (
    SUBTASKS,
    ImageSegment,
    Thresholds,
    check_subtask,
)
from qeff_zoo.tasks.images.verbs import fetch_each
from qeff_zoo.terminal.printing import print_json, table

#: Share of a mask's color in the pixels of an image.
_OPACITY = 0.6
#: Turn of the hue from one segment to the next: the golden ratio, so that close numbers have distant hues.
_TURN = 0.618034


@dataclass(frozen=True)
class SegmentImages(Run):
    """Segments images, and draws their masks.

    Raises:
        GenerationError: A threshold is not from 0 to 1, or there is no such subtask.
    """

    def __post_init__(self) -> None:
        """Check the options before the package is opened."""
        _ = self._thresholds
        check_subtask(self.arguments.subtask, SUBTASKS)

    @property
    def _thresholds(self) -> Thresholds:
        given = {field.name: getattr(self.arguments, field.name) for field in fields(Thresholds)}
        return Thresholds(**{name: value for name, value in given.items() if value is not None})

    def __call__(self, session: Any) -> None:
        """Segment, draw and print."""
        names = list(self.arguments.image)
        files = fetch_each(names)
        segmented = session.segment(files, self.arguments.subtask, self._thresholds)
        for path, file, segments in zip(self.arguments.output, files, segmented, strict=False):
            write_durably(Path(path), drawn(file, segments))
        if self.arguments.json:
            outputs = [
                {"image": name, "segments": [_object_of(one) for one in found]}
                for name, found in zip(names, segmented, strict=True)
            ]
            print_json({"outputs": outputs})
            return
        rows = [
            [name if not place else "", *row]
            for name, found in zip(names, segmented, strict=True)
            for place, row in enumerate(_rows(found))
        ]
        print(table(rows, ["image", "label", "score", "pixels", "share"]))


def _object_of(segment: ImageSegment) -> dict[str, Any]:
    mask = base64.b64encode(segment.as_png()).decode()
    return {"score": segment.score, "label": segment.label, "mask": mask}


def _rows(segments: Sequence[ImageSegment]) -> list[list[str]]:
    """Return the cells of the segments of an image; a row that names none if there are none."""
    rows = []
    for segment in segments:
        pixels = int(np.count_nonzero(segment.segmentation == segment.number))
        score = "" if segment.score is None else f"{segment.score:.4f}"
        rows.append(
            [segment.label, score, str(pixels), f"{pixels / segment.segmentation.size:.1%}"]
        )
    return rows or [["(no segments)", *[""] * 3]]


def drawn(image: str | bytes, segments: Sequence[ImageSegment]) -> bytes:
    """Return a PNG file of an image with its masks in colors, and the labels of large ones.

    Args:
        image: Path or content of the image's file.
        segments: Segments of the image.
    """
    from PIL import Image, ImageDraw, ImageFont

    pixels = read_image(image).astype(np.float32)
    colors = [_color(number) for number in range(len(segments))]
    for segment, color in zip(segments, colors, strict=True):
        inside = segment.segmentation == segment.number
        pixels[inside] = (1 - _OPACITY) * pixels[inside] + _OPACITY * np.asarray(color, np.float32)
    canvas = Image.fromarray(np.rint(pixels).astype(np.uint8))
    pen = ImageDraw.Draw(canvas)
    font = ImageFont.load_default(size=max(10, min(canvas.size) // 32))
    for segment, color in zip(segments, colors, strict=True):
        rows, columns = np.nonzero(segment.segmentation == segment.number)
        if len(rows) < canvas.width * canvas.height // 100:
            continue
        middle = len(rows) // 2  # a pixel within the segment, of its middle row
        position = int(columns[middle]), int(rows[middle])
        box = pen.textbbox(position, segment.label, font=font, anchor="mm")
        pen.rectangle(box, fill=color)
        pen.text(position, segment.label, fill="white", font=font, anchor="mm")
    file = BytesIO()
    canvas.save(file, "PNG")
    return file.getvalue()


def _color(number: int) -> tuple[int, int, int]:
    """Return the color of a segment, dark enough for white text."""
    import colorsys

    red, green, blue = colorsys.hsv_to_rgb(number * _TURN % 1, 0.85, 0.75)
    return round(255 * red), round(255 * green), round(255 * blue)
