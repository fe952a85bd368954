# SPDX-License-Identifier: Apache-2.0
"""Drafting: whoever drafts, and however badly, every request gets what it gets without."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import parity
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_scheduling import BLOCK_BYTES, CTX_LEN, Client, alone, clients
from test_speculation import MOST, program
from toy_decoder import VOCAB, ToyDecoder, greedy_answer

from qeff_zoo.runtime.answers import Answer, Request
from qeff_zoo.runtime.decoder import Decoder, Piece
from qeff_zoo.runtime.prefix_cache import PrefixCache
from qeff_zoo.runtime.sampling import Sampling
from qeff_zoo.runtime.scheduling import Scheduler
from qeff_zoo.runtime.speculation import Speculation
from qeff_zoo.runtime.speculation.costs import Costs, measure
from qeff_zoo.runtime.speculation.draft_model import DraftModel, ModelDrafter
from qeff_zoo.runtime.speculation.lookup import PromptLookup

FREE = Costs(seconds={1: 1.0, 6: 1.0})


@dataclass
class Oracle:
    """Drafts what an answer will be, but for some tokens.

    Args:
        answers: What requests get, by prompt.
        wrong: Places in an answer at which the draft is another token.
        most: Tokens of a draft.
        told: How many were accepted, each time.
    """

    answers: dict[tuple[int, ...], list[int]]
    wrong: frozenset[int] = frozenset()
    most: int = MOST
    told: list[int] = field(default_factory=list)

    def draft(self, tokens: Sequence[int], most: int) -> list[int]:
        assert 1 <= most <= MOST
        prompt = next(one for one in self.answers if (*tokens,)[: len(one)] == one)
        at = len(tokens) - len(prompt)
        drafted = self.answers[prompt][at : at + min(most, self.most)]
        return [
            (token - 1 if token else 1) if at + place in self.wrong else token
            for place, token in enumerate(drafted)
        ]

    def accepted(self, count: int) -> None:
        self.told.append(count)


# --- scheduling -----------------------------------------------------------------------------------
@settings(deadline=None, max_examples=60)
@given(
    asked=st.lists(clients(), max_size=8),
    rows=st.integers(1, 3),
    length=st.sampled_from([1, 3, 8]),
    wrong=st.frozensets(st.integers(0, 12)),
    blocks=st.sampled_from([0, 3]),
)
def test_every_request_gets_what_it_gets_without_drafts(
    asked: list[Client], rows: int, length: int, wrong: frozenset[int], blocks: int
) -> None:
    """Whether a client draws at random or not; one of the toy's states grows and the other does not."""
    decoder = ToyDecoder(rows, CTX_LEN, length)
    expected = {client.prompt: alone(client, length) for client in asked}
    oracle = Oracle(expected, wrong)
    prefixes = PrefixCache(decoder, blocks * 2 * BLOCK_BYTES, answers=blocks > 0)
    scheduler = Scheduler(decoder, prefixes, Speculation(most=MOST, drafter=lambda: oracle))
    answers = [Answer(client.request, None) for client in asked]
    for step in range(10_000):
        for client, answer in zip(asked, answers, strict=True):
            if client.joins == step:
                scheduler.submit(answer)
            if client.leaves is not None and max(client.leaves, client.joins) == step:
                scheduler.cancel(answer)
        if not scheduler.step() and step > 20:
            break
    for client, answer in zip(asked, answers, strict=True):
        right = alone(client, length)
        if answer.finish_reason == "cancelled":
            right = right[: len(answer.token_ids)]
        assert answer.token_ids == right
    assert scheduler.timings.drafted_tokens == sum(one.drafted_tokens for one in answers)
    assert scheduler.timings.accepted_tokens == sum(one.accepted_tokens for one in answers)


