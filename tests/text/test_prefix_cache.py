# SPDX-License-Identifier: Apache-2.0
"""The prefix cache: what was computed is not computed again, and no answer changes by a bit."""

import logging
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warm
from fixtures_builds import Models
from runnable_package import package
from toy_decoder import ToyDecoder

import qeff_zoo
from qeff_zoo.errors import GenerationError
from qeff_zoo.package import Package
from qeff_zoo.runtime import Request, Sampling, TextGenerationSession
from qeff_zoo.runtime.caches import state_cache
from qeff_zoo.runtime.caches.prefix_cache import PrefixCache
from qeff_zoo.runtime.caches.state_cache import KeptStates, StateFiles
from qeff_zoo.runtime.decoding.call_inputs import Piece
from qeff_zoo.runtime.engine.answers import Answer
from qeff_zoo.runtime.engine.scheduling import Scheduler

pytestmark = pytest.mark.turns(3)

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
@pytest.mark.sampled(3)
def test_answers_are_the_same_to_the_last_bit(packages: dict[str, Package], name: str) -> None:
    """One after the other, with room for all, for a few blocks, and for none."""
    requested, sampling = prompts(1, 14), Sampling(temperature=0.7, seed=5, logprobs=2)
    without = opened(packages[name], 0)
    expected = [
        without.generate([one], generation_len=4, sampling=sampling)[0] for one in requested
    ]
    block = sum(state.nbytes for state in without.decoder.save(0, 0, BLOCK).values())
    assert without.decoder.size_of(BLOCK) == block
    reused = []
    for blocks in (1000, 3):
        session = opened(packages[name], blocks * block)
        got = [session.generate([one], generation_len=4, sampling=sampling)[0] for one in requested]
        assert got == expected
        reused.append(sum(output.reused_tokens for output in got))
        assert all(output.reused_tokens < output.prompt_tokens for output in got)
        assert session._prefixes.used <= blocks * block
    assert not any(output.reused_tokens for output in expected)
    assert 0 < reused[1] < reused[0]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_requests_together_get_what_they_get_alone(packages: dict[str, Package], name: str) -> None:
    """More requests than rows, so that rows are given on, moved, and filled from the cache."""
    requested = prompts(2, 11)
    without, session = opened(packages[name], 0), opened(packages[name], 1 << 20)
    requests = [
        without.request(prompt, generation_len=3 + 4 * (number % 3), ignore_eos=True)
        for number, prompt in enumerate(requested)
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
    found = done = cache.restore(keys, 0, 0, len(prompt))
    while done < len(prompt):
        tokens = prompt[done : done + decoder.sizes.prefill_seq_len]
        decoder.prefill({0: Piece(tokens, done)})
        done += len(tokens)
        cache.save(keys, 0, done, done - len(tokens))
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


# --- answers --------------------------------------------------------------------------------------
def chat(session: TextGenerationSession, turns: int) -> list[Any]:
    """Give the answers of a chat, whose every prompt is all that was said before and a few tokens more."""
    lines = list(range(3, 24))
    found = []
    for turn in range(turns):
        lines += [30 + turn, 31, 32]
        request = session.request(
            lines, generation_len=19, ignore_eos=True, sampling=Sampling(logprobs=3)
        )
        found += session.generate([request])
        lines += found[-1].token_ids
    return found


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_next_turn_of_a_chat_goes_on_from_the_answer(
    packages: dict[str, Package], name: str
) -> None:
    expected = chat(opened(packages[name], 0), 3)
    usual = chat(
        qeff_zoo.load(packages[name], threads=1, prefix_cache_answers=False),  # type: ignore[arg-type]
        3,
    )
    assert usual == expected  # as ever: to the last bit
    kept = chat(
        qeff_zoo.load(packages[name], threads=1, prefix_cache_answers=True),  # type: ignore[arg-type]
        3,
    )
    assert [one.token_ids for one in kept] == [one.token_ids for one in expected]
    for one, other in zip(kept, expected, strict=True):
        assert [item.logprob for item in one.logprobs] == pytest.approx(
            [item.logprob for item in other.logprobs], abs=1e-4
        )
    assert [one.reused_tokens for one in usual] == [0, 16, 32]
    # All but the newest tokens, in whole blocks.
    assert [one.reused_tokens for one in kept] == [0, 32, 64]


TURNS, NEW, GENERATED = 6, 12, 8


def short_turns(session: TextGenerationSession) -> list[Any]:
    """Return the outputs of a chat in short turns."""
    random = np.random.default_rng(4)
    lines: list[int] = []
    found: list[Any] = []
    for _ in range(TURNS):
        lines += random.integers(3, 250, NEW).tolist()
        found += session.generate([lines], generation_len=GENERATED, sampling=Sampling(logprobs=1))
        lines = [*lines, *found[-1].token_ids]
    return found


@pytest.fixture(scope="module")
def long_calls(
    models: Models, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, TextGenerationSession]:
    """Sessions by weights, with calls that are longer than blocks."""
    home = tmp_path_factory.mktemp("long_calls")
    found: dict[str, TextGenerationSession] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QEFF_HOME", str(home))
        checkpoint = models.checkpoint("llama", "llama")
        models.trace(checkpoint, home)
        for weights in ("fp32", "int4", "w8a8"):
            sizes: dict[str, Any] = {"batch_size": 2, "ctx_len": 128, "prefill_seq_len": 64}
            built = package(checkpoint, weights=weights, **sizes)
            found[weights] = qeff_zoo.load(built, threads=1)  # type: ignore[assignment]
            found[f"{weights}, none"] = opened(built, 0)
    return found


@pytest.mark.parametrize("weights", ["fp32", "int4", "w8a8"])
def test_calls_of_other_lengths_have_the_same_bits(
    long_calls: dict[str, TextGenerationSession], weights: str
) -> None:
    """As `Decoder.split` promises, on this machine's kernels, whatever is stored in a product's matrix."""
    decoder = long_calls[weights].decoder
    assert decoder.split == BLOCK
    tokens = np.random.default_rng(0).integers(3, 250, 64).tolist()

    def run(length: int, *stops: int) -> tuple[dict[str, Any], Any]:
        for start, stop in pairwise([0, *stops, length]):
            logits = decoder.prefill({0: Piece(tokens[start:stop], start)})[0]
        return decoder.save(0, 0, length), logits

    for length, stops in [(64, (16, 32, 48)), (63, (48,)), (63, (16, 32, 48)), (50, (48,))]:
        (states, logits), (expected, after) = run(length, *stops), run(length)
        np.testing.assert_array_equal(logits, after)
        for name, state in states.items():
            np.testing.assert_array_equal(state, expected[name])


def test_a_chat_of_short_turns_computes_only_what_is_new(
    long_calls: dict[str, TextGenerationSession],
) -> None:
    """In float32 generated tokens are cached by default: all but the newest tokens are found, in blocks of 16."""
    expected = short_turns(long_calls["fp32, none"])
    found = short_turns(long_calls["fp32"])
    assert [one.token_ids for one in found] == [one.token_ids for one in expected]
    # The newest generated token was not run.
    known = [0, *(one.prompt_tokens - NEW - 1 for one in found[1:])]
    assert [one.reused_tokens for one in found] == [count // BLOCK * BLOCK for count in known]
    assert [one.reused_tokens for one in found] == [0, 16, 32, 48, 64, 96]


def test_what_is_rounded_is_not_continued_from_generated_tokens(
    long_calls: dict[str, TextGenerationSession],
) -> None:
    """Rounded activations amplify the last digits, so that only tokens of prompts are reused, to the last bit."""
    expected, found = short_turns(long_calls["int4, none"]), short_turns(long_calls["int4"])
    assert found == expected
    read = [0, *(one.prompt_tokens for one in found[:-1])]  # by the turn before
    assert [one.reused_tokens for one in found] == [count // BLOCK * BLOCK for count in read]


def test_a_last_token_runs_with_those_before_it(
    long_calls: dict[str, TextGenerationSession],
) -> None:
    """A call of one token has other bits, so that neither the end of a call nor the cache leaves one."""
    for length in (33, 65, 81):
        prompt = np.random.default_rng(length).integers(3, 250, length).tolist()
        expected = long_calls["fp32, none"].generate([prompt], generation_len=2)
        session = long_calls["fp32"]
        session.generate([prompt], generation_len=1)
        (found,) = session.generate([prompt], generation_len=2)
        assert [found] == expected
        assert found.reused_tokens == length - 1 - BLOCK


def test_answers_join_by_themselves_where_prompts_run_token_by_token() -> None:
    """The calls are the same, so that no bit can differ; not so where drafts are checked."""
    decoder = ToyDecoder(1, 100, 1)
    cache = PrefixCache(decoder, 1 << 20)
    scheduler = Scheduler(decoder, cache)
    answer = Answer(Request(prompt=(1,) * 20, limit=30), None)
    scheduler.submit(answer)
    while scheduler.step():
        pass
    assert fill(cache, decoder, [1] * 20 + answer.token_ids) == 48


def test_blocks_that_a_call_ends_within_are_kept_where_states_only_grow(
    sessions: dict[str, TextGenerationSession],
) -> None:
    decoder = sessions["one row"].decoder
    cache = PrefixCache(decoder, 1 << 20, answers=True)
    tokens = list(range(3, 40))
    for start, stop in pairwise([0, 8, 16, 24, 30]):
        decoder.prefill({0: Piece(tokens[start:stop], start)})
        cache.save(cache.keys(tokens), 0, stop, start)
    decoder.prefill({0: Piece(tokens[30:36], 30)})
    cache.save(cache.keys(tokens), 0, 36, since=30)
    found = opened_again(decoder, cache, tokens)
    assert found == 32


def opened_again(decoder: Any, cache: PrefixCache, tokens: list[int]) -> int:
    """Restore all that is known of tokens, and check it; return how many those are."""
    kept = decoder.save(0, 0, 32)
    decoder.prefill({0: Piece([5] * 8, 0)})
    found = cache.restore(cache.keys(tokens), 0, 0, len(tokens))
    for name, state in decoder.save(0, 0, found).items():
        np.testing.assert_array_equal(state, kept[name])
    return found


# --- memory ---------------------------------------------------------------------------------------
def test_a_budget_that_memory_does_not_hold_is_refused(
    packages: dict[str, Package], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        GenerationError, match=r"cannot take .*; expected at most .* free beside the"
    ):
        opened(packages["llama"], 1 << 50)
    monkeypatch.setattr(state_cache, "available_memory", lambda: None)  # other systems do not tell
    opened(packages["llama"], 1 << 50)


def test_where_memory_gets_scarce_the_longest_unused_goes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for files in (None, StateFiles(tmp_path, {})):
        kept = KeptStates(1 << 20, files)
        for number in range(4):
            kept.put({bytes([number] * 32): {"a": np.ones(100)}}, [])
        scarce = state_cache._SPARE - 801  # two of them
        with monkeypatch.context() as patch:
            patch.setattr(state_cache, "available_memory", lambda scarce=scarce: scarce)
            kept.put({bytes([9] * 32): {"a": np.ones(100)}}, [])
        there = [bytes([number] * 32) in kept for number in (0, 1, 2, 3, 9)]
        assert there == [files is not None] * 2 + [True] * 3
        assert kept.used == 800 * sum(there)
        if files is not None:  # they are on disk still
            assert kept._kept[bytes(32)].states is None
            found = kept.get(bytes(32))
            assert found is not None
            assert found["a"].tolist() == [1.0] * 100


def test_states_that_two_requests_computed_count_once() -> None:
    kept = KeptStates(1000)
    for size in (100, 100, 50):
        kept.put({bytes(32): {"a": np.ones(size)}}, [bytes(32)])
        assert kept.used == 8 * size
    kept.put({bytes([1] * 32): {"a": np.ones(100)}}, [])
    assert (bytes(32) in kept, kept.used) == (False, 800)


# --- on disk --------------------------------------------------------------------------------------
@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kept"


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.states"))


def on_disk(package: Package, folder: Path, **choices: Any) -> TextGenerationSession:
    return qeff_zoo.load(package, threads=1, prefix_cache_dir=folder, **choices)  # type: ignore[return-value]


PROMPT = list(range(3, 73))


def answers(session: TextGenerationSession) -> list[Any]:
    sampling = Sampling(logprobs=2)
    return session.generate([PROMPT, PROMPT[:40]], generation_len=3, sampling=sampling)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_was_computed_outlives_its_process(
    packages: dict[str, Package], name: str, folder: Path
) -> None:
    first = answers(on_disk(packages[name], folder))
    assert len(files_of(folder)) == 70 // BLOCK
    again = on_disk(packages[name], folder)
    assert again.kept_bytes > 0
    assert answers(again) == first
    assert again.metrics is not None
    assert again.metrics.reused_tokens == 64 + 32
    # Generated tokens are cached in another folder: to use them is another option.
    assert not on_disk(packages[name], folder, prefix_cache_answers=False).kept_bytes
    block = again.decoder.size_of(BLOCK)
    small = on_disk(packages[name], folder, prefix_cache_bytes=3 * block)
    assert small.kept_bytes <= 3 * block
    assert len(files_of(folder)) == small.kept_bytes // block


def test_the_beginning_of_a_prefix_outlives_its_end(folder: Path) -> None:
    """Blocks are computed and read from the first to the last; the last goes first, in any process."""
    chain = [bytes([number] * 32) for number in (5, 3, 9, 1)]
    states = {"a": np.ones(100)}
    kept = KeptStates(1 << 20, StateFiles(folder, {}))
    for end, key in enumerate(chain, 1):
        kept.put({key: states}, chain[:end])
    kept.put({bytes(32): states}, [bytes(32)])  # another prompt, later
    for last in (bytes(32), chain[0]):  # without and with a use of the chain, from memory
        assert [key for key, _ in StateFiles(folder, {}).entries][-1] == last
        kept.touch(chain)
    files = StateFiles(folder, {})
    small = KeptStates(2 * files.entries[0][1], files)
    assert [key in small for key in (*chain, bytes(32))] == [True, True, False, False, False]


def spoilt(path: Path) -> Iterator[bytes]:
    """Give what may have become of a file."""
    content = path.read_bytes()
    middle = len(content) // 2
    yield content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    yield content[:middle]
    yield b""
    yield os.urandom(200)


def test_a_damaged_file_is_ignored_with_a_warning(
    packages: dict[str, Package], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = answers(on_disk(packages["llama"], folder))
    written = {path.name for path in files_of(folder)}
    for place, content in enumerate(spoilt(files_of(folder)[0])):
        caplog.clear()
        path = files_of(folder)[place]
        path.write_bytes(content)
        session = on_disk(packages["llama"], folder)
        assert answers(session) == first
        assert [record.getMessage() for record in caplog.records] == [
            f"{path} is not used: it is damaged, or another user wrote it. What it had is computed again."
        ]
        assert {path.name for path in files_of(folder)} == written


def test_a_foreign_file_is_ignored_with_a_warning(
    packages: dict[str, Package], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = answers(on_disk(packages["llama"], folder))
    answers(on_disk(packages["gemma3_text"], folder))
    ours, reference = sorted(
        {path.parent for path in files_of(folder)}, key=lambda one: len(list(one.iterdir()))
    )
    for path in reference.iterdir():
        path.replace(ours / path.name)
    (ours / "notes.txt").write_text("mine")
    caplog.set_level(logging.WARNING)
    for name in ("llama", "gemma3_text"):
        answers(on_disk(packages[name], folder))
    message = " ".join(record.getMessage() for record in caplog.records)
    assert "notes.txt is not used: it is no file of a prefix cache" in message
    assert "it is of another package and layout" in message  # by the same user, in the same folder
    assert answers(on_disk(packages["llama"], folder)) == first


def test_states_of_another_kind_are_distinguished(folder: Path) -> None:
    key, states = b"k" * 32, {"a": np.arange(6, dtype=np.float32).reshape(1, 3, 2)}
    files = StateFiles(folder, {"package": "one", "versions": {"x": None}})
    assert files.write(key, states)
    found = files.read(key)
    assert found is not None
    np.testing.assert_array_equal(found["a"], states["a"])
    assert found["a"].dtype == np.float32
    other = files._path(b"o" * 32)
    files._path(key).rename(other)  # another name, the same content
    assert files.read(b"o" * 32) is None
    assert not other.exists()


_WRITER = """
import os, signal, sys
from pathlib import Path
import numpy as np
from qeff_zoo.runtime.caches.state_cache import StateFiles
files = StateFiles(Path(sys.argv[1]), {})
files.write(b"a" * 32, {"x": np.ones(1000)})
packed = files._packed
def dying(key, states):
    for part in packed(key, states)[:4]:
        yield part
    sys.stdout.write("written")
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)
files._packed = dying
files.write(b"b" * 32, {"x": np.ones(1000), "y": np.ones(100000)})
"""


def test_a_killed_process_leaves_nothing_that_is_taken_for_states(folder: Path) -> None:
    command = [warm.PYTHON.executable, "-c", _WRITER, str(folder)]
    done = subprocess.run(command, check=False, capture_output=True, timeout=60)
    assert (done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), done.stdout) == (
        True,
        b"written",
    )
    left = [path for path in folder.glob("*/.*") if path.is_file()]
    assert len(left) == 1
    files = StateFiles(folder, {})
    assert [key for key, _ in files.entries] == [b"a" * 32]
    assert files.read(b"a" * 32) is not None
    assert left[0].exists()  # another process may be writing it
    os.utime(left[0], (0, 0))
    StateFiles(folder, {})
    assert not left[0].exists()


def test_a_disk_that_is_full_stops_nothing(
    packages: dict[str, Package],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = answers(opened(packages["llama"], 1 << 20))
    session = on_disk(packages["llama"], folder)

    def full(*_: Any) -> Sequence[bytes]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(StateFiles, "_packed", full)
    assert answers(session) == first
    assert [record.getMessage().partition(" in ")[0] for record in caplog.records] == [
        "The prefix cache is no longer kept"
    ]
    assert not list(folder.glob("*/*"))


def test_choices_that_do_not_go_together_are_refused(
    packages: dict[str, Package], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        GenerationError, match="prefix_cache_answers is given, and prefix_cache_bytes is 0"
    ):
        qeff_zoo.load(packages["llama"], prefix_cache_bytes=0, prefix_cache_answers=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(
        GenerationError, match=r"Cannot keep the prefix cache in .*file.*Change prefix_cache_dir"
    ):
        on_disk(packages["llama"], tmp_path / "file")
