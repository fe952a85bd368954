# SPDX-License-Identifier: Apache-2.0
"""`run` of depth estimation packages: images in, images or arrays of depths out."""

import base64
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo.contract.commands import Run
from qeff_zoo.disk.staging import write_durably
from qeff_zoo.tasks.images.verbs import fetch_each
from qeff_zoo.terminal.printing import print_json, table


class EstimateDepth(Run):
    """Estimates the depth of images, and writes it to files."""

    def __call__(self, session: Any) -> None:
        """Estimate, write and print."""
        images = list(self.arguments.image)
        estimates = session.estimate(fetch_each(images))
        for path, estimate in zip(self.arguments.output, estimates, strict=False):
            write_durably(Path(path), _content(path, estimate))
        if self.arguments.json:
            outputs = [
                {
                    "image": image,
                    "predicted_depth": estimate.predicted_depth.tolist(),
                    "depth": base64.b64encode(estimate.as_png()).decode(),
                }
                for image, estimate in zip(images, estimates, strict=True)
            ]
            print_json({"outputs": outputs})
            return
        rows = [
            [image, f"{width} x {height}", f"{depth.min():.4g}", f"{depth.max():.4g}"]
            for image, depth in zip(images, (one.predicted_depth for one in estimates), strict=True)
            for height, width in [depth.shape]
        ]
        print(table(rows, ["image", "pixels", "least depth", "largest depth"]))


def _content(path: str, estimate: Any) -> bytes:
    """Return the content of an output file: the grayscale image, or the array of depths."""
    if Path(path).suffix.lower() == ".png":
        return bytes(estimate.as_png())
    file = BytesIO()
    np.save(file, estimate.predicted_depth)
    return file.getvalue()
