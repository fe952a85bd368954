# SPDX-License-Identifier: Apache-2.0
"""Scheduling: every request gets what it gets alone, whoever joins, leaves or is cancelled beside it."""

from collections.abc import Sequence

import numpy as np
import pytest
from fixtures_scheduling import BLOCK_BYTES, CTX_LEN, EOS, Client, alone, clients, scheduler_of
from fuzzing import example_count
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_decoder import VOCAB, ToyDecoder, greedy_answer

from qeff_zoo.runtime.caches.prefix_cache import PrefixCache
from qeff_zoo.runtime.engine.answers import Answer, Request
from qeff_zoo.runtime.engine.scheduling import Scheduler


def serve(scheduler: Scheduler, requested: Sequence[Client]) -> list[Answer]:
    """Let clients come and go, and check that each step gives every request that decodes one token."""
    answers = [Answer(client.request, None) for client in requested]
    step, busy = 0, True
    while busy or step <= 20:
        for client, answer in zip(requested, answers, strict=True):
            if client.joins == step:
                scheduler.submit(answer)
            if client.leaves is not None and max(client.leaves, client.joins) == step:
                scheduler.cancel(answer)
        decoding = {
            id(one): len(one.token_ids) for one in answers if one.token_ids and not one.ended
        }
        busy = scheduler.step()
        for answer in answers:
            if id(answer) in decoding:
                assert len(answer.token_ids) == decoding[id(answer)] + 1
        step += 1
        assert step < 10_000
    return answers


@settings(max_examples=example_count(150))
@given(
    requested=st.lists(clients(), max_size=12),
    rows=st.integers(1, 5),
    length=st.sampled_from([1, 3, 8, 16, 40]),
    blocks=st.sampled_from([0, 1, 3, 1000]),
    answers=st.booleans(),
    split=st.sampled_from([0, 8]),
)
def test_every_request_gets_what_it_gets_alone(
    requested: list[Client], rows: int, length: int, blocks: int, answers: bool, split: int
) -> None:
    decoder = ToyDecoder(rows, CTX_LEN, length, split)
    prefixes = PrefixCache(decoder, blocks * 2 * BLOCK_BYTES, answers=answers)
    scheduler = Scheduler(decoder, prefixes)
    for round_ in range(2):  # the second finds what the first has left behind
        for client, answer in zip(requested, serve(scheduler, requested), strict=True):
            expected = alone(client, length)
            if client.seed is None:
                assert expected == greedy_answer(client.prompt, client.request.limit, EOS)
            if answer.finish_reason == "cancelled":
                assert client.leaves is not None
                assert answer.token_ids == expected[: len(answer.token_ids)]
            else:
                assert answer.token_ids == expected
                ended = "eos" if expected[-1] == EOS else "length"
                assert answer.finish_reason == ended
            assert blocks or not answer.reused_tokens, round_
        assert (scheduler.waiting, scheduler.running) == (0, 0)
        assert prefixes.used <= blocks * 2 * BLOCK_BYTES


def submit(scheduler: Scheduler, length: int, limit: int = 20, first: int = 1) -> Answer:
    """Ask for the continuation of a prompt; no EOS ends it."""
    answer = Answer(Request(prompt=(first,) * length, limit=limit), None)
    scheduler.submit(answer)
    return answer


def test_a_long_prompt_holds_up_the_others_by_one_chunk_a_step() -> None:
    decoder = ToyDecoder(6, CTX_LEN, 8)
    scheduler = scheduler_of(decoder)
    for _ in range(4):
        submit(scheduler, 4)
    scheduler.step()
    submit(scheduler, 30)
    submit(scheduler, 29)
    decoder.calls.clear()
    for _ in range(8):
        scheduler.step()
    assert decoder.calls[:2] == [([4], 8), ([0, 1, 2, 3], 1)]  # the shorter one begins
    assert [width for _, width in decoder.calls] == [8, 1] * 3 + [5, 1] + [8, 1] * 3 + [6, 1]
    assert decoder.calls[-1] == ([0, 1, 2, 3, 4, 5], 1)


