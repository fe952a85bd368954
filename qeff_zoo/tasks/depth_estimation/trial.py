# SPDX-License-Identifier: Apache-2.0
"""Sample images through a package that estimates depth."""

from qeff_zoo.runtime.program import Array
from qeff_zoo.tasks.depth_estimation.points import values_of
from qeff_zoo.tasks.images.trial import ImageTrial


class DepthTrial(ImageTrial):
    """Runs a depth estimation package on sample images.

    Args:
        session: Session of the package.
    """

    def values_of(self, outputs: Array) -> Array:
        """Return the compared values of maps."""
        return values_of(outputs)
