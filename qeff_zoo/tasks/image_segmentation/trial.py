# SPDX-License-Identifier: Apache-2.0
"""Sample images through a package that segments images."""

import numpy as np

from qeff_zoo.runtime.program import Array
from qeff_zoo.tasks.depth_estimation.points import values_of
from qeff_zoo.tasks.image_segmentation.session import ImageSegmentationSession, unpacked
from qeff_zoo.tasks.images.trial import ImageTrial


class SegmentationTrial(ImageTrial):
    """Runs a segmentation package on sample images; of a model with queries, labels and masks are a row each.

    Args:
        session: Session of the package.
    """

    session: ImageSegmentationSession

    def __init__(self, session: ImageSegmentationSession) -> None:
        super().__init__(session)
        self.rows = 2 if session.queries else 1

    def values_of(self, outputs: Array) -> Array:
        """Return values of the maps of each image, after the logits of queries if there are any; short rows repeat."""
        if not self.session.queries:
            return values_of(outputs)
        classes, maps = unpacked(outputs, len(self.session.labels) + 1)
        rows = values_of(maps)
        labels = np.stack([np.resize(class_, rows.shape[1]) for class_ in classes])
        return np.stack([labels, rows], axis=1).reshape(-1, rows.shape[1])
