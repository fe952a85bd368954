# SPDX-License-Identifier: Apache-2.0
"""`run` of image encoders: images in, embeddings or scores out."""

from dataclasses import asdict
from typing import Any

from qeff_zoo.contract.commands import Run
from qeff_zoo.media.fetching import fetch_media, is_url
from qeff_zoo.tasks.encoders.verbs import print_embeddings
from qeff_zoo.terminal.printing import print_json, table

_BEST = 5  # labels of an image that are shown


class EmbedImages(Run):
    """Embeds images, and compares them with one another."""

    def __call__(self, session: Any) -> None:
        """Embed and print."""
        images = list(self.arguments.image)
        embeddings = session.embed(fetch_each(images))
        print_embeddings(session, "image", images, embeddings, as_json=self.arguments.json)


class ClassifyImages(Run):
    """Scores the labels of images."""

    def __call__(self, session: Any) -> None:
        """Classify and print."""
        images = list(self.arguments.image)
        labels = [self.arguments.label] if self.arguments.label else []
        scores = session.classify(fetch_each(images), *labels)
        print_scores("image", images, scores, as_json=self.arguments.json)


class MatchImages(ClassifyImages):
    """Scores the given labels for images, or embeds the images without labels."""

    def __call__(self, session: Any) -> None:
        """Classify or embed, and print."""
        if self.arguments.label:
            super().__call__(session)
        else:
            EmbedImages(self.task, self.prompts, self.arguments)(session)


def print_scores(kind: str, inputs: list[str], of_inputs: Any, *, as_json: bool) -> None:
    """Print scores of labels.

    Args:
        kind: Kind of the inputs, "image" or "audio".
        inputs: Classified inputs.
        of_inputs: Scores of each input, the best first.
        as_json: Whether to print JSON, with all labels.
    """
    if as_json:
        outputs = [
            {kind: given, "scores": [asdict(score) for score in scores]}
            for given, scores in zip(inputs, of_inputs, strict=True)
        ]
        print_json({"outputs": outputs})
        return
    rows = [
        [given if not place else "", score.label, f"{score.score:.4f}"]
        for given, scores in zip(inputs, of_inputs, strict=True)
        for place, score in enumerate(scores[:_BEST])
    ]
    print(table(rows, [kind, "label", "score"]))


def fetch_each(paths: list[str], noun: str = "image") -> list[str | bytes]:
    """Return the contents of URLs, and other paths unchanged.

    Args:
        paths: Paths and URLs of images or videos.
        noun: Kind of the files, for messages.
    """
    return [fetch_media(path, noun=noun) if is_url(path) else path for path in paths]
