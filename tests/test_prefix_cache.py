# SPDX-License-Identifier: Apache-2.0
"""The prefix cache: what was computed is not computed again, and no answer changes by a bit."""

import numpy as np
import pytest
from fixtures_builds import Models
from runnable_package import package
from toy_decoder import ToyDecoder

import qeff_zoo
from qeff_zoo.errors import GenerationError
from qeff_zoo.package import Package
from qeff_zoo.runtime import Request, Sampling, TextGenerationSession
from qeff_zoo.runtime.answers import Answer
from qeff_zoo.runtime.decoder import Piece
from qeff_zoo.runtime.prefix_cache import PrefixCache
from qeff_zoo.runtime.scheduling import Scheduler

# Keys and values of the whole context; of a window too; states of a convolution and a recurrence too.
ARCHITECTURES = ["llama", "gemma3_text", "qwen3_next"]
ROWS, CTX_LEN, CHUNK, BLOCK = 3, 96, 8, 16
BYTES = 16 * 8 + 8  # of a block of a toy


@pytest.fixture(scope="module")
def packages(models: Models, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Package]:
    home = tmp_path_factory.mktemp("prefixes")
    shape = {"batch_size": ROWS, "ctx_len": CTX_LEN, "prefill_seq_len": CHUNK}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QEFF_HOME", str(home))
        found = {}
        for name in ARCHITECTURES:
            checkpoint = models.checkpoint(name, name)
            models.trace(checkpoint, home)
            found[name] = package(checkpoint, **shape)
    return found


def prompts(seed: int, count: int) -> list[list[int]]:
    """Draw prompts that begin alike, for a shorter or longer stretch."""
    random = np.random.default_rng(seed)
    texts = random.integers(3, 250, (2, 70))
    return [
        [
            *texts[number % 2][: random.integers(0, 70)],
            *random.integers(3, 250, random.integers(1, 9)),
        ]
        for number in range(count)
    ]


def opened(package: Package, prefix_cache_bytes: int) -> TextGenerationSession:
    return qeff_zoo.load(package, threads=1, prefix_cache_bytes=prefix_cache_bytes)  # type: ignore[return-value]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_answers_are_the_same_to_the_last_bit(packages: dict[str, Package], name: str) -> None:
    """One after the other, with room for all, for a few blocks, and for none."""
    asked, sampling = prompts(1, 14), Sampling(temperature=0.7, seed=5, logprobs=2)
    without = opened(packages[name], 0)
    expected = [without.generate([one], generation_len=4, sampling=sampling)[0] for one in asked]
    block = sum(state.nbytes for state in without.decoder.save(0, 0, BLOCK).values())
    assert without.decoder.size_of(BLOCK) == block
    reused = []
    for blocks in (1000, 3):
        session = opened(packages[name], blocks * block)
        got = [session.generate([one], generation_len=4, sampling=sampling)[0] for one in asked]
        assert got == expected
        reused.append(sum(output.reused_tokens for output in got))
        assert all(output.reused_tokens < output.prompt_tokens for output in got)
        assert session._prefixes.used <= blocks * block
    assert not any(output.reused_tokens for output in expected)
    assert 0 < reused[1] < reused[0]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_requests_together_get_what_they_get_alone(packages: dict[str, Package], name: str) -> None:
    """More requests than rows, so that rows are given on, moved, and filled from the cache."""
    asked = prompts(2, 11)
    without, session = opened(packages[name], 0), opened(packages[name], 1 << 20)
    requests = [
        without.request(prompt, generation_len=3 + 4 * (number % 3), ignore_eos=True)
        for number, prompt in enumerate(asked)
    ]
    alone = [without.generate([request])[0] for request in requests]
    assert without.generate(requests) == alone
    assert session.generate(requests) == alone
    assert session.metrics is not None
    first = session.metrics.reused_tokens
    assert first > 0  # also of prompts that came together
    assert session.generate(requests[::-1]) == alone[::-1]
    assert session.metrics.reused_tokens > first


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_rows_change_places(packages: dict[str, Package], name: str) -> None:
    decoder = opened(packages[name], 0).decoder
    texts = np.random.default_rng(0).integers(3, 250, (2, 40)).tolist()

    def begin(row: int, text: list[int], length: int) -> None:
        for start in range(0, length, CHUNK):
            decoder.prefill({row: Piece(text[start : min(start + CHUNK, length)], start)})

    begin(0, texts[0], 37)
    begin(1, texts[1], 21)
    expected = [decoder.decode({row: Piece([9], at)})[row] for row, at in ((0, 37), (1, 21))]
    begin(0, texts[0], 37)
    begin(1, texts[1], 21)
    decoder.exchange(0, 1, 37, 21)
    decoder.exchange(1, 2, 37, 0)
    for row, at, logits in ((2, 37, expected[0]), (0, 21, expected[1])):
        np.testing.assert_array_equal(decoder.decode({row: Piece([9], at)})[row], logits)


