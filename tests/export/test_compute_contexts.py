# SPDX-License-Identifier: Apache-2.0
"""Compute contexts: a call that looks at fewer rows of the cache answers the same, and the runtime chooses how many.

Which lists a plan accepts is tested in `test_plan`, the op in `test_ops`, what a validation tries in `test_validation`.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir as ir
import parity
import pytest
from fixtures_builds import Models
from hypothesis import given
from hypothesis import strategies as st
from runnable_package import package
from toy_decoder import ToyDecoder

import qeff_zoo
from qeff_zoo.cli.description import describe
from qeff_zoo.contract import compute_contexts
from qeff_zoo.errors import ExportError
from qeff_zoo.export import exporter
from qeff_zoo.graph.states import states_of
from qeff_zoo.recipe import Shape
from qeff_zoo.runtime.decoding.call_inputs import Piece
from qeff_zoo.runtime.decoding.decoder import Decoder
from qeff_zoo.runtime.sizes import DecoderSizes
from qeff_zoo.tasks.text_generation import task

pytestmark = pytest.mark.turns(3)

CONTEXT_LENGTHS = "comp_ctx_lengths"
lengths = st.sets(st.integers(1, 60)).map(lambda found: tuple(sorted(found)))


# --- lists and specializations --------------------------------------------------------------------
@given(given_=lengths, least=st.integers(1, 70), ctx_len=st.integers(1, 70))
def test_what_fits_is_what_has_no_misfits(
    given_: tuple[int, ...], least: int, ctx_len: int
) -> None:
    least = min(least, ctx_len)
    fitting = compute_contexts.fit(given_, least, ctx_len)
    assert compute_contexts.misfits("--it", fitting, least, ctx_len) == []
    assert fitting[-1] == ctx_len
    if given_ and not compute_contexts.misfits("--it", given_, least, ctx_len):
        assert fitting == tuple(sorted({*given_, ctx_len}))


@pytest.mark.parametrize(
    ("sizes", "names"),
    [
        ({}, ["Prefill_0", "Prefill_1", "Decode_0", "Decode_1", "Decode_2"]),
        ({"full_batch_size": 4}, ["Prefill_0", "Prefill_1", "Decode_0", "Decode_1", "Decode_2"]),
        ({"prefill_seq_len": 1}, ["Decode_0", "Decode_1", "Decode_2", "Decode_3"]),
        ({"comp_ctx_lengths_prefill": (64,)}, ["Prefill", "Decode_0", "Decode_1", "Decode_2"]),
    ],
)
def test_there_is_a_specialization_for_each_length(sizes: dict[str, Any], names: list[str]) -> None:
    """Where one program prefills and decodes, it has the lengths of both."""
    shape = Shape(
        prefill_seq_len=8,
        ctx_len=64,
        comp_ctx_lengths_prefill=(16, 64),
        comp_ctx_lengths_decode=(2, 32, 64),
    )
    found = task.TASK.specializations(replace(shape, **sizes))
    assert [one["name"] for one in found] == names
    read = DecoderSizes.read(found)
    decodes = [one["symbols"][CONTEXT_LENGTHS] for one in found if one["name"].startswith("Decode")]
    assert read.comp_ctx_lengths_decode == tuple(map(int, decodes))
    assert decodes == (["2", "16", "32", "64"] if len(decodes) == 4 else ["2", "32", "64"])
    expected = replace(shape, **sizes).comp_ctx_lengths_prefill
    assert read.comp_ctx_lengths_prefill == (
        read.comp_ctx_lengths_decode if len(decodes) == 4 else expected
    )


def test_without_lists_there_are_two_programs_as_ever() -> None:
    shape = Shape(prefill_seq_len=8, ctx_len=64, batch_size=2)
    common = {"batch_size": "2", "ctx_len": "64"}
    assert task.TASK.specializations(shape) == [
        {"name": "Prefill", "symbols": {**common, "seq_len": "8"}},
        {"name": "Decode", "symbols": {**common, "seq_len": "1"}},
    ]


# --- the runtime's choice -------------------------------------------------------------------------
class Choosing(ToyDecoder):
    """Notes how many rows of the cache its calls look at."""

    noted: list[tuple[int, int]]

    def _call(
        self, pieces: Mapping[int, Piece], rows: Any, width: int, context_length: int, kept: int
    ) -> Any:
        held = max(pieces[row].start + len(pieces[row].tokens) for row in rows)
        self.noted.append((held, context_length))
        return super()._call(pieces, rows, width, context_length, kept)


@given(prefills=lengths, decodes=lengths, context=st.integers(0, 70), data=st.data())
def test_each_call_takes_the_least_length_that_holds_its_tokens(
    prefills: tuple[int, ...], decodes: tuple[int, ...], context: int, data: st.DataObject
) -> None:
    decoder = Choosing(4, 64, 64)
    lists = {"comp_ctx_lengths_prefill": prefills, "comp_ctx_lengths_decode": decodes}
    decoder.sizes, decoder.noted = replace(decoder.sizes, **lists), []
    held = data.draw(st.dictionaries(st.integers(0, 3), st.integers(1, 63), min_size=1))
    decoder.prefill({row: Piece([1] * count, 0) for row, count in held.items()}, context=context)
    prefilled = len(decoder.noted)
    decoder.decode({row: Piece([1], count) for row, count in held.items()}, context=context)
    assert 0 < prefilled < len(decoder.noted)
    for number, (tokens, recorded) in enumerate(decoder.noted):
        listed = prefills if number < prefilled else decodes
        enough = [length for length in listed if length >= max(tokens, context)]
        assert recorded == min(enough, default=64)


# --- graphs ---------------------------------------------------------------------------------------
#: One kernel; windows; latents; ALiBi. With the first two no lowered graph asks how many rows to look at.
REPRESENTATIVES = {
    "llama-base": False,
    "gemma3_text-base": False,
    "deepseek_v2-base": True,
    "falcon-alibi": True,
}


#: Lowered graphs have rows, no slots.
WAYS = [
    (how, scenario)
    for how in ("torch", "portable", "fp32")
    for scenario in ("chunked", "padded_batch", "decode", "slots")
    if (how, scenario) != ("fp32", "slots")
]


@pytest.mark.parametrize(("how", "scenario"), WAYS)
@pytest.mark.parametrize("name", REPRESENTATIVES)
@pytest.mark.sampled(24)
def test_looking_at_no_row_too_many_agrees_with_hugging_face(
    name: str, how: str, scenario: str
) -> None:
    """Each call has the shortest compute context that it may have."""
    slots = parity.CONTINUOUS if scenario == "slots" else ()
    variant = (*slots, *parity.COMPUTE_CONTEXT)
    parity.assert_close(parity.subject(name), how, scenario, variant)


@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_one_row_too_few_shows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = parity.subject(name)
    ids, expected, noise = parity.expected_of(subject)
    enough = parity.least_context
    monkeypatch.setattr(parity, "least_context", lambda positions: enough(positions)[:-1])

    def start(**sizes: int) -> parity.Steps:
        return subject.steps("portable", parity.COMPUTE_CONTEXT, **sizes)

    away = parity.distance(parity.SCENARIOS["decode"], start, ids, expected)
    assert away > parity.DROPPED * parity.TOLERANCE["portable"] * noise


@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_a_graph_declares_the_inputs_that_it_reads(name: str) -> None:
    subject = parity.subject(name)
    graph = subject.graph(parity.COMPUTE_CONTEXT)
    lowered = subject.lower("fp32", parity.COMPUTE_CONTEXT)
    assert shapes(subject.graph()).keys() == shapes(graph).keys() - {CONTEXT_LENGTHS}
    assert shapes(graph)[CONTEXT_LENGTHS] == [CONTEXT_LENGTHS]
    assert (CONTEXT_LENGTHS in shapes(lowered.model)) == REPRESENTATIVES[name]
    assert lowered.ways == subject.lower("fp32").ways
    assert states_of(graph.graph.inputs) == subject.states


def shapes(model: ir.Model) -> dict[str, list[str]]:
    return {str(one.name): [str(dim) for dim in one.shape or ()] for one in model.graph.inputs}


def test_a_model_without_a_context_has_no_such_graph() -> None:
    case = parity.all_cases()["mamba-base"]
    with pytest.raises(ExportError, match="MambaForCausalLM keeps windows or recurrent states"):
        exporter.export_graph(case.config, case.recipe, comp_ctx_lengths=True)


# --- packages -------------------------------------------------------------------------------------
def test_a_package_answers_the_same_with_and_without(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.trace(models.odd, tmp_path, comp_ctx_lengths_decode=(16,))
    models.trace(models.odd, tmp_path)
    monkeypatch.setenv("QEFF_HOME", str(tmp_path))
    sizes = {"prefill_seq_len": 8, "ctx_len": 48, "batch_size": 3}
    lists = {"comp_ctx_lengths_prefill": (16, 32), "comp_ctx_lengths_decode": (12, 30)}
    packages = [package(models.odd, **sizes, **more) for more in ({}, lists)]
    requested: list[int] = []
    call = Decoder._call

    def spy(
        self: Decoder, pieces: Any, rows: range, width: int, context_length: int, kept: int
    ) -> Any:
        requested.append(context_length)
        return call(self, pieces, rows, width, context_length, kept)

    monkeypatch.setattr(Decoder, "_call", spy)
    answers, chosen = [], []
    for one in packages:
        requested.clear()
        session: Any = qeff_zoo.load(one, threads=1)
        found = session.generate([[7] * 5, [*range(5, 29)], [9, 8]], generation_len=20)
        answers.append([answer.token_ids for answer in found])
        chosen.append({*requested})
    assert answers[0] == answers[1]
    assert chosen == [{0}, {12, 16, 30, 32, 48}]  # 0: none is chosen
    assert f"{CONTEXT_LENGTHS} int64[{CONTEXT_LENGTHS}]" in describe(packages[1])


def test_a_package_without_context_lengths_reports_the_reason(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QEFF_HOME", str(tmp_path))
    models.trace(models.llama, tmp_path, comp_ctx_lengths_decode=(16,))
    text = describe(package(models.llama, ctx_len=32, comp_ctx_lengths_decode=(16,)))
    assert (
        f"{CONTEXT_LENGTHS}: not needed, since attention reads only the tokens that are there"
        in text
    )
