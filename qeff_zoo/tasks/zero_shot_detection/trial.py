# SPDX-License-Identifier: Apache-2.0
"""Sample images and texts through a package that detects objects which texts name."""

import numpy as np

from qeff_zoo.runtime.program import Array
from qeff_zoo.tasks.images.trial import ZeroShotTrial
from qeff_zoo.tasks.zero_shot_detection.session import ZeroShotDetectionSession
from qeff_zoo.validation.trial.package_runner import Trial, TrialContext


class ZeroShotDetectionTrial(ZeroShotTrial):
    """Runs a package on sample images and texts; the logits of all texts are a row of an image, its boxes another.

    Args:
        session: Session of the package.
    """

    session: ZeroShotDetectionSession
    rows = 2

    def run(self, context: TrialContext) -> Trial:
        """Run every stage."""
        texts, patches = self.texts(), self.session.patches
        self._embeddings = self.session.embed_texts(texts)
        #: Number of compared values of each row, which the values of shorter ones repeat to.
        self._width = max(patches * max(4, len(texts)), self._embeddings.shape[1])
        return super().run(context)

    def texts(self) -> list[list[int]]:
        """Return the sample texts; transformers takes a text that begins with token 0 for padding."""
        return [[ids[0] or 1, *ids[1:]] for ids in super().texts()]

    def values_of(self, outputs: Array) -> Array:
        """Return the logits and the boxes of each image, (2 * images, values)."""
        both = self.session.logits_of(outputs, self._embeddings)
        return np.stack(
            [np.resize(one, self._width) for pair in zip(*both, strict=True) for one in pair]
        )

    def text_values_of(self, outputs: Array) -> Array:
        """Return the embedding of each text, repeated to the values of an image."""
        rows = outputs.astype(np.float32, copy=False)
        return np.stack([np.resize(row, self._width) for row in rows])
