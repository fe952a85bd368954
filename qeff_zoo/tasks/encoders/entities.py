# SPDX-License-Identifier: Apache-2.0
"""Entities of a text: scores of labels for tokens in, spans with a label out, as in transformers' pipeline."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.program import Array
from qeff_zoo.runtime.text.tokenizer import Encoded, Tokenizer

#: Rules for the tokens of a word and of an entity, by transformers' names.
Aggregation: TypeAlias = Literal["none", "simple", "first", "average", "max"]
AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)
#: Label of tokens outside of all entities.
OUTSIDE = ("O",)


@dataclass(frozen=True, kw_only=True)
class Entity:
    """Span of a text with a label.

    Args:
        text: Text of the span.
        start: Start in the text, in characters.
        end: End in the text.
        label: Label without `B-` and `I-`; with the aggregation "none", the token's label as it is.
        score: Mean probability of the label.
    """

    text: str
    start: int
    end: int
    label: str
    score: float


@dataclass(frozen=True)
class _Part:
    """Token or word.

    Args:
        start: Start in the text.
        end: End in the text.
        shares: Probabilities of all labels.
        continues: Whether it continues the word before.
    """

    start: int
    end: int
    shares: Array
    continues: bool = False

    @property
    def best(self) -> int:
        """Label with the best score."""
        return int(self.shares.argmax())


def entities_of(
    text: str,
    tokens: Sequence[_Part],
    labels: Sequence[str],
    aggregation: Aggregation,
    ignored: Iterable[str] = OUTSIDE,
) -> list[Entity]:
    """Return the entities of a text in their order.

    Args:
        text: The text.
        tokens: Tokens from `parts_of`.
        labels: Names of the labels.
        aggregation: Rule by which the tokens of a word get one label: each its own ("none", which makes an entity of
            each token, and "simple"), that of the first token, of the mean scores, or of the best score.
        ignored: Labels of no entities.
    """
    parts = tokens if aggregation in ("none", "simple") else [*_words(tokens, aggregation)]
    groups = [[part] for part in parts] if aggregation == "none" else _groups(parts, labels)
    entities = []
    for group in groups:
        name = labels[group[0].best]
        label = name if aggregation == "none" else name.partition("-")[2] or name
        score = float(np.mean([part.shares.max() for part in group]))
        start, end = group[0].start, group[-1].end
        if label not in {*ignored}:
            span = text[start:end]
            entities.append(Entity(text=span, start=start, end=end, label=label, score=score))
    return entities


def parts_of(text: str, encoded: Encoded, shares: Array, tokenizer: Tokenizer) -> list[_Part]:
    """Return the tokens of a text, without those that the tokenizer adds.

    Args:
        text: The text.
        encoded: Tokens.
        shares: Probabilities (tokens, labels).
        tokenizer: Tokenizer of the model, whose prefix of tokens within a word shows which those are.
    """
    unknown = tokenizer.token_named(None, ("unk_token",))
    parts = []
    for token, (start, end), special, share in zip(
        encoded.ids, encoded.offsets, encoded.special, shares, strict=True
    ):
        if special:
            continue
        if tokenizer.subword_prefix:
            continues = len(tokenizer.name(token)) != end - start
        else:  # transformers' rule for tokenizers that know no words
            continues = start > 0 and " " not in text[start - 1 : start + 1]
        parts.append(_Part(start, end, share, continues and token != unknown))
    return parts


def require_aggregation(aggregation: str) -> None:
    """Check the name of an aggregation.

    Raises:
        GenerationError: It is unknown.
    """
    if aggregation not in AGGREGATIONS:
        raise GenerationError(
            f"Cannot aggregate the labels of tokens by {aggregation!r}; expected one of {', '.join(AGGREGATIONS)}. "
            "Change the aggregation."
        )


def _words(tokens: Sequence[_Part], aggregation: Aggregation) -> Iterator[_Part]:
    """Yield words with the scores of one of their tokens, or with the mean ones."""
    words: list[list[_Part]] = []
    for token in tokens:
        if token.continues and words:
            words[-1].append(token)
        else:
            words.append([token])
    for word in words:
        if aggregation == "first":
            shares = word[0].shares
        elif aggregation == "max":
            shares = max(word, key=lambda token: token.shares.max()).shares
        else:
            shares = np.mean([token.shares for token in word], axis=0)
        yield _Part(word[0].start, word[-1].end, shares)


def _groups(parts: Sequence[_Part], labels: Sequence[str]) -> list[list[_Part]]:
    """Return neighbours of one kind together, but for the beginning of another entity (`B-`)."""
    groups: list[list[_Part]] = []
    kind = ""
    for part in parts:
        name = labels[part.best]
        newest = name[2:] if name[:2] in ("B-", "I-") else name
        if groups and newest == kind and not name.startswith("B-"):
            groups[-1].append(part)
        else:
            groups.append([part])
        kind = newest
    return groups
