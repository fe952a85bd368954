# SPDX-License-Identifier: Apache-2.0
"""Sample images and prompts through a package that generates masks."""

import numpy as np

from qeff_zoo.runtime.program import Array
from qeff_zoo.tasks.depth_estimation.points import values_of
from qeff_zoo.tasks.images.trial import ImageTrial
from qeff_zoo.tasks.mask_generation.prompts import MaskPrompt, tokens_of
from qeff_zoo.tasks.mask_generation.session import MaskGenerationSession
from qeff_zoo.validation.trial.sample_prompts import SAMPLES


class MaskTrial(ImageTrial):
    """Runs a package on sample images and prompts; the masks of a prompt are a row, its scores another.

    Args:
        session: Session of the package.
    """

    session: MaskGenerationSession
    rows = 2 * len(SAMPLES)

    def values_of(self, outputs: Array) -> Array:
        """Return the masks and the scores of all prompts for each image, (images * rows, values)."""
        height, width = int(self.session.size[0]), int(self.session.size[1])
        rows = []
        for embeddings in outputs:
            for points, edges in SAMPLES:
                left, top, right, bottom = edges or (0, 0, 0, 0)
                prompt = MaskPrompt(
                    points=[(x, y) for x, y, _ in points],
                    labels=[bool(label) for *_, label in points],
                    box=(left, top, right - left, bottom - top) if edges else None,
                )
                coordinates, labels = tokens_of(prompt, (width, height))
                masks, scores = self.session.masks(
                    embeddings[None], coordinates[None], labels[None]
                )
                (values,) = values_of(masks)
                rows += [values, np.resize(scores, len(values))]
        return np.stack(rows)