def test_a_prompt_beside_others_runs_in_short_pieces() -> None:
    """Where the length of calls changes no bit: whole calls alone, and short ones beside others that decode."""
    decoder = ToyDecoder(6, CTX_LEN, 40, split=2)
    scheduler = scheduler_of(decoder)
    for _ in range(3):
        submit(scheduler, 4, first=2)
    scheduler.step()
    assert decoder.calls == [([0, 1, 2], 4), ([0, 1, 2], 1)]
    decoder.calls.clear()
    late = submit(scheduler, 25)
    while not late.token_ids:
        scheduler.step()
    # Four multiples of two; the last token does not run alone.
    assert [width for rows, width in decoder.calls if rows == [3]] == [8, 8, 9]
    assert [rows for rows, _ in decoder.calls if 0 in rows] == [[0, 1, 2]] * 2 + [[0, 1, 2, 3]]
    assert late.token_ids == greedy_answer([1] * 25, 2, VOCAB)


def test_prompts_run_whole_and_together_if_many_wait() -> None:
    decoder = ToyDecoder(6, CTX_LEN, 40, split=2)
    scheduler = scheduler_of(decoder)
    for _ in range(3):
        submit(scheduler, 4, first=2)
    scheduler.step()
    decoder.calls.clear()
    for first in (1, 3):  # of five requests
        submit(scheduler, 12, first=first)
    scheduler.step()
    assert decoder.calls == [([3, 4], 12), ([0, 1, 2, 3, 4], 1)]


@settings(max_examples=example_count(100))
@given(
    groups=st.lists(st.lists(clients(), min_size=1, max_size=6), min_size=1, max_size=6),
    rows=st.integers(1, 5),
    length=st.sampled_from([1, 8, 40]),
    blocks=st.sampled_from([0, 3, 1000]),
)
def test_rows_that_are_given_to_others_change_no_answer(
    groups: list[list[Client]], rows: int, length: int, blocks: int
) -> None:
    """Requests that were submitted together give rows up, and go on later as if nothing had been."""
    decoder = ToyDecoder(rows, CTX_LEN, length)
    scheduler = Scheduler(decoder, PrefixCache(decoder, blocks * 2 * BLOCK_BYTES))
    answers = [[Answer(client.request, None) for client in group] for group in groups]
    step, busy = 0, True
    while busy or step <= 12:
        for group, found in zip(groups, answers, strict=True):
            if group[0].joins == step:
                scheduler.submit(*found)
            if group[0].leaves is not None and max(group[0].leaves, group[0].joins) == step:
                scheduler.cancel(found[0])
        busy = scheduler.step()
        step += 1
        assert step < 10_000
    for group, found in zip(groups, answers, strict=True):
        for client, answer in zip(group, found, strict=True):
            expected = alone(client, length)
            assert answer.token_ids == expected[: len(answer.token_ids)]
            assert answer.reused_tokens < len(client.prompt)
            if answer.finish_reason != "cancelled":
                assert answer.token_ids == expected


@pytest.mark.parametrize(("rows", "length"), [(4, 4), (4, 70), (2, 30), (3, 4)])
def test_a_large_request_leaves_a_slot_to_others(rows: int, length: int) -> None:
    """A second client has its first token after two steps, and a third one too, where there are rows for them."""
    scheduler = scheduler_of(ToyDecoder(rows, CTX_LEN, 8))
    much = [
        Answer(Request(prompt=(number % VOCAB,) * length, limit=CTX_LEN - length), None)
        for number in range(20)
    ]
    scheduler.submit(*much)
    for _ in range(5):
        scheduler.step()
    others = [submit(scheduler, 5, limit=3, first=first) for first in range(2, rows + 1)]
    for _ in range(2 * len(others)):
        scheduler.step()
    assert all(other.token_ids for other in others)
    while scheduler.step():
        pass
    for answer in [*much, *others]:
        assert answer.token_ids == greedy_answer(answer.request.prompt, answer.request.limit, -1)