def test_what_is_accepted_needs_no_call() -> None:
    decoder, prompt = ToyDecoder(1, CTX_LEN, 8), (3,) * 5
    right = greedy_answer(prompt, 19, -1)
    oracle = Oracle({prompt: right})
    scheduler = Scheduler(
        decoder, PrefixCache(decoder, 0), Speculation(most=MOST, drafter=lambda: oracle)
    )
    answer = Answer(Request(prompt=prompt, limit=19), None)
    scheduler.submit(answer)
    while scheduler.step():
        pass
    assert answer.token_ids == right
    assert decoder.calls == [([0], 5), *[([0], MOST + 1)] * 3]  # 1 + 3 * 6 tokens
    assert (answer.drafted_tokens, answer.accepted_tokens, oracle.told) == (15, 15, [5] * 3)


def test_nobody_waits_for_the_drafts_of_another() -> None:
    """A call takes several tokens of one row alone, so that two rows decode as ever."""
    decoder = ToyDecoder(2, CTX_LEN, 8)
    prompts = [(3,) * 5, (4,) * 5]
    oracle = Oracle({prompt: greedy_answer(prompt, 12, -1) for prompt in prompts})
    scheduler = Scheduler(
        decoder, PrefixCache(decoder, 0), Speculation(most=MOST, drafter=lambda: oracle)
    )
    answers = [Answer(Request(prompt=prompt, limit=12), None) for prompt in prompts]
    for answer in answers:
        scheduler.submit(answer)
    while scheduler.step():
        pass
    assert not any(answer.drafted_tokens for answer in answers)
    assert all(width == 1 for _, width in decoder.calls[2:])


def test_stop_strings_penalties_and_log_probabilities_are_those_of_single_tokens() -> None:
    prompt = (3,) * 5
    for sampling in (
        Sampling(repetition_penalty=1.3, frequency_penalty=0.5, logprobs=2),
        Sampling(temperature=1.0, top_p=0.9, seed=4, logprobs=0),
    ):
        found = []
        for drafts in (False, True):
            decoder = ToyDecoder(1, CTX_LEN, 8)
            oracle = Oracle({prompt: found[0].token_ids} if drafts else {}, frozenset({2, 9}))
            speculation = Speculation(most=MOST, drafter=lambda one=oracle: one)
            scheduler = Scheduler(decoder, PrefixCache(decoder, 0), speculation if drafts else None)
            heard: list[Any] = []
            answer = Answer(Request(prompt=prompt, limit=20, sampling=sampling), None, heard.append)
            scheduler.submit(answer)
            while scheduler.step():
                pass
            assert [len(delta.token_ids) for delta in heard] == [1] * 20
            found.append(answer)
        one, other = found
        assert other.drafted_tokens > other.accepted_tokens > 0
        assert other.token_ids == one.token_ids
        assert other.logprobs == one.logprobs


# --- states of every kind -------------------------------------------------------------------------
@pytest.mark.parametrize("name", parity.STATES.values())
def test_a_rejected_token_leaves_no_trace(name: str) -> None:
    """Rejected at every place, in drafts of all lengths: as without them, beyond what a window keeps."""
    decoder, length = Decoder(program(name)), parity.CTX_LEN - 6
    prompt = tuple(parity.tokens()[0, :6].tolist())
    request = Request(prompt=prompt, limit=length)

    def answered(speculation: Speculation | None) -> Answer:
        scheduler = Scheduler(decoder, PrefixCache(decoder, 0), speculation)
        answer = Answer(request, None)
        scheduler.submit(answer)
        while scheduler.step():
            pass
        return answer

    right = answered(None).token_ids
    for most in (1, 2, MOST):
        for wrong in (range(length), range(1, length, 2), range(2, length, 3)):
            oracle = Oracle({prompt: right}, frozenset(wrong), most)
            found = answered(Speculation(most=MOST, drafter=lambda one=oracle: one))
            assert found.token_ids == right
            assert found.drafted_tokens > 0
            assert wrong.step > 1 or not found.accepted_tokens


