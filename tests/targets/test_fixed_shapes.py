# SPDX-License-Identifier: Apache-2.0
"""Calls of any width and rows are made to fit shapes that were compiled, and nothing but their padding is added."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qeff_zoo.errors import GenerationError
from qeff_zoo.recipe import Shape
from qeff_zoo.runtime.decoding.fixed_shapes import FixedCall, FixedShapes
from qeff_zoo.tasks.text_generation import task


def shapes(**sizes: Any) -> list[dict[str, Any]]:
    """Specializations of a decoder, as a build makes them."""
    return task.TASK.specializations(Shape(ctx_len=64, **sizes))


def encoder(*seq_lens: int, batch: int = 3) -> FixedShapes:
    return FixedShapes(
        [
            {"name": f"Encoder_{n}", "symbols": {"batch_size": str(batch), "seq_len": str(length)}}
            for n, length in enumerate(seq_lens)
        ]
    )


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Import what plans import: that draws random numbers, which a strategy may not."""
    shapes(prefill_seq_len=1, batch_size=1)


@st.composite
def calls(draw: st.DrawFn) -> tuple[list[dict[str, Any]], dict[str, Any], list[int]]:
    """Draw sizes, and a call that a runtime plans for them: rows of `together`, each with some tokens at some start."""
    rows = draw(st.integers(1, 5))
    slots = draw(st.booleans()) and rows > 1
    prefill_seq_len = draw(st.sampled_from([1, 2, 8]))
    contexts = draw(st.sampled_from([(), (16, 64)]))
    specializations = shapes(
        prefill_seq_len=prefill_seq_len,
        comp_ctx_lengths_prefill=contexts,
        comp_ctx_lengths_decode=contexts,
        **({"full_batch_size": rows} if slots else {"batch_size": rows}),
    )
    prefill = draw(st.booleans())
    some = draw(st.lists(st.integers(0, rows - 1), unique=True, min_size=1))
    groups = FixedShapes(specializations).together(dict.fromkeys(some, 0), prefill=prefill)
    assert sorted(row for group in groups for row in group) == sorted(some)
    group = draw(st.sampled_from(groups))
    width = draw(st.integers(1, prefill_seq_len)) if prefill else 1
    input_ids = np.zeros((len(group), width), np.int64)
    position_ids = np.full((len(group), width), -1, np.int64)
    for place in range(len(group)):
        count, start = draw(st.integers(1, width)), draw(st.integers(0, 40))
        input_ids[place, :count] = draw(st.integers(1, 99))
        position_ids[place, :count] = np.arange(start, start + count)
    call = {"input_ids": input_ids, "position_ids": position_ids}
    if contexts:
        call["comp_ctx_lengths"] = np.zeros(draw(st.sampled_from(contexts)), np.int64)
    return specializations, call, group


def symbols_of(specializations: list[dict[str, Any]], made: FixedCall) -> dict[str, int]:
    return {name: int(n) for name, n in specializations[made.index]["symbols"].items()}


@given(calls())
def test_a_call_is_found_again_and_everything_else_is_padding(
    drawn: tuple[list[dict[str, Any]], dict[str, Any], list[int]],
) -> None:
    specializations, call, rows = drawn
    width = call["input_ids"].shape[1]
    made = FixedShapes(specializations).fit(call, rows)
    assert made.symbols == symbols_of(specializations, made)
    shape = made.symbols["batch_size"], made.symbols["seq_len"]
    for name, nothing in (("input_ids", 0), ("position_ids", -1)):
        full = made.inputs[name].copy()
        assert full.shape == shape
        assert full.dtype == np.int64
        assert (full[made.places, :width] == call[name]).all()
        full[made.places, :width] = nothing
        assert (full == nothing).all()
    assert len({*made.places}) == len(rows)


@given(calls())
def test_rows_stand_where_their_states_are(
    drawn: tuple[list[dict[str, Any]], dict[str, Any], list[int]],
) -> None:
    specializations, call, rows = drawn
    made = FixedShapes(specializations).fit(call, rows)
    slots = made.symbols.get("full_batch_size")
    if not slots:
        assert "batch_index" not in made.inputs
        assert [*made.places] == rows
        return
    batch_index = made.inputs["batch_index"]
    assert batch_index.shape == (made.symbols["batch_size"], 1)
    assert batch_index[made.places, 0].tolist() == rows
    everything = batch_index[:, 0].tolist()
    assert len({*everything}) == len(everything)
    assert {*everything} <= {*range(slots)}


