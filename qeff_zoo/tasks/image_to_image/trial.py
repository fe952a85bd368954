# SPDX-License-Identifier: Apache-2.0
"""Sample images through a package that returns images."""

from collections.abc import Sequence

from qeff_zoo.runtime.program import Array
from qeff_zoo.tasks.depth_estimation.points import values_of
from qeff_zoo.tasks.images.trial import ImageTrial, own_size_stages
from qeff_zoo.validation.trial.cases import ImageStage

#: Divisor of the sides of sample images: the model computes states of each pixel.
_SMALLER = 4


class ImageToImageTrial(ImageTrial):
    """Runs an image-to-image package on sample images.

    Args:
        session: Session of the package.
    """

    def values_of(self, outputs: Array) -> Array:
        """Return the compared values of images."""
        return values_of(outputs)


def stages(batch_sizes: Sequence[int]) -> tuple[list[ImageStage], list[list[int]]]:
    """Return the stages of a package, as `own_size_stages` does, with smaller images."""
    own, images = own_size_stages(batch_sizes)
    return own, [[seed, width // _SMALLER, height // _SMALLER] for seed, width, height in images]
