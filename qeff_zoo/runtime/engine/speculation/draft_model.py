# SPDX-License-Identifier: Apache-2.0
"""Drafts of a smaller model: a separate package with the same vocabulary."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from operator import eq

from qeff_zoo.runtime.decoding.call_inputs import Piece
from qeff_zoo.runtime.decoding.decoder import Decoder
from qeff_zoo.runtime.decoding.sampling import Drawn, Sampler, Sampling, token_of
from qeff_zoo.runtime.engine.speculation.costs import Costs, behind, fastest
from qeff_zoo.runtime.engine.speculation.rows import Rows
from qeff_zoo.runtime.program import Array

_CHANCE, _BELIEF = 0.7, 8.0  # prior probability of acceptance, and its weight in tokens
_MEMORY, _FADING = 64.0, 0.75
_HOPE = 0.01  # share of the record that decays with each token without a draft: a text may become easier


@dataclass(eq=False)
class _Row:
    """Batch slot of the draft model.

    Args:
        number: Number of the batch slot.
        tokens: Tokens that it has run.
        held: States of constant size, after `sure` tokens.
        sure: Number of tokens that were known when they ran, and not drafted.
    """

    number: int
    tokens: list[int] = field(default_factory=list)
    held: dict[str, Array] = field(default_factory=dict)
    sure: int = 0


class DraftModel:
    """Package that drafts for any number of requests, with slots by `Rows`.

    Args:
        decoder: Decoder of the draft package.
        vocab_size: Vocabulary of the target model.
    """

    def __init__(self, decoder: Decoder, vocab_size: int) -> None:
        self.decoder, self._vocab_size = decoder, vocab_size
        self._rows = Rows(decoder.sizes.rows)
        self._known: dict[int, _Row] = {}

    def measure(self) -> float:
        """Return the seconds per token; states are lost."""
        piece = Piece([0], behind(self.decoder.sizes.ctx_len))
        return fastest(lambda: self.decoder.decode({0: piece}))[0]

    def draft(
        self,
        user: object,
        tokens: Sequence[int],
        count: int,
        choose: Callable[[Array], int | Drawn] | None = None,
    ) -> list[int | Drawn]:
        """Draft the next tokens.

        Args:
            user: Owner of the request: a slot keeps the tokens that it ran for an owner.
            tokens: All tokens so far.
            count: Number of tokens, at least one; fewer are drafted at the end of the draft model's context.
            choose: A function of logits (vocab,) that returns the next token; None for greedy decoding.
        """
        count = min(count, self.decoder.sizes.ctx_len - len(tokens))
        if count < 1:
            return []
        row = self._row_of(user)
        choose = choose or _likeliest
        drafted = [choose(self._catch_up(row, tokens)[: self._vocab_size])]
        while len(drafted) < count:
            newest = token_of(drafted[-1])
            logits = self.decoder.decode({row.number: Piece([newest], len(row.tokens))})
            row.tokens.append(newest)
            drafted.append(choose(logits[row.number][: self._vocab_size]))
        return drafted

    def _row_of(self, user: object) -> _Row:
        """Return the slot of an owner, empty if the owner has lost it."""
        number, is_own = self._rows.of(user)
        if not is_own:
            self._known[number] = _Row(number)
        return self._known[number]

    def _catch_up(self, row: _Row, tokens: Sequence[int]) -> Array:
        """Run the tokens that a slot has not run; return the logits (vocab,) after them."""
        same = sum(1 for _ in takewhile(bool, map(eq, row.tokens, tokens)))
        same = min(same, len(tokens) - 1)  # the newest has to run for its logits
        if same < len(row.tokens) and not self.decoder.only_grows:
            same = min(same, row.sure)
            if same == row.sure and same:
                self.decoder.restore(row.number, same, row.held, latest=True)
            else:
                same = 0
        del row.tokens[same:]
        logits: Array | None = None
        length = self.decoder.sizes.prefill_seq_len
        for start in range(same, len(tokens), length):
            piece = Piece(tokens[start : start + length], start)
            logits = self.decoder.prefill({row.number: piece})[row.number]
        row.tokens += tokens[same:]
        if not self.decoder.only_grows:
            row.sure, row.held = (
                len(tokens),
                self.decoder.save(row.number, len(tokens), len(tokens)),
            )
        assert logits is not None
        return logits


def _likeliest(logits: Array) -> int:
    return int(logits.argmax())


class Guessing:
    """Drafter of one request by a model or heads, see `qeff_zoo.runtime.engine.speculation.Drafter`.

    Args:
        costs: Costs of drafting, and of the calls that check drafts.
    """

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._right, self._tried = _BELIEF * _CHANCE, _BELIEF
        self._drafted = 0

    def draft(self, tokens: Sequence[int], most: int, rows: int = 1) -> list[int | Drawn]:
        """Return a draft of the next tokens."""
        count = self._costs.best(self._right / self._tried, most, rows)
        if not count:
            self._right += _HOPE * (_BELIEF * _CHANCE - self._right)
            self._tried += _HOPE * (_BELIEF - self._tried)
            return []
        drafted = self.guess(tokens, count)
        self._drafted = len(drafted)
        return drafted

    def guess(self, tokens: Sequence[int], count: int) -> list[int | Drawn]:
        """Return a draft of at most `count` next tokens."""
        raise NotImplementedError

    def accepted(self, count: int) -> None:
        """Update the acceptance rate with the last draft."""
        self._right += count
        self._tried += count + (count < self._drafted)
        if self._tried > _MEMORY:
            self._right *= _FADING
            self._tried *= _FADING


class ModelDrafter(Guessing):
    """Drafter of one request by a draft model.

    Args:
        model: Draft model, shared with other requests.
        costs: Costs of calls, as for `Guessing`.
        sampling: Sampling parameters of drafts, without penalties; None for greedy decoding.
    """

    def __init__(self, model: DraftModel, costs: Costs, sampling: Sampling | None = None) -> None:
        super().__init__(costs)
        self._model = model
        self._choose = None if sampling is None else _sampler(sampling).draw

    def guess(self, tokens: Sequence[int], count: int) -> list[int | Drawn]:
        """Return a draft of the next tokens."""
        return self._model.draft(self, tokens, count, self._choose)


def _sampler(sampling: Sampling) -> Sampler:
    """Return the sampler of drafts, with other random numbers than those that decide acceptance."""
    seed = None if sampling.seed is None else ~sampling.seed
    limits = {name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p", "min_p")}
    return Sampler(Sampling(seed=seed, **limits), ())