def test_a_state_that_is_not_put_back_shows() -> None:
    """What the test above compares notices a recurrence that has seen a rejected token."""
    decoder = Decoder(program(parity.STATES["recurrent"]))
    ids = parity.tokens()[0].tolist()
    decoder.prefill({0: Piece(ids[:6], 0)})
    right = decoder.decode({0: Piece(ids[6:7], 6)})[0]
    decoder.prefill({0: Piece(ids[:6], 0)})
    decoder.verify({0: Piece([ids[6], 9, 9], 6)})
    wrong = decoder.decode({0: Piece(ids[6:7], 6)})[0]
    assert np.abs(right - wrong).max() > 0.1 * right.std()


# --- the distribution -----------------------------------------------------------------------------
def _chi2(counts: Counter[tuple[int, ...]], shares: dict[tuple[int, ...], float]) -> float:
    total = sum(counts.values())
    kept = {one: share * total for one, share in shares.items() if share * total >= 5}
    return sum((counts[one] - mean) ** 2 / mean for one, mean in kept.items()) / len(kept)


def test_drafts_leave_the_distribution_as_it_is() -> None:
    """Of 3 tokens, each by the one before; chi-square by its degrees of freedom, and a wrong rule for comparison."""
    draw, words = np.random.default_rng(0), 4
    table = draw.dirichlet(np.ones(words), size=words + 1)
    shares = {
        one: float(np.prod([table[at, to] for at, to in zip((words, *one), one, strict=False)]))
        for one in product(range(words), repeat=3)
    }
    logits = np.log(table).astype(np.float32)
    found: dict[str, Counter[tuple[int, ...]]] = {"ours": Counter(), "wrong": Counter()}
    for seed in range(6000):
        request = Request(prompt=(0,), limit=3, sampling=Sampling(temperature=1.0, seed=seed))
        answer, newest = Answer(request, None), words
        while not answer.ended:
            draft = draw.integers(0, words, 2).tolist()
            answer.extend_as(draft, logits[[newest, *draft]])
            newest = answer.token_ids[-1]
        found["ours"][tuple(answer.token_ids)] += 1
        # A rule that takes a drafted token which is one of the two likeliest.
        wrong, newest = [], words
        for _ in range(3):
            guess = int(draw.integers(0, words))
            likely = guess in logits[newest].argsort()[-2:]
            newest = guess if likely else int(draw.choice(words, p=table[newest]))
            wrong.append(newest)
        found["wrong"][tuple(wrong)] += 1
    assert _chi2(found["ours"], shares) < 1.6 < 5 < _chi2(found["wrong"], shares)


# --- how many -------------------------------------------------------------------------------------
@given(
    chance=st.floats(0, 1),
    most=st.integers(1, 12),
    slope=st.floats(0.01, 1),
    drafting=st.sampled_from([0.0, 0.1]),
    repeats=st.booleans(),
)
def test_as_many_are_drafted_as_give_most_tokens_a_second(
    chance: float, most: int, slope: float, drafting: float, repeats: bool
) -> None:
    seconds = {1: 1.0, 13: 1 + 12 * slope}
    costs = Costs(seconds=seconds, drafting=drafting, repeats=repeats)

    def rate(count: int) -> float:
        spent = costs.of(count + 1) + count * drafting
        for right in range(count) if repeats else ():
            again = costs.of(right + 2) - costs.of(1)
            spent += chance**right * (1 - chance) * again
        return sum(chance**place for place in range(count + 1)) / spent

    best = costs.best(chance, most)
    assert 0 <= best <= most
    assert rate(best) >= max(map(rate, range(most + 1))) - 1e-9


def test_costs_between_what_was_measured_lie_on_a_line() -> None:
    costs = Costs(seconds={1: 1.0, 2: 1.2, 6: 2.0})
    assert [costs.of(width) for width in (1, 2, 4, 6)] == pytest.approx([1.0, 1.2, 1.6, 2.0])
    assert costs.of(9) == pytest.approx(2.6)