def test_of_prompts_that_come_together_what_they_share_is_computed_once() -> None:
    decoder = ToyDecoder(3, 100, 8)
    scheduler = Scheduler(decoder, PrefixCache(decoder, 1 << 20))
    for number in range(3):
        request = Request(prompt=(*[1] * 40, number), limit=1)
        scheduler.submit(Answer(request, None))
    while scheduler.step():
        pass
    assert scheduler.timings.prefill_tokens == 41 + 2 * 9
    assert scheduler.timings.reused_tokens == 2 * 32


def test_prompts_wait_for_each_other_only_where_that_pays() -> None:
    decoder = ToyDecoder(2, 100, 8)
    scheduler = Scheduler(decoder, PrefixCache(decoder, BYTES - 1))
    for number in range(2):
        scheduler.submit(Answer(Request(prompt=(*[1] * 40, number), limit=1), None))
    scheduler.step()
    assert decoder.calls == [([0, 1], 8)]


# --- what is kept ---------------------------------------------------------------------------------
def fill(cache: PrefixCache, decoder: ToyDecoder, prompt: list[int]) -> int:
    """Run a prompt as a scheduler does; return how many tokens were found."""
    keys = cache.keys(prompt)
    found = done = cache.restore(keys, 0, 0)
    while done < len(prompt):
        tokens = prompt[done : done + decoder.sizes.prefill_seq_len]
        decoder.prefill({0: Piece(tokens, done)})
        done += len(tokens)
        cache.save(keys, 0, done)
    return found


def test_the_longest_unused_goes_first_and_the_end_of_a_prompt_before_its_beginning() -> None:
    decoder = ToyDecoder(1, 100, 8)
    cache = PrefixCache(decoder, 5 * BYTES)
    one, other, third = [1] * 60, [2] * 40, [3] * 30
    assert [fill(cache, decoder, prompt) for prompt in (one, other)] == [0, 0]
    assert cache.used == 5 * BYTES
    assert fill(cache, decoder, one) == 48
    assert fill(cache, decoder, third) == 0  # takes the place of the end of the longest unused
    assert fill(cache, decoder, one) == 48
    assert fill(cache, decoder, other) == 16
    assert cache.used == 5 * BYTES


def test_one_token_is_left_to_compute() -> None:
    decoder = ToyDecoder(1, 100, 8)
    cache = PrefixCache(decoder, 1 << 20)
    for length, found in [(32, 16), (33, 32), (17, 16), (16, 0)]:
        fill(cache, decoder, [1] * 60)
        assert fill(cache, decoder, [1] * length) == found


def test_a_prompt_longer_than_the_budget_keeps_its_beginning() -> None:
    decoder = ToyDecoder(1, 100, 8)
    cache = PrefixCache(decoder, 2 * BYTES)
    fill(cache, decoder, [1] * 90)
    assert fill(cache, decoder, [1] * 90) == 32


@pytest.mark.parametrize("budget", [0, BYTES - 1])
def test_a_budget_below_a_block_keeps_nothing(budget: int) -> None:
    decoder = ToyDecoder(1, 100, 8)
    cache = PrefixCache(decoder, budget)
    assert [fill(cache, decoder, [1] * 60) for _ in range(2)] == [0, 0]
    assert cache.used == 0


def test_a_budget_below_nothing_is_refused(packages: dict[str, Package]) -> None:
    with pytest.raises(GenerationError, match="cannot take -1 bytes; expected 0 for none"):
        opened(packages["llama"], -1)


@pytest.mark.parametrize(("chunk", "block"), [(1, 16), (3, 18), (8, 16), (16, 16), (40, 40)])
def test_a_block_is_one_or_several_chunks(chunk: int, block: int) -> None:
    decoder = ToyDecoder(1, 100, chunk)
    cache = PrefixCache(decoder, 1 << 20)
    fill(cache, decoder, [1] * 90)
    assert cache.block == block
    assert fill(cache, decoder, [1] * 90) == 89 // block * block


def test_a_prefix_is_all_that_comes_before() -> None:
    """The second blocks are the same, and not what comes before them."""
    decoder = ToyDecoder(1, 100, 8)
    cache = PrefixCache(decoder, 1 << 20)
    fill(cache, decoder, [1] * 16 + [7] * 30)
    assert fill(cache, decoder, [2] * 16 + [7] * 30) == 0
    assert fill(cache, decoder, [1] * 16 + [8] * 30) == 16