def test_a_free_row_is_for_who_has_the_fewest() -> None:
    scheduler = scheduler_of(ToyDecoder(2, CTX_LEN, 8))
    first, second = (
        [Answer(Request(prompt=(one,) * 4, limit=4), None) for _ in range(4)] for one in (1, 2)
    )
    scheduler.submit(*first)
    scheduler.submit(*second)
    ends: list[int] = []
    while scheduler.step():
        ends.append(sum(one.ended for one in first) - sum(one.ended for one in second))
    assert {*ends} <= {-1, 0, 1}


def test_a_short_prompt_does_not_wait_for_a_long_one_nor_hold_it_up() -> None:
    scheduler = scheduler_of(ToyDecoder(3, CTX_LEN, 2))
    long = submit(scheduler, 40, limit=2)
    scheduler.step()
    short = submit(scheduler, 3, limit=2)
    for _ in range(4):
        scheduler.step()
    assert short.token_ids
    for _ in range(60):  # whatever comes
        submit(scheduler, 3, limit=1)
        scheduler.step()
    assert long.ended


def test_prompts_that_begin_together_share_calls() -> None:
    decoder = ToyDecoder(3, CTX_LEN, 8)
    scheduler = scheduler_of(decoder)
    for length in (20, 5, 18):
        submit(scheduler, length, limit=40)
    for _ in range(3):
        scheduler.step()
    prefills = [call for call in decoder.calls if call[1] > 1]
    assert prefills[0] == ([0, 1, 2], 8)
    # While the short one decodes, both are in each step; the program takes rows beyond their beginning one by one.
    assert prefills[1:] == [([1], 8), ([2], 8), ([1], 2), ([2], 4)]


def test_short_prompts_are_not_padded_to_long_ones() -> None:
    decoder = ToyDecoder(4, CTX_LEN, 16)
    scheduler = scheduler_of(decoder)
    for length in (16, 1, 1, 1):
        submit(scheduler, length, limit=1)
    while scheduler.step():
        pass
    assert decoder.calls == [([0, 1, 2], 1), ([3], 16)]


def test_rows_that_decode_stay_neighbours() -> None:
    """When requests end, others move into their rows, as few as can be, so that a step stays one call."""
    decoder = ToyDecoder(4, CTX_LEN, 8)
    scheduler = scheduler_of(decoder)
    for limit in (3, 20, 3, 20):
        submit(scheduler, 4, limit)
    for _ in range(6):
        scheduler.step()
    assert decoder.calls == [([0, 1, 2, 3], 4)] + [([0, 1, 2, 3], 1)] * 2 + [([0, 1], 1)] * 4

    decoder = ToyDecoder(5, CTX_LEN, 8)
    scheduler = scheduler_of(decoder)
    for limit in (20, 3, 3, 20, 20):
        submit(scheduler, 4, limit)
    for _ in range(4):
        scheduler.step()
    assert decoder.calls[-2:] == [([2, 3, 4], 1)] * 2  # one has moved, where two could have


def test_neighbours_stay_where_they_are() -> None:
    decoder = ToyDecoder(3, CTX_LEN, 8)
    scheduler = scheduler_of(decoder)
    for limit in (3, 20, 20):
        submit(scheduler, 4, limit)
    for _ in range(4):
        scheduler.step()
    assert decoder.calls[-1] == ([1, 2], 1)


def test_a_row_in_prefill_makes_room_for_one_that_decodes() -> None:
    decoder = ToyDecoder(3, CTX_LEN, 8)
    scheduler = scheduler_of(decoder)
    answers = [submit(scheduler, 2 + number, limit) for number, limit in enumerate((30, 2, 30))]
    scheduler.step()
    answers.append(submit(scheduler, 40, limit=4))
    decoder.calls.clear()
    while scheduler.step():
        pass
    prefills = [rows for rows, width in decoder.calls if width == 8]
    assert prefills == [[1]] + prefills[1:2] * 4  # it is moved after its first chunk
    assert prefills[1] != [1]
    assert {len(rows) for rows, width in decoder.calls[1:8] if width == 1} == {2}
    for answer in answers:
        assert answer.token_ids == greedy_answer(answer.request.prompt, answer.request.limit, -1)


