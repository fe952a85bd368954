# SPDX-License-Identifier: Apache-2.0
"""Sample images through a package that detects objects."""

import numpy as np

from qeff_zoo.runtime.program import Array
from qeff_zoo.tasks.images.trial import ImageTrial


class DetectionTrial(ImageTrial):
    """Runs a detection package on sample images; the logits of an image are a row, its boxes another.

    Args:
        session: Session of the package.
    """

    rows = 2

    def values_of(self, outputs: Array) -> Array:
        """Return the logits and the boxes of each image, (2 * images, values); the shorter row repeats."""
        logits, boxes = outputs[..., :-4], outputs[..., -4:]
        width = max(logits[0].size, boxes[0].size)
        rows = [np.resize(one, width) for pair in zip(logits, boxes, strict=True) for one in pair]
        return np.stack(rows)
