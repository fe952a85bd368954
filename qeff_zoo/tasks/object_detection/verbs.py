# SPDX-License-Identifier: Apache-2.0
"""`run` of object detection packages: images in, objects out, and images with their boxes."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from qeff_zoo.contract.commands import Run
from qeff_zoo.disk.staging import write_durably
from qeff_zoo.media.images import read_image
from qeff_zoo.tasks.images.verbs import fetch_each
from qeff_zoo.tasks.object_detection.boxes import THRESHOLD, Detection, check_threshold
from qeff_zoo.terminal.printing import print_json, table

#: Colors of boxes, one for each label in turn.
_COLORS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080", "#9a6324", "#f032e6")


@dataclass(frozen=True)
class DetectObjects(Run):
    """Detects objects in images, and draws their boxes.

    Raises:
        GenerationError: The threshold is not from 0 to 1.
    """

    def __post_init__(self) -> None:
        """Check the threshold before the package is opened."""
        check_threshold(self._threshold)

    @property
    def _threshold(self) -> float:
        given: float | None = self.arguments.threshold
        return THRESHOLD if given is None else given

    def __call__(self, session: Any) -> None:
        """Detect, draw and print."""
        files = fetch_each(list(self.arguments.image))
        detected = session.detect(files, self._threshold)
        write_and_print(self.arguments, files, detected, session.labels)


def write_and_print(
    arguments: Namespace,
    files: Sequence[str | bytes],
    detected: Sequence[Sequence[Detection]],
    labels: Sequence[str],
) -> None:
    """Write images with boxes, and print a table or JSON.

    Args:
        arguments: Arguments of the command.
        files: Paths or contents of the images' files.
        detected: Objects of each image.
        labels: Labels of the model or the command.
    """
    names = list(arguments.image)
    for path, file, objects in zip(arguments.output, files, detected, strict=False):
        write_durably(Path(path), drawn(file, objects, labels))
    if arguments.json:
        outputs = [
            {"image": name, "objects": [asdict(one) for one in found]}
            for name, found in zip(names, detected, strict=True)
        ]
        print_json({"outputs": outputs})
        return
    rows = [
        [name if not place else "", *row]
        for name, found in zip(names, detected, strict=True)
        for place, row in enumerate(_rows(found))
    ]
    print(table(rows, ["image", "label", "score", "xmin", "ymin", "xmax", "ymax"]))


def _rows(objects: Sequence[Detection]) -> list[list[str]]:
    """Return the cells of the objects of an image; a row that names none if there are none."""
    rows = [
        [
            detection.label,
            f"{detection.score:.4f}",
            *(str(edge) for edge in asdict(detection.box).values()),
        ]
        for detection in objects
    ]
    return rows or [["(no objects)", *[""] * 5]]


def drawn(image: str | bytes, objects: Sequence[Detection], labels: Sequence[str]) -> bytes:
    """Return a PNG file of an image with boxes, labels and scores.

    Args:
        image: Path or content of the image's file.
        objects: Objects of the image.
        labels: Labels of the model.
    """
    from PIL import Image, ImageDraw, ImageFont

    canvas = Image.fromarray(read_image(image))
    pen = ImageDraw.Draw(canvas)
    unit = max(1, min(canvas.size) // 200)
    font = ImageFont.load_default(size=max(10, 6 * unit))
    for one in reversed(objects):  # the best is drawn last
        color = _COLORS[labels.index(one.label) % len(_COLORS)]
        edges = [*asdict(one.box).values()]
        corners = [
            *(min(start, end) for start, end in zip(edges[:2], edges[2:], strict=True)),
            *(max(start, end) for start, end in zip(edges[:2], edges[2:], strict=True)),
        ]
        pen.rectangle(corners, outline=color, width=2 * unit)
        text = f"{one.label} {one.score:.2f}"
        left, top = max(0, corners[0]), max(0, corners[1])
        pen.rectangle(pen.textbbox((left, top), text, font=font), fill=color)
        pen.text((left, top), text, fill="white", font=font)
    file = BytesIO()
    canvas.save(file, "PNG")
    return file.getvalue()