@given(calls())
def test_the_narrowest_specialization_is_taken(
    drawn: tuple[list[dict[str, Any]], dict[str, Any], list[int]],
) -> None:
    specializations, call, rows = drawn
    made = FixedShapes(specializations).fit(call, rows)
    count, width = call["input_ids"].shape
    recorded = call.get("comp_ctx_lengths")
    assert made.symbols.get("comp_ctx_lengths") == (None if recorded is None else len(recorded))
    for entry in specializations:
        other = {name: int(n) for name, n in entry["symbols"].items()}
        fits = other["batch_size"] >= count and other["seq_len"] >= width
        same = other.get("comp_ctx_lengths") == made.symbols.get("comp_ctx_lengths")
        assert not (fits and same) or other["seq_len"] >= made.symbols["seq_len"]


def test_slots_begin_one_by_one_and_decode_together() -> None:
    fixed = FixedShapes(shapes(prefill_seq_len=8, full_batch_size=4))
    starts = {3: 0, 0: 5, 2: 1}
    assert fixed.together(starts, prefill=True) == [[0], [2], [3]]
    assert fixed.together(starts, prefill=False) == [[0, 2, 3]]
    call = {name: np.ones((1, 3), np.int64) for name in ("input_ids", "position_ids")}
    made = fixed.fit(call, [3])
    assert made.inputs["batch_index"].tolist() == [[3]]
    assert made.inputs["input_ids"].tolist() == [[1, 1, 1, 0, 0, 0, 0, 0]]
    assert made.inputs["position_ids"].tolist() == [[1, 1, 1, -1, -1, -1, -1, -1]]


def test_rows_of_a_batch_run_together() -> None:
    fixed = FixedShapes(shapes(prefill_seq_len=8, batch_size=3))
    assert fixed.together({2: 0, 0: 5}, prefill=True) == [[0, 2]]
    assert fixed.together({2: 0, 0: 5}, prefill=False) == [[0, 2]]


def test_slots_that_prefill_token_by_token_run_together() -> None:
    fixed = FixedShapes(shapes(prefill_seq_len=1, full_batch_size=3))
    assert fixed.together({0: 0, 2: 0}, prefill=True) == [[0, 2]]


def test_the_whole_context_is_read_by_default() -> None:
    """A program that needs no compute contexts may have been compiled with them."""
    fixed = FixedShapes(shapes(prefill_seq_len=8, comp_ctx_lengths_decode=(16, 64)))
    call = {name: np.ones((1, 1), np.int64) for name in ("input_ids", "position_ids")}
    assert fixed.fit(call, [0]).symbols["comp_ctx_lengths"] == 64


def test_an_encoder_reads_its_first_text_again_where_there_are_rows_to_spare() -> None:
    call = {
        "input_ids": np.array([[5, 6], [7, 0]]),
        "attention_mask": np.array([[1, 1], [1, 0]]),
        "token_type_ids": np.array([[0, 1], [1, 0]]),
    }
    made = encoder(4, 9, batch=3).fit(call)
    assert (made.index, [*made.places]) == (0, [0, 1])
    assert made.inputs["input_ids"].tolist() == [[5, 6, 0, 0], [7, 0, 0, 0], [5, 6, 0, 0]]
    assert made.inputs["attention_mask"].tolist() == [[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0]]
    assert made.inputs["token_type_ids"].tolist() == [[0, 1, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0]]


def test_only_the_requested_part_of_an_output_is_returned() -> None:
    rows = FixedShapes(shapes(prefill_seq_len=8, batch_size=3))
    call = {name: np.ones((2, 5), np.int64) for name in ("input_ids", "position_ids")}
    made = rows.fit(call, [2, 0])
    output = np.arange(3 * 8 * 2).reshape(3, 8, 2)
    assert (made.answer(output, ("batch_size", "seq_len", 2)) == output[[2, 0], :5]).all()
    assert (made.answer(output, ("batch_size", 8, 2)) == output[[2, 0]]).all()


@pytest.mark.parametrize(
    ("count", "width", "recorded", "message"),
    [
        (1, 9, None, r"no call of 1 x 9 tokens; expected at most 1 x 8 or 4 x 1, as"),
        (2, 2, None, "no call of 2 x 2 tokens"),
        (5, 1, None, "no call of 5 x 1 tokens"),
        (
            4,
            1,
            7,
            r"no call of 4 x 1 tokens that reads 7 rows of the cache; expected at most 1 x 8",
        ),
    ],
)
def test_call_beyond_all_fixed_shapes_is_refused(
    count: int, width: int, recorded: int | None, message: str
) -> None:
    fixed = FixedShapes(shapes(prefill_seq_len=8, full_batch_size=4))
    call = {name: np.ones((count, width), np.int64) for name in ("input_ids", "position_ids")}
    if recorded:
        call["comp_ctx_lengths"] = np.zeros(recorded, np.int64)
    with pytest.raises(GenerationError, match=message):
        fixed.fit(call, range(count))


def test_a_text_that_is_too_long_for_an_encoder_is_refused() -> None:
    with pytest.raises(GenerationError, match="1 x 10 tokens; expected at most 3 x 4 or 3 x 9"):
        encoder(4, 9).fit({"input_ids": np.ones((1, 10), np.int64)})
