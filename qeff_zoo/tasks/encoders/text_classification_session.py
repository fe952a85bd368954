# SPDX-License-Identifier: Apache-2.0
"""Session of a text classifier or reranker: texts or pairs of texts in, labels with scores out."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qeff_zoo.checkpoint.sentence_transformers.cross_encoder import read_cross_encoder
from qeff_zoo.checkpoint.sentence_transformers.files import files_of
from qeff_zoo.contract import TEXT_CLASSIFICATION
from qeff_zoo.runtime import labels
from qeff_zoo.runtime.labels import Score, best_first
from qeff_zoo.runtime.program import Array, Program
from qeff_zoo.runtime.text.cross_encoders import reading_as
from qeff_zoo.runtime.text.texts import Texts
from qeff_zoo.tasks.encoders.session import EncoderSession


@dataclass(frozen=True, kw_only=True)
class Classification:
    """Labels of a text with their scores.

    Args:
        text: The text, or the first of a pair; "" for token ids.
        pair: The second text of a pair; None without.
        scores: Scores of every label, the best first.
    """

    text: str
    pair: str | None
    scores: tuple[Score, ...]

    @property
    def label(self) -> str:
        """Label with the best score."""
        return self.scores[0].label

    @property
    def score(self) -> float:
        """Score of the best label; for a reranker, the relevance of the second text to the first."""
        return self.scores[0].score


class TextClassificationSession(EncoderSession):
    """An opened package of the task `text-classification`; see `EncoderSession` for how to open it.

    Raises:
        GenerationError: The labels do not fit the graph; or an error of the base class.

    Example:
        >>> session = qeff_zoo.load("packages/bge-reranker-v2-m3")  # doctest: +SKIP
        >>> pairs = [("what is a panda?", "A bear of China."), ("what is a panda?", "Hi.")]
        >>> [result.score for result in session.classify(pairs)]  # doctest: +SKIP
    """

    task = TEXT_CLASSIFICATION
    output = "logits"
    takes_pairs = True

    def __init__(self, folder: Path, program: Program) -> None:
        super().__init__(folder, program)
        #: Settings of a CrossEncoder of sentence-transformers; None for a model that is only transformers'.
        self.encoder = read_cross_encoder(files_of(folder))
        self.labels = self._labels(int(program.outputs[self.output].shape[-1]))
        #: Function from logits to scores, along the last axis.
        self.activate = labels.activation_of(self.config, len(self.labels), self.encoder)
        if self.encoder is not None and self.encoder.modules:
            self._reader = reading_as(self.encoder, self._reader, self.settings)
            self.max_length = self._reader.max_length

    def _labels(self, count: int) -> tuple[str, ...]:
        return labels.names_of(self.config, count)

    def _prompt(self, prompt: str | None, name: str | None) -> str | None:
        """Return the prompt of a request; None for the session's default."""
        if prompt is None and name is None:
            return None
        return self.settings.prompt(prompt, name)

    def classify(
        self,
        texts: str | tuple[str, str] | Sequence[Texts],
        *,
        adapter: str | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
    ) -> list[Classification]:
        """Return the score of every label for each text.

        Args:
            texts: Texts and pairs of texts, truncated to `max_length` tokens as in transformers, the longer text of a
                pair first; or token ids, unchanged. One pair is a tuple, several are a list of tuples.
            adapter: Name of one of `adapters`; None for the base model.
            prompt_name: Name of one of the checkpoint's prompts; None for its default prompt.
            prompt: Prompt in place of those.

        Raises:
            GenerationError: A list of token ids is empty, too long, or outside the vocabulary; or there is no such
                prompt.
        """
        given: list[Texts] = [texts] if isinstance(texts, str | tuple) else list(texts)
        chosen_prompt = self._prompt(prompt, prompt_name)
        answers = self._answer(self.read(given, prompt=chosen_prompt), adapter)
        return [
            self._classification(text, self.activate(logits))
            for text, logits in zip(given, answers, strict=True)
        ]

    def _classification(self, text: Texts, values: Array) -> Classification:
        one, pair = text if isinstance(text, tuple) else (text, None)
        return Classification(
            text=one if isinstance(one, str) else "",
            pair=pair if isinstance(pair, str) else None,
            scores=best_first(self.labels, values),
        )
