# SPDX-License-Identifier: Apache-2.0
"""Sample images and texts through a package that detects objects which texts name."""

import numpy as np

from qeff_zoo.runtime.program import Array
from qeff_zoo.tasks.images.trial import ImageTrial
from qeff_zoo.tasks.zero_shot_detection.session import ZeroShotDetectionSession
from qeff_zoo.validation.trial import sample_texts
from qeff_zoo.validation.trial.package_runner import Key, Trial, TrialContext


class ZeroShotDetectionTrial(ImageTrial):
    """Runs a package on sample images and texts; the logits of all texts are a row of an image, its boxes another.

    Args:
        session: Session of the package.
    """

    session: ZeroShotDetectionSession
    rows = 2

    def run(self, context: TrialContext) -> Trial:
        """Run every stage."""
        session, longest = self.session, self.session.max_length
        lengths = [longest, longest // 2 + 1, 1, longest // 3 + 1]
        drawn = sample_texts.draw(lengths, session.tokenizer, session.vocab_size, whole=True)
        # transformers takes a text that begins with token 0 for padding.
        self._texts = [[ids[0] or 1, *ids[1:]] for ids in drawn]
        self._embeddings = session.embed_texts(self._texts)
        patches = int(session.patches)
        #: Number of compared values of each row, which the values of shorter ones repeat to.
        self._width = max(patches * max(4, len(drawn)), self._embeddings.shape[1])
        return super().run(context)

    def values_of(self, outputs: Array) -> Array:
        """Return the logits and the boxes of each image, (2 * images, values)."""
        both = self.session.logits_of(outputs, self._embeddings)
        return np.stack(
            [np.resize(one, self._width) for pair in zip(*both, strict=True) for one in pair]
        )

    def run_texts(
        self,
        context: TrialContext,
        first: int,
        keys: dict[str, list[Key]],
        answers: dict[str, Array],
    ) -> list[list[int]]:
        """Add stages of sample texts, and return these."""
        texts = self._texts
        for size in self.session.batch_sizes:
            rows = [number % len(texts) for number in range(max(size, len(texts)))]
            calls = [
                rows[start : start + size] for start in range(0, len(rows) // size * size, size)
            ]
            found = [self.session.run_texts([texts[one] for one in call]) for call in calls]
            stage = f"texts_{size}"
            keys[stage] = [(first + one, 0, 0) for call in calls for one in call]
            rows_of_all = np.concatenate(found)
            answers[stage] = np.stack([np.resize(one, self._width) for one in rows_of_all])
            context.step(1)
        return texts
