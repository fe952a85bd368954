# SPDX-License-Identifier: Apache-2.0
"""Logits processors of generation_config.json for generated text, as in transformers' `generate`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo.errors import GenerationError
from qeff_zoo.package.files import read_json
from qeff_zoo.runtime.program import Array


@dataclass(frozen=True, kw_only=True)
class LogitsProcessorSettings:
    """Logits processor settings of a package. Lengths count the start token, as in transformers.

    Args:
        start: Start token of the decoder.
        ends: Tokens that end generation.
        first: Token that is forced at the beginning; None for any.
        last: Token that is forced at the maximum length; None for any.
        min_length: Minimum number of tokens.
        min_new_tokens: Minimum number of tokens without the start token.
        max_length: Maximum number of tokens; None for the rest of the context.
        max_new_tokens: Maximum number of tokens without the initial ones; it overrides `max_length`.
        ngram: Length of n-grams that are not repeated; 0 for no restriction.
        source_ngram: Length of n-grams of the source that are not generated; 0 for no restriction.
        never: Tokens that are always suppressed.
        not_first: Tokens that are suppressed at the beginning.
        not_after: Tokens that are suppressed after certain sequences, as pairs of a sequence and a token.
        repetition_penalty: Default for requests without one.
    """

    start: int
    ends: frozenset[int] = frozenset()
    first: int | None = None
    last: int | None = None
    min_length: int = 0
    min_new_tokens: int = 0
    max_length: int | None = None
    max_new_tokens: int | None = None
    ngram: int = 0
    source_ngram: int = 0
    never: tuple[int, ...] = ()
    not_first: tuple[int, ...] = ()
    not_after: tuple[tuple[tuple[int, ...], int], ...] = ()
    repetition_penalty: float = field(default=1.0)

    @classmethod
    def read(cls, folder: Path) -> "LogitsProcessorSettings":
        """Return the settings of a package; older checkpoints have them in config.json.

        Raises:
            GenerationError: If the settings have no start token.
        """
        config = read_json(folder / "config.json")
        inner = config.get("decoder") or config.get("text_config")
        if isinstance(inner, Mapping):  # a config of several models
            config = {**inner, **{name: one for name, one in config.items() if one is not None}}
        settings = read_json(folder / "generation_config.json") or config
        start = next(
            (
                found
                for one in (settings, config)
                for name in ("decoder_start_token_id", "bos_token_id")
                if isinstance(found := one.get(name), int)
            ),
            None,
        )
        if start is None:
            raise GenerationError(
                f"Package {str(folder)!r} has no decoder_start_token_id; expected the token that answers begin with, "
                "in generation_config.json. Add it to the checkpoint, and build again."
            )
        ends = frozenset(_listed(settings.get("eos_token_id", config.get("eos_token_id"))))
        bad = [tuple(word) for word in settings.get("bad_words_ids") or ()]
        bad = [word for word in bad if not (len(word) == 1 and word[0] in ends)]
        return cls(
            start=start,
            ends=ends,
            first=settings.get("forced_bos_token_id"),
            last=next(iter(_listed(settings.get("forced_eos_token_id"))), None),
            min_length=settings.get("min_length") or 0,
            min_new_tokens=settings.get("min_new_tokens") or 0,
            max_length=settings.get("max_length"),
            max_new_tokens=settings.get("max_new_tokens"),
            ngram=settings.get("no_repeat_ngram_size") or 0,
            source_ngram=settings.get("encoder_no_repeat_ngram_size") or 0,
            never=(
                *(settings.get("suppress_tokens") or ()),
                *(word[0] for word in bad if len(word) == 1),
            ),
            not_first=tuple(settings.get("begin_suppress_tokens") or ()),
            not_after=tuple((word[:-1], word[-1]) for word in bad if len(word) > 1),
            repetition_penalty=settings.get("repetition_penalty") or 1.0,
        )

    def limit(self, begun: int) -> int | None:
        """Return the maximum number of tokens after the initial ones; None for the rest of the context."""
        if self.max_new_tokens:
            return self.max_new_tokens
        return max(1, self.max_length - begun) if self.max_length else None

    def allowed(
        self,
        logits: Array,
        source: Sequence[int],
        answer: Sequence[int],
        *,
        limit: int,
        begun: Sequence[int] = (),
    ) -> Array:
        """Return logits with the lowest value for suppressed tokens.

        Args:
            logits: Logits (vocab,), float32, after the newest token; they are not modified.
            source: Token ids of the source.
            answer: Generated tokens, without the initial ones.
            limit: Maximum number of generated tokens.
            begun: Initial tokens of the text; empty for `start` alone.
        """
        begun = begun or (self.start,)
        forced = self.first if len(begun) == 1 and not answer else None
        if self.last is not None and len(answer) == limit - 1:
            forced = self.last
        if forced is not None:
            scores = np.full_like(logits, -np.inf)
            scores[forced] = 0
            return scores
        scores = logits.copy()
        scores[[*self.never, *self._not_now(source, begun, answer)]] = -np.inf
        return scores

    def _not_now(
        self, source: Sequence[int], begun: Sequence[int], answer: Sequence[int]
    ) -> Iterator[int]:
        """Yield tokens that are suppressed after the text so far."""
        written = [*begun, *answer]
        if len(written) < max(self.min_length, self.min_new_tokens + len(begun)):
            yield from self.ends
        if len(answer) == (0 if self.first is None or len(begun) > 1 else 1):
            yield from self.not_first
        for before, token in self.not_after:
            if len(written) > len(before) and tuple(written[-len(before) :]) == before:
                yield token
        yield from _completing(written, written, self.ngram)
        yield from _completing(source, written, self.source_ngram)


def _completing(text: Sequence[int], written: Sequence[int], ngram: int) -> Iterator[int]:
    """Yield tokens that would complete an n-gram of a text."""
    newest = [*written[len(written) - ngram + 1 :]] if ngram else []
    if len(newest) != ngram - 1:
        return
    for start in range(len(text) - ngram + 1):
        if [*text[start : start + ngram - 1]] == newest:
            yield text[start + ngram - 1]


def _listed(value: Any) -> list[int]:
    return [] if value is None else value if isinstance(value, list) else [value]
