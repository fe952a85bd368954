# SPDX-License-Identifier: Apache-2.0
"""Drafting: whoever drafts, and however badly, every request gets what it gets without."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import parity
import pytest
from fixtures_scheduling import BLOCK_BYTES, CTX_LEN, Client, alone, clients
from fuzzing import example_count
from hypothesis import given, settings
from hypothesis import strategies as st
from rejecting import MOST, NARROWED, Oracle, program, trace_of_rejected
from toy_decoder import VOCAB, ToyDecoder, greedy_answer

from qeff_zoo.runtime.caches.prefix_cache import PrefixCache
from qeff_zoo.runtime.decoding.call_inputs import Piece
from qeff_zoo.runtime.decoding.decoder import Decoder
from qeff_zoo.runtime.decoding.sampling import Drawn, Sampler, Sampling, token_of
from qeff_zoo.runtime.engine.answers import Answer, Request
from qeff_zoo.runtime.engine.scheduling import Scheduler
from qeff_zoo.runtime.engine.speculation import EXACT, REJECTION, Speculation, opening
from qeff_zoo.runtime.engine.speculation.costs import Costs, measure
from qeff_zoo.runtime.engine.speculation.draft_model import DraftModel, ModelDrafter
from qeff_zoo.runtime.engine.speculation.lookup import PromptLookup

pytestmark = pytest.mark.turns(3)

FREE = Costs(seconds={1: 1.0, 6: 1.0})
#: `scripts/reject_drafts` tries all tiny models.
DECODERS = (
    parity.names_of("text-generation") if parity.EVERY else [*parity.STATES.values(), NARROWED]
)


# --- scheduling -----------------------------------------------------------------------------------
@settings(max_examples=example_count(60))
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
    scheduler = Scheduler(decoder, prefixes, oracle.speculation)
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
    for one in answers:
        assert sum(length * count for length, count in one.drafts.items()) == one.accepted_tokens
    assert scheduler.timings.accepted_tokens == sum(one.accepted_tokens for one in answers)


def test_what_is_accepted_needs_no_call() -> None:
    decoder, prompt = ToyDecoder(1, CTX_LEN, 8), (3,) * 5
    right = greedy_answer(prompt, 19, -1)
    oracle = Oracle({prompt: right})
    scheduler = Scheduler(decoder, PrefixCache(decoder, 0), oracle.speculation)
    answer = Answer(Request(prompt=prompt, limit=19), None)
    scheduler.submit(answer)
    while scheduler.step():
        pass
    assert answer.token_ids == right
    assert decoder.calls == [([0], 5), *[([0], MOST + 1)] * 3]  # 1 + 3 * 6 tokens
    assert (answer.drafted_tokens, answer.accepted_tokens, oracle.told) == (15, 15, [5] * 3)


@pytest.mark.parametrize("silent", [False, True])
def test_rows_are_checked_one_by_one_where_each_has_drafts(silent: bool) -> None:
    """A call takes several tokens of one row alone: with one that has no draft, all decode together as ever."""
    decoder = ToyDecoder(2, CTX_LEN, 8)
    right = {prompt: greedy_answer(prompt, 13, -1) for prompt in [(3,) * 5, (4,) * 5]}
    prompts = [*right]
    oracle = Oracle({prompt: right[prompt] for prompt in prompts[: 1 if silent else 2]})
    scheduler = Scheduler(decoder, PrefixCache(decoder, 0), oracle.speculation)
    answers = [Answer(Request(prompt=prompt, limit=13), None) for prompt in prompts]
    for answer in answers:
        scheduler.submit(answer)
    while scheduler.step():
        pass
    assert [answer.token_ids for answer in answers] == [*right.values()]
    calls = decoder.calls[1:]  # behind that of both prompts
    if silent:
        assert calls == [([0, 1], 1)] * 12
        assert len(oracle.asked) <= 13  # the one is not asked again while the other is silent
    else:
        assert sorted(calls) == [([0], MOST + 1)] * 2 + [([1], MOST + 1)] * 2
    assert {*oracle.asked} == {2}


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
            speculation = oracle.speculation
            scheduler = Scheduler(decoder, PrefixCache(decoder, 0), speculation if drafts else None)
            audio: list[Any] = []
            answer = Answer(Request(prompt=prompt, limit=20, sampling=sampling), None, audio.append)
            scheduler.submit(answer)
            while scheduler.step():
                pass
            assert [len(delta.token_ids) for delta in audio] == [1] * 20
            found.append(answer)
        one, other = found
        assert other.drafted_tokens > other.accepted_tokens > 0
        assert other.token_ids == one.token_ids
        assert other.logprobs == one.logprobs


# --- states of every kind -------------------------------------------------------------------------
@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.sampled(9, kept=["llama-base"])
def test_a_rejected_token_leaves_no_trace(name: str) -> None:
    """Rejected at every place, in drafts of all lengths: as without them, beyond what a window keeps."""
    away, noise = trace_of_rejected(name)
    assert away <= parity.TOLERANCE["fp32"] * noise


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
    kept = {name: share * total for name, share in shares.items() if share * total >= 5}
    return sum((counts[name] - mean) ** 2 / mean for name, mean in kept.items()) / len(kept)


WORDS = 4
TABLE = np.random.default_rng(0).dirichlet(np.ones(WORDS), size=WORDS + 1)
LOGITS = np.log(TABLE).astype(np.float32)
#: What a draft model finds, which is not what the model finds.
OTHERS = np.random.default_rng(1).dirichlet(np.ones(WORDS), size=WORDS + 1)


def _answered(seed: int, draft: Callable[[int], list[Any]], rule: Any = None) -> tuple[int, ...]:
    """Let an answer of 3 tokens, each by the one before, go on with drafts."""
    request = Request(prompt=(0,), limit=3, sampling=Sampling(temperature=1.0, seed=seed))
    answer, newest = Answer(request, None), WORDS
    if rule:
        answer._sampler.next_of = partial(rule, answer._sampler)  # type: ignore[method-assign]
    while not answer.ended:
        guesses = draft(newest)
        answer.extend_as(guesses, LOGITS[[newest, *map(token_of, guesses)]])
        newest = answer.token_ids[-1]
    return tuple(answer.token_ids)


def _certain(draw: Any, newest: int) -> list[Any]:
    guesses: list[Any] = draw.integers(0, WORDS, 2).tolist()
    return guesses


def _drawn(draw: Any, newest: int) -> list[Any]:
    guesses = []
    for _ in range(2):
        share = OTHERS[newest]
        newest = int(draw.choice(WORDS, p=share))
        guesses.append(Drawn(newest, np.arange(WORDS), share))
    return guesses


def _takes_likely(sampler: Sampler, logits: Any, guess: Drawn) -> int:
    """Take a guess that is one of the two likeliest."""
    return guess.token if guess.token in logits.argsort()[-2:] else sampler.next(logits)


def _draws_again(sampler: Sampler, logits: Any, guess: Drawn) -> int:
    """Draw anew what was not taken, of p in place of what q left of it."""
    share = np.exp(logits)
    assert sampler._random is not None
    taken = sampler._random.random() * guess.shares[guess.token] < share[guess.token]
    return guess.token if taken else sampler.next(logits)


@pytest.mark.parametrize(
    ("draft", "rule"),
    [(_certain, None), (_drawn, None), (_drawn, _takes_likely), (_drawn, _draws_again)],
    ids=["draw", "ratio", "wrong: likely", "wrong: drawn again"],
)
def test_drafts_leave_the_distribution_as_it_is(draft: Any, rule: Any) -> None:
    """Chi-square by its degrees of freedom; it shows a rule that is wrong."""
    shares = {
        one: float(np.prod([TABLE[at, to] for at, to in zip((WORDS, *one), one, strict=False)]))
        for one in product(range(WORDS), repeat=3)
    }
    found = Counter(
        _answered(seed, partial(draft, np.random.default_rng([seed, 1])), rule)
        for seed in range(2000)
    )
    assert (_chi2(found, shares) < 1.6) == (rule is None)
    assert rule is None or _chi2(found, shares) > 3


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.7, top_k=3, seed=1),
        Sampling(temperature=1.3, top_p=0.8, repetition_penalty=1.2, seed=2),
        Sampling(temperature=1.0, min_p=0.2, presence_penalty=0.5, seed=3),
    ],
)
def test_the_ratio_keeps_limits_and_penalties(sampling: Sampling) -> None:
    """Chi-square of one token against plain draws, whatever it was drawn from: all, a few, or nothing that p has."""
    draw = np.random.default_rng(0)
    logits = draw.standard_normal(6).astype(np.float32)
    plain = Sampler(sampling, (1, 2))
    tokens, shares = plain._limited(plain._scores(logits))
    share = dict(zip([(int(token),) for token in tokens], shares / shares.sum(), strict=True))
    outside = [token for token in range(6) if token not in tokens]
    for among in (np.arange(6), tokens[:1], np.array(outside[:1] or [int(tokens[-1])])):
        of = np.ones(len(among)) / len(among)
        sampler, found = Sampler(sampling, (1, 2)), Counter[tuple[int, ...]]()
        sampler._processors.take = lambda token: None  # type: ignore[method-assign]
        for _ in range(1500):
            guess = Drawn(int(draw.choice(among)), among, of)
            found[(sampler.next_of(logits, guess),)] += 1
        assert {*found} <= {*share}
        assert _chi2(found, share) < 4  # of few degrees of freedom


def test_a_draft_model_draws_as_its_request_and_more_is_accepted() -> None:
    """Drawn by another model, min(1, p/q) takes more than equal draws; without a temperature nothing is drawn."""
    request = Request(prompt=(3,) * 5, limit=20, sampling=Sampling(temperature=1.5, seed=4))
    accepted = {}
    for acceptance in (EXACT, REJECTION):
        model = DraftModel(ToyDecoder(1, CTX_LEN, 8), VOCAB)
        drafter = opening._model_drafter(model, FREE, acceptance, request)
        again = opening._model_drafter(model, FREE, acceptance, request)
        drafted = drafter.draft([3, 4, 5], 4)
        assert len(drafted) > 0
        assert all(isinstance(one, Drawn) == (acceptance == REJECTION) for one in drafted)
        assert [*map(token_of, again.draft([3, 4, 5], 4))] == [*map(token_of, drafted)]
        decoder = ToyDecoder(1, CTX_LEN, 8)
        speculation = Speculation(
            most=MOST,
            drafter=lambda one, how=acceptance, of=model: opening._model_drafter(
                of, FREE, how, one
            ),
        )
        scheduler = Scheduler(decoder, PrefixCache(decoder, 0), speculation)
        answers = [
            Answer(replace(request, sampling=replace(request.sampling, seed=seed)), None)
            for seed in range(30)
        ]
        for answer in answers:
            scheduler.submit(answer)
        while scheduler.step():
            pass
        accepted[acceptance] = sum(one.accepted_tokens for one in answers) / sum(
            one.drafted_tokens for one in answers
        )
    assert accepted[REJECTION] > 0.9  # q is p
    assert accepted[EXACT] < 0.7
    greedy = opening._model_drafter(model, FREE, REJECTION, replace(request, sampling=Sampling()))
    assert all(isinstance(one, int) for one in greedy.draft([3, 4, 5], 4))


# --- how many -------------------------------------------------------------------------------------
@given(
    chance=st.floats(0, 1),
    most=st.integers(1, 12),
    slope=st.floats(0.01, 1),
    drafting=st.sampled_from([0.0, 0.1]),
    repeats=st.booleans(),
    rows=st.integers(1, 4),
)
def test_as_many_are_drafted_as_give_most_tokens_a_second(
    chance: float, most: int, slope: float, drafting: float, repeats: bool, rows: int
) -> None:
    """Or none, where a call of all rows gives more."""
    seconds, together = {1: 1.0, 13: 1 + 12 * slope}, {4: 1 + 3 * slope}
    costs = Costs(seconds=seconds, together=together, drafting=drafting, repeats=repeats)

    def rate(count: int) -> float:
        spent = costs.of(count + 1) + count * drafting
        for right in range(count) if repeats else ():
            again = costs.of(right + 2) - costs.of(1)
            spent += chance**right * (1 - chance) * again
        return sum(chance**place for place in range(count + 1)) / spent

    best, none = costs.best(chance, most, rows), rows / (1 + (rows - 1) * slope)
    none *= 1.1 if rows > 1 else 1  # others do not wait for what is not sure
    assert 0 <= best <= most
    reached = rate(best) if best else none
    assert reached >= max(none, *map(rate, range(1, most + 1))) - 1e-9


def test_costs_between_what_was_measured_lie_on_a_line() -> None:
    costs = Costs(seconds={1: 1.0, 2: 1.2, 6: 2.0})
    assert [costs.of(width) for width in (1, 2, 4, 6)] == pytest.approx([1.0, 1.2, 1.6, 2.0])
    assert costs.of(9) == pytest.approx(2.6)


def test_costs_are_measured() -> None:
    decoder = ToyDecoder(3, CTX_LEN, 8)
    costs = measure(decoder, 5)
    assert {width for rows, width in decoder.calls if len(rows) == 1} == {1, 2, 4, 6}
    assert {len(rows) for rows, _ in decoder.calls} == {1, 2, 3}
    assert ({*costs.seconds}, {*costs.together}) == ({1, 2, 4, 6}, {2, 3})
    for found in (costs.seconds, costs.together):
        assert [*found.values()] == sorted(found.values())
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
@settings(max_examples=example_count(100))
@given(
    rows=st.integers(1, 2),
    asked=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(0, 3), st.integers(1, 5)),
        max_size=12,
    ),
)
def test_a_draft_model_returns_its_likeliest_tokens(
    rows: int, asked: list[tuple[int, int, int, int]]
) -> None:
    """Whoever asks in between, and wherever the model that checks went another way."""
    model = DraftModel(ToyDecoder(rows, CTX_LEN, 8), VOCAB)
    texts = {user: [user + 1] * 3 for user in range(3)}
    users = {user: set[int]() for user in texts}  # of a kind that can be referred to weakly
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
