# SPDX-License-Identifier: Apache-2.0
"""Sampling: what transformers' logits processors leave to choose from, and how it is chosen."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from fixtures_sampling import SHARES, processed
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process as reference_output

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.decoding.sampling import Sampler, Sampling, likeliest

pytestmark = pytest.mark.turns(2)

VOCAB = 50


class Quantile:
    """Draws what it is told to."""

    def __init__(self, value: float) -> None:
        self.value = value

    def random(self) -> float:
        return self.value


def distribution(logits: np.ndarray, asked: Sampling, prompt: list[int], at: int = 2000) -> Any:
    """Find how a sampler divides the numbers from 0 to 1 among tokens."""
    sampler = Sampler(asked, prompt)
    counts = np.zeros(len(logits))
    for number in range(at):
        sampler._random = Quantile((number + 0.5) / at)  # type: ignore[assignment]
        counts[sampler.draw(logits).token] += 1
    return counts / at


@settings(max_examples=30)
@given(
    seed=st.integers(0, 1000),
    spread=st.sampled_from([0.0, 0.3, 3.0, 30.0]),
    temperature=st.sampled_from([0.2, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 5, 49, 50, 80]),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.01]),
    min_p=SHARES,
    penalty=st.sampled_from([1.0, 1.3, 0.7]),
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20),
)
def test_tokens_are_drawn_from_the_distribution_of_transformers(
    seed: int,
    spread: float,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    penalty: float,
    prompt: list[int],
) -> None:
    noise = np.random.default_rng(seed).standard_normal(VOCAB)
    logits = (spread * noise + np.arange(VOCAB) * 1e-4).astype(np.float32)  # without ties
    requested = Sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=penalty,
    )
    expected = processed(logits, requested, prompt)
    before = logits.copy()
    np.testing.assert_allclose(distribution(logits, requested, prompt), expected, atol=2e-3)
    np.testing.assert_array_equal(logits, before)


def test_equals_at_the_border_of_top_k_are_all_in_it() -> None:
    logits = np.array([1, 3, 2, 2, 2, 0], np.float32)
    requested = Sampling(temperature=1.0, top_k=2)
    expected = processed(logits, requested, [0])
    assert np.count_nonzero(expected) == 4
    np.testing.assert_allclose(distribution(logits, requested, [0]), expected, atol=2e-3)


@pytest.mark.parametrize("top_p", [0.0, 0.2, 0.97, 0.9999999])
def test_a_long_vocabulary_of_equals(top_p: float) -> None:
    """The nucleus is beyond every floor, and so is all that is unlikely."""
    logits = np.zeros(100_000, np.float32)
    logits[7] = 12
    requested = Sampling(temperature=1, top_p=top_p)
    sampler = Sampler(requested, [])
    sampler._random = Quantile(1 - 1e-12)  # type: ignore[assignment]
    drawn = sampler.next(logits)
    share = math.exp(12) / (math.exp(12) + 99_999)
    if top_p <= share:
        assert drawn == 7
    else:
        assert drawn == pytest.approx((top_p - share) / (1 - share) * 100_000, abs=20)


def test_penalties_for_what_the_answer_has() -> None:
    """Presence counts a token once and frequency each time; the prompt's tokens are not the answer's."""
    logits = np.array([5, 4.5, 4, -9], np.float32)
    for requested, expected in [
        (Sampling(presence_penalty=0.7), [0, 1, 0, 0]),
        (Sampling(frequency_penalty=0.3), [0, 0, 1, 0, 1]),
        (Sampling(presence_penalty=-2), [0, 0, 0]),
        (Sampling(repetition_penalty=1.2), [1, 0, 0, 0]),
    ]:
        sampler = Sampler(requested, [0] if requested.repetition_penalty != 1 else [])
        assert [sampler.next(logits) for _ in expected] == expected, requested


def test_greedy_is_the_first_of_the_largest() -> None:
    assert likeliest(np.array([1, 3, 3], np.float32)) == 1
    assert Sampler(Sampling(), [1]).next(np.array([1, 3, 3], np.float32)) == 1
    cold = Sampling(temperature=1e-30, seed=0)
    assert Sampler(cold, []).next(np.array([1, -np.inf, 3], np.float32)) == 2


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("asked", [Sampling(), Sampling(temperature=1, top_p=0.5)])
def test_nonsense_is_not_sampled(value: float, asked: Sampling) -> None:
    logits = np.full(3, value, np.float32)
    logits[0] = 1 if value != -np.inf else value
    with pytest.raises(GenerationError, match=r"logit of token [01] is .*validate"):
        Sampler(asked, []).next(logits)


def test_a_seed_gives_the_same_tokens_again() -> None:
    logits = np.random.default_rng(0).standard_normal(1000).astype(np.float32)

    def draw(seed: int | None) -> list[int]:
        sampler = Sampler(Sampling(temperature=1, seed=seed), [])
        return [sampler.next(logits) for _ in range(20)]

    assert draw(3) == draw(3)
    assert draw(-1) == draw(-1)
    assert len({tuple(draw(seed)) for seed in (0, 1, -1, 1 << 40, None, None)}) == 6


@given(count=st.integers(0, 60), seed=st.integers(0, 50))
@example(count=VOCAB, seed=0)
def test_logprobs_are_the_models_own(count: int, seed: int) -> None:
    logits = (4 * np.random.default_rng(seed).standard_normal(VOCAB)).astype(np.float32)
    expected = torch.log_softmax(torch.from_numpy(logits), -1).numpy()
    requested = Sampling(temperature=2, top_k=3, presence_penalty=5, seed=seed, logprobs=count)
    sampler = Sampler(requested, [])
    for _ in range(2):
        token = sampler.next(logits)
        found = sampler.logprobs(logits, token)
        assert found is not None
        assert found.token_id == token
        assert found.logprob == pytest.approx(expected[token], abs=1e-5)
        order = np.argsort(-expected, kind="stable")[:count]
        assert [one for one, _ in found.top] == order.tolist()
        assert [value for _, value in found.top] == pytest.approx(expected[order], abs=1e-5)
    assert Sampler(Sampling(), []).logprobs(logits, token) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", -1),
        ("top_p", 1.1),
        ("top_p", -0.1),
        ("min_p", 2),
        ("min_p", math.nan),
        ("repetition_penalty", 0),
        ("repetition_penalty", 1e308),
        ("repetition_penalty", math.inf),
        ("presence_penalty", math.nan),
        ("presence_penalty", -1e38),
        ("frequency_penalty", math.inf),
        ("logprobs", -1),
    ],
)
def test_values_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(GenerationError, match=rf"sample with {name} .*expected .* Change {name}\."):
        Sampling(**{name: value})


def test_all_values_out_of_range_are_named() -> None:
    with pytest.raises(GenerationError) as caught:
        Sampling(temperature=-1, top_p=7)
    assert [line.split()[3] for line in str(caught.value).splitlines()] == ["temperature", "top_p"]


WORDS = st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=3).map(tuple), max_size=4)


@settings(max_examples=60)
@given(
    bias=st.dictionaries(st.integers(0, 7), st.floats(-5, 5, width=32), max_size=3),
    words=WORDS,
    least=st.integers(0, 4),
    written=st.lists(st.integers(0, 7), max_size=6),
)
def test_bias_words_and_least_length_are_those_of_transformers(
    bias: dict[int, float], words: list[tuple[int, ...]], least: int, written: list[int]
) -> None:
    """A text of eight tokens, two of which end it: scores are those of transformers' processors, in vLLM's order."""
    ends, prompt = [6, 7], [1, 2]
    requested = Sampling(logit_bias=bias, bad_words=tuple(words), min_tokens=least)
    sampler = Sampler(requested, prompt, ends=ends)
    for token in written:
        sampler.take(token)
    logits = np.linspace(-1, 1, 8, dtype=np.float32)[[3, 1, 7, 0, 6, 2, 5, 4]]
    scores = torch.from_numpy(logits.copy())[None]
    ids = torch.tensor([[*prompt, *written]])
    steps: list[Any] = []
    if bias:
        steps.append(
            reference_output.SequenceBiasLogitsProcessor([[[t], v] for t, v in bias.items()])
        )
    steps.append(reference_output.MinNewTokensLengthLogitsProcessor(len(prompt), least, ends))
    for step in steps:
        scores = step(ids, scores)
    expected = scores[0].numpy()
    for word in words:  # transformers reads the prompt, too; vLLM and we the generated text alone
        if len(word) == 1 or tuple(written[-len(word) + 1 :]) == word[:-1]:
            expected[word[-1]] = -np.inf
    if np.isfinite(expected.max()):
        np.testing.assert_allclose(sampler._scores(logits), expected, atol=1e-6)
        assert sampler.next(logits) == int(expected.argmax())
    else:
        with pytest.raises(GenerationError, match="exclude every next token"):
            sampler.next(logits)


def test_only_allowed_tokens_are_sampled() -> None:
    logits = np.arange(8, dtype=np.float32)
    requested = Sampling(allowed_token_ids=[2, 5], temperature=5, seed=3)
    sampler = Sampler(requested, [1])
    assert {sampler.next(logits) for _ in range(40)} == {2, 5}
    with pytest.raises(GenerationError, match="bad_words"):
        Sampler(Sampling(allowed_token_ids=[2], bad_words=((2,),)), [1]).next(logits)