def test_costs_are_measured() -> None:
    decoder = ToyDecoder(1, CTX_LEN, 8)
    costs = measure(decoder, 5)
    assert {width for _, width in decoder.calls} == {*costs.seconds} == {1, 2, 4, 6}
    assert [*costs.seconds.values()] == sorted(costs.seconds.values())
    assert costs.repeats  # the toy has a state that does not grow


# --- lookup ---------------------------------------------------------------------------------------
def test_lookup_drafts_what_followed_the_longest_match() -> None:
    lookup = PromptLookup(FREE)
    text = [1, 2, 3, 4, 5, 9, 3, 4, 6, 1, 2, 3, 4]
    assert lookup.draft(text, 3) == [5, 9, 3]  # as after 1 2 3 4, and not as after 3 4
    lookup.accepted(1)
    assert lookup.draft([*text, 5, 7], 3) == []
    assert lookup.draft([*text, 5, 7, 5, 7, 5], 5) == [7, 5, 7, 5, 7]


def test_lookup_learns_what_pays() -> None:
    """A text in which nothing follows from what was before is not drafted after a while; one that repeats, in full."""
    costs = Costs(seconds={1: 1.0, 9: 2.6})
    draw = np.random.default_rng(0)
    lookup, tokens, drafted = PromptLookup(costs), [1, 2], []
    for _ in range(150):  # pairs come again, what follows them does not
        tokens += [1, 2, int(draw.integers(3, 999))][:2]
        guess = lookup.draft(tokens, 8)
        drafted.append(len(guess))
        if guess:
            lookup.accepted(0)
        tokens.append(int(draw.integers(3, 9999)))
    assert sum(map(bool, drafted[-50:])) <= 5
    lookup, tokens = PromptLookup(costs), [*range(40)] * 2
    for _ in range(4):
        guess = lookup.draft(tokens, 8)
        lookup.accepted(len(guess))
        tokens += guess
    assert len(guess) == 8
    assert tokens == [*range(40), *range(40), *range(40)][: len(tokens)]


# --- a draft model --------------------------------------------------------------------------------
@settings(deadline=None, max_examples=100)
@given(
    rows=st.integers(1, 2),
    asked=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(0, 3), st.integers(1, 5)),
        max_size=12,
    ),
)
def test_a_draft_model_says_what_it_finds_likeliest(
    rows: int, asked: list[tuple[int, int, int, int]]
) -> None:
    """Whoever asks in between, and wherever the model that checks went another way."""
    model = DraftModel(ToyDecoder(rows, CTX_LEN, 8), VOCAB)
    texts = {user: [user + 1] * 3 for user in range(3)}
    users = {user: object() for user in texts}
    for user, taken, other, count in asked:
        drafted = model.draft(users[user], texts[user], count)
        assert drafted == greedy_answer(texts[user], count, -1)
        texts[user] += [*drafted[:taken], other]


def test_a_draft_model_ends_with_its_context() -> None:
    model = DraftModel(ToyDecoder(1, 16, 8), VOCAB)
    text = [1] * 14
    assert len(model.draft(model, text, 5)) == 2
    assert model.draft(model, [1] * 16, 5) == []
    assert model.draft(model, [1] * 40, 5) == []


def test_a_model_drafter_gives_up_and_tries_again() -> None:
    costs = Costs(seconds={1: 1.0, 6: 2.0}, drafting=0.1)
    drafter = ModelDrafter(DraftModel(ToyDecoder(1, CTX_LEN, 8), VOCAB), costs)
    counts = []
    for _ in range(400):
        counts.append(len(drafter.draft([1, 2, 3], 5)))
        if counts[-1]:
            drafter.accepted(0)
    assert counts[0] > 0
    assert 0 < sum(map(bool, counts[100:])) < 40
