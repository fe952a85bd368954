# SPDX-License-Identifier: Apache-2.0
"""Session of a token classifier: texts in, a label with its score for every token out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from qeff_zoo.contract import TOKEN_CLASSIFICATION
from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime import labels
from qeff_zoo.runtime.activations import softmax
from qeff_zoo.runtime.program import Array, Program
from qeff_zoo.runtime.text.texts import Text
from qeff_zoo.runtime.text.tokenizer import Encoded
from qeff_zoo.tasks.encoders.entities import (
    OUTSIDE,
    Aggregation,
    Entity,
    entities_of,
    parts_of,
    require_aggregation,
)
from qeff_zoo.tasks.encoders.session import EncoderSession


@dataclass(frozen=True, kw_only=True)
class TokenLabel:
    """Label of a token.

    Args:
        text: Text of the token; "" for token ids.
        start: Start in the text, in characters; for token ids, the token's number.
        end: End in the text.
        label: Label with the best score.
        score: Probability of the label.
    """

    text: str
    start: int
    end: int
    label: str
    score: float


class TokenClassificationSession(EncoderSession):
    """An opened package of the task `token-classification`; see `EncoderSession` for how to open it.

    Raises:
        GenerationError: The labels do not fit the graph; or an error of the base class.

    Example:
        >>> session = qeff_zoo.load("packages/bert-base-NER")  # doctest: +SKIP
        >>> [token.label for token in session.classify("Ada was in Turin.")[0]]  # doctest: +SKIP
    """

    task = TOKEN_CLASSIFICATION
    output = "logits"

    def __init__(self, folder: Path, program: Program) -> None:
        super().__init__(folder, program)
        self.labels = labels.names_of(self.config, int(program.outputs[self.output].shape[-1]))

    def classify(
        self, texts: str | Sequence[Text], *, adapter: str | None = None
    ) -> list[list[TokenLabel]]:
        """Label every token of each text, without special tokens of the tokenizer.

        Args:
            texts: Texts, truncated to `max_length` tokens; or token ids, unchanged.
            adapter: Name of one of `adapters`; None for the base model.

        Raises:
            GenerationError: A list of token ids is empty, too long, or outside the vocabulary.
        """
        given = [texts] if isinstance(texts, str) else list(texts)
        encoded = self.read(given)
        results = []
        answers = self._answer(encoded, adapter)
        for text, one, logits in zip(given, encoded, answers, strict=True):
            probabilities = softmax(logits[: len(one.ids)])  # (tokens, labels)
            results.append(
                [
                    TokenLabel(
                        text=text[start:end] if isinstance(text, str) else "",
                        start=start,
                        end=end,
                        label=self.labels[int(share.argmax())],
                        score=float(share.max()),
                    )
                    for (start, end), special, share in zip(
                        one.offsets, one.special, probabilities, strict=True
                    )
                    if not special
                ]
            )
        return results

    def entities(
        self,
        texts: str | Sequence[str],
        aggregation: Aggregation = "simple",
        *,
        ignored: Iterable[str] = OUTSIDE,
        adapter: str | None = None,
    ) -> list[list[Entity]]:
        """Return the entities of each text: neighbouring tokens or words of one label.

        Args:
            texts: Texts, truncated to `max_length` tokens.
            aggregation: Rule by which the tokens of a word get one label, by transformers' names: "none" for single
                tokens, "simple" for no words, "first", "average" or "max".
            ignored: Labels of no entities.
            adapter: Name of one of `adapters`; None for the base model.

        Raises:
            GenerationError: The aggregation is unknown, or texts are given as token ids.
        """
        require_aggregation(aggregation)
        given = [texts] if isinstance(texts, str) else list(texts)
        if any(not isinstance(text, str) for text in given):
            raise GenerationError(
                "Cannot find entities in token ids, which have no words; expected texts. Use `classify`."
            )
        encoded = self.read(given)
        outputs = self._answer(encoded, adapter)
        return [
            self.entities_of(text, one, logits, aggregation, ignored)
            for text, one, logits in zip(given, encoded, outputs, strict=True)
        ]

    def entities_of(
        self,
        text: str,
        encoded: Encoded,
        logits: Array,
        aggregation: Aggregation,
        ignored: Iterable[str] = OUTSIDE,
    ) -> list[Entity]:
        """Return the entities of a text by the output of the program for it, see `entities`."""
        assert self.tokenizer is not None
        shares = softmax(logits[: len(encoded.ids)])
        tokens = parts_of(text, encoded, shares, self.tokenizer)
        return entities_of(text, tokens, self.labels, aggregation, ignored)
