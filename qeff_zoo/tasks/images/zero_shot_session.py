# SPDX-License-Identifier: Apache-2.0
"""Session of a zero-shot image classification package: scores of labels for each image, and embeddings."""

from collections.abc import Sequence

import numpy as np

from qeff_zoo.contract import ZERO_SHOT
from qeff_zoo.errors import GenerationError
from qeff_zoo.media.images import LIMITS, ImageLimits, ImageSource
from qeff_zoo.runtime.activations import sigmoid, softmax
from qeff_zoo.runtime.labels import Score, best_first
from qeff_zoo.runtime.program import Array
from qeff_zoo.runtime.text.texts import Text
from qeff_zoo.tasks.images.session import ImageEmbeddingSession
from qeff_zoo.tasks.images.text_session import TextImageSession

#: Default text of a label, which replaces `{}`; as in transformers' pipeline.
TEMPLATE = "This is a photo of {}."


class ZeroShotSession(TextImageSession, ImageEmbeddingSession):
    """An opened package of the task `zero-shot-image-classification`; see `ImageSession` for how to open it.

    Args:
        folder: The package.
        program: Opened image encoder of the package.
        encoder: Opened text encoder of the package.
        **given: Arguments of `ImageSession`.

    Example:
        >>> session = qeff_zoo.load("packages/clip-vit-base-patch32")  # doctest: +SKIP
        >>> session.classify(["a.png"], ["a cat", "a dog"])[0][0].label  # doctest: +SKIP
        'a cat'
    """

    task = ZERO_SHOT
    reads_texts = True
    padding = 1

    def classify(
        self,
        images: ImageSource | Sequence[ImageSource],
        labels: Sequence[str],
        *,
        template: str = TEMPLATE,
        limits: ImageLimits = LIMITS,
    ) -> list[tuple[Score, ...]]:
        """Return the scores of labels for each image, the best first.

        Args:
            images: Images, see `prepare`.
            labels: Descriptions of images.
            template: Text of a label, which replaces `{}`.
            limits: Limits of each image.

        Returns:
            Scores per image: shares of 1; for models that were trained on pairs, an independent probability of each
            label.
        """
        if not labels or "{}" not in template:
            raise GenerationError(
                f"Cannot score the labels {list(labels)!r} in the text {template!r}; expected at least one label, and "
                "{} where it belongs in the text. Give both."
            )
        read = self.read([template.replace("{}", label) for label in labels])
        texts, outputs = self._run_all([one.ids for one in read])
        logits = outputs["scale"] * (self.embed(images, limits) @ texts.T) + outputs.get("bias", 0)
        activate = sigmoid if "bias" in outputs else softmax
        return [best_first(labels, activate(row)) for row in logits]

    def embed_texts(self, texts: str | Sequence[Text]) -> Array:
        """Return one embedding per text, in the space of the images' embeddings.

        Args:
            texts: Texts, truncated to `max_length` tokens; or token ids, unchanged.

        Returns:
            float32, (texts, hidden), each of length 1.
        """
        read = self.read([texts] if isinstance(texts, str) else texts)
        return self._run_all([one.ids for one in read])[0]

    def _run_all(self, every: Sequence[Sequence[int]]) -> tuple[Array, dict[str, Array]]:
        """Run as many calls as needed; return embeddings, and the factors from cosines to logits."""
        outputs = [self.run_texts(every[start:stop]) for start, stop in self.calls(len(every))]
        *_, embeddings = outputs
        return np.concatenate([output["output"] for output in outputs]), embeddings
