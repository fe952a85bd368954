# SPDX-License-Identifier: Apache-2.0
"""Sample images through a package that finds keypoints."""

from qeff_zoo.runtime.program import Array
from qeff_zoo.tasks.images.trial import ImageTrial


class KeypointTrial(ImageTrial):
    """Runs a keypoint detection package on sample images, each with one person.

    Args:
        session: Session of the package.
    """

    def values_of(self, outputs: Array) -> Array:
        """Return the heat maps of each image as a row."""
        return outputs.reshape(len(outputs), -1)
