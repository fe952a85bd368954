# SPDX-License-Identifier: Apache-2.0
"""`run` of keypoint detection packages: images and boxes in, keypoints out, and images with them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from qeff_zoo.contract.commands import Run
from qeff_zoo.disk.staging import write_durably
from qeff_zoo.errors import GenerationError
from qeff_zoo.media.images import read_image
from qeff_zoo.tasks.images.verbs import fetch_each
from qeff_zoo.tasks.keypoint_detection.poses import Pose, check_boxes
from qeff_zoo.tasks.object_detection.boxes import check_threshold
from qeff_zoo.terminal.printing import print_json, table

#: Colors of people, one for each in turn.
_COLORS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080")


@dataclass(frozen=True)
class FindKeypoints(Run):
    """Finds keypoints of people, and draws them.

    Raises:
        GenerationError: A box or the threshold is out of its range, or boxes are for several images.
    """

    def __post_init__(self) -> None:
        """Check the arguments before the package is opened."""
        if self.arguments.threshold is not None:
            check_threshold(self.arguments.threshold)
        if self.arguments.box:
            check_boxes(self.arguments.box)
            if len(self.arguments.image) > 1:
                raise GenerationError(
                    f"--box is given, and --image {len(self.arguments.image)} times; expected one image, to which the "
                    "boxes belong. Run each image alone."
                )

    def __call__(self, session: Any) -> None:
        """Find, draw and print."""
        names, given = list(self.arguments.image), self.arguments
        files = fetch_each(names)
        boxes = [given.box] if given.box else None
        index = given.dataset_index or 0
        detected = session.detect(files, boxes, threshold=given.threshold, dataset_index=index)
        for path, file, poses in zip(given.output, files, detected, strict=False):
            write_durably(Path(path), drawn(file, poses))
        if given.json:
            outputs = [
                {"image": name, "poses": [asdict(pose) for pose in poses]}
                for name, poses in zip(names, detected, strict=True)
            ]
            print_json({"outputs": outputs})
            return
        rows = [
            [
                name,
                str(number),
                point.label,
                *(f"{one:.4g}" for one in (point.score, point.x, point.y)),
            ]
            for name, poses in zip(names, detected, strict=True)
            for number, pose in enumerate(poses)
            for point in pose.keypoints
        ]
        print(table(rows, ["image", "person", "label", "score", "x", "y"]))


def drawn(image: str | bytes, poses: Sequence[Pose]) -> bytes:
    """Return a PNG file of an image with keypoints and boxes.

    Args:
        image: Path or content of the image's file.
        poses: Poses of the image.
    """
    from PIL import Image, ImageDraw

    canvas = Image.fromarray(read_image(image))
    pen = ImageDraw.Draw(canvas)
    unit = max(1, min(canvas.size) // 200)
    for number, pose in enumerate(poses):
        color = _COLORS[number % len(_COLORS)]
        left, top, width, height = pose.box
        pen.rectangle((left, top, left + width, top + height), outline=color, width=unit)
        for point in pose.keypoints:
            corner = (
                point.x - 2 * unit,
                point.y - 2 * unit,
                point.x + 2 * unit,
                point.y + 2 * unit,
            )
            pen.ellipse(corner, fill=color, outline="white")
    file = BytesIO()
    canvas.save(file, "PNG")
    return file.getvalue()