def test_cancelled_request_stops_immediately() -> None:
    scheduler = scheduler_of(ToyDecoder(1, CTX_LEN, 8))
    running, waiting = submit(scheduler, 4), submit(scheduler, 4)
    scheduler.step()
    scheduler.step()
    assert (scheduler.running, scheduler.waiting) == (1, 1)
    scheduler.cancel(waiting)
    scheduler.cancel(running)
    scheduler.cancel(running)
    assert [running.finish_reason, waiting.finish_reason] == ["cancelled", "cancelled"]
    assert (len(running.token_ids), waiting.token_ids) == (3, [])
    assert not scheduler.step()
    last = submit(scheduler, 4, limit=2)
    while scheduler.step():
        pass
    scheduler.cancel(last)
    assert last.finish_reason == "length"


def test_nonsense_fails_one_request_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = ToyDecoder(2, CTX_LEN, 8)
    scheduler = scheduler_of(decoder)
    sick, well = submit(scheduler, 4, first=2), submit(scheduler, 4, limit=6)
    audio: list[object] = []
    sick._listen = audio.append
    call = ToyDecoder._call

    def poisoned(self: ToyDecoder, pieces, rows, *sizes):  # type: ignore[no-untyped-def]
        logits = call(self, pieces, rows, *sizes)
        if 0 in logits and not sick.ended:
            logits[0] = np.full_like(logits[0], np.nan)
        return logits

    monkeypatch.setattr(ToyDecoder, "_call", poisoned)
    while scheduler.step():
        pass
    assert sick.ended
    assert "nan" in str(sick.error)
    assert audio == [None]
    assert well.token_ids == greedy_answer(well.request.prompt, 6, -1)


@pytest.mark.parametrize("names", [("mallory", "alice"), ("mallory", "")])
def test_clients_share_the_slots_whatever_they_submit(names: tuple[str, str]) -> None:
    """A client with many requests, each submitted alone, does not precede a client with one."""
    scheduler = scheduler_of(ToyDecoder(4, CTX_LEN, 8))
    many = [Answer(Request(prompt=(1,), limit=50, client=names[0]), None) for _ in range(20)]
    for answer in many:
        scheduler.submit(answer)
    scheduler.step()
    assert scheduler.running == 4
    late = Answer(Request(prompt=(2,), limit=5, client=names[1]), None)
    scheduler.submit(late)
    for _ in range(5):
        scheduler.step()
    assert late.ended
    assert not any(answer.ended for answer in many)
    while scheduler.step():
        pass
    assert all(len(answer.token_ids) == 50 for answer in many)


def test_groups_of_one_client_share_its_slots() -> None:
    scheduler = scheduler_of(ToyDecoder(3, CTX_LEN, 8))
    several = [Answer(Request(prompt=(1,), limit=50, client="a"), None) for _ in range(9)]
    scheduler.submit(*several)
    scheduler.step()
    single = Answer(Request(prompt=(2,), limit=5, client="a"), None)
    scheduler.submit(single)
    for _ in range(5):
        scheduler.step()
    assert single.ended


@pytest.mark.parametrize("salts", [(b"a", b"a"), (b"a", b"b"), (b"", b"b")])
@pytest.mark.parametrize("answers", [False, True])
def test_cached_prefixes_are_those_of_one_salt(salts: tuple[bytes, bytes], answers: bool) -> None:
    decoder = ToyDecoder(1, CTX_LEN, 8)
    scheduler = Scheduler(decoder, PrefixCache(decoder, 1000 * BLOCK_BYTES, answers=answers))
    found = []
    for salt in salts:
        answer = Answer(Request(prompt=(3,) * 40, limit=20, salt=salt), None)
        scheduler.submit(answer)
        while scheduler.step():
            pass
        found.append(answer.reused_tokens)
    assert found[0] == 0
    assert bool(found[1]) == (salts[0] == salts[1])
