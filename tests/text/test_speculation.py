# SPDX-License-Identifier: Apache-2.0
"""Several logits a call, and what is built on them: drafted tokens are checked together, and change no answer."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import parity
import pytest
from fixtures_runtime import LENGTH, PROMPTS
from rejecting import MOST, NARROWED, SEVERAL, program, specializations

import qeff_zoo
from qeff_zoo import cli
from qeff_zoo.errors import GenerationError
from qeff_zoo.package import Package
from qeff_zoo.recipe import Shape
from qeff_zoo.runtime import Engine, Grammar, Sampling, TextGenerationSession
from qeff_zoo.runtime.decoding.call_inputs import Piece
from qeff_zoo.runtime.decoding.decoder import Decoder
from qeff_zoo.runtime.decoding.fixed_shapes import FixedShapes
from qeff_zoo.runtime.engine.speculation import opening
from qeff_zoo.runtime.sizes import DecoderSizes
from qeff_zoo.targets.ort.session import OrtProgram
from qeff_zoo.tasks.text_generation import task

pytestmark = pytest.mark.turns(2)


# --- shapes ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({}, ["Prefill 8 1", "Decode_0 1 1", "Decode_1 4 4", "Decode_2 6 6"]),
        ({"prefill_seq_len": 1}, ["Decode_0 1 1", "Decode_1 4 4", "Decode_2 6 6"]),
        ({"num_speculative_tokens": (1,)}, ["Prefill 8 1", "Decode_0 1 1", "Decode_1 2 2"]),
        ({"num_speculative_tokens": ()}, ["Prefill 8 None", "Decode 1 None"]),
    ],
)
def test_there_is_a_decode_for_each_number_of_drafted_tokens(
    sizes: dict[str, Any], expected: list[str]
) -> None:
    shape = {"prefill_seq_len": 8, "ctx_len": 64, "num_speculative_tokens": (3, MOST), **sizes}
    found = task.TASK.specializations(Shape(**shape))
    symbols = [(one["name"], one["symbols"]) for one in found]
    assert [
        f"{name} {one['seq_len']} {one.get('num_logits_to_keep')}" for name, one in symbols
    ] == expected
    assert DecoderSizes.read(found).num_speculative_tokens == shape["num_speculative_tokens"]


def test_each_is_there_for_every_compute_context() -> None:
    lists = {"comp_ctx_lengths_prefill": (16, 64), "comp_ctx_lengths_decode": (32, 64)}
    shape = Shape(prefill_seq_len=8, ctx_len=64, num_speculative_tokens=(3,), **lists)
    read = DecoderSizes.read(task.TASK.specializations(shape))
    assert read.num_speculative_tokens == (3,)
    assert (read.comp_ctx_lengths_prefill, read.comp_ctx_lengths_decode) == ((16, 64), (32, 64))


@pytest.mark.parametrize(
    ("count", "width", "kept", "chosen"),
    [
        (1, 1, 1, "1"),
        (2, 3, 3, "4"),
        (2, 5, 5, "6"),
        (2, 4, 4, "4"),
        (1, 3, 1, "8"),
        (2, 1, 1, "1"),
    ],
)
def test_fixed_shapes_return_the_requested_logits(
    count: int, width: int, kept: int, chosen: str
) -> None:
    """A prompt's call is one of Prefill: the other calls return logits from the first token on."""
    entries = specializations(2)
    shapes = FixedShapes(entries)
    ids = np.arange(count * width, dtype=np.int64).reshape(count, width)
    inputs = {"input_ids": ids, "position_ids": ids, "num_logits_to_keep": np.zeros(kept, np.int64)}
    call = shapes.fit(inputs, range(count))
    assert entries[call.index]["symbols"]["seq_len"] == chosen
    made = int(entries[call.index]["symbols"].get("num_logits_to_keep", "1"))
    assert len(call.inputs["num_logits_to_keep"]) == made
    logits = np.zeros((2, made, 7))
    answered = call.answer(logits, ("batch_size", "num_logits_to_keep", 7))
    assert answered.shape == (count, kept, 7)
    starts = dict.fromkeys(range(count), 4)
    assert shapes.together(starts, prefill=True, kept=kept) == [[*range(count)]]


def test_fixed_shapes_refuse_too_many_tokens() -> None:
    ids = np.zeros((1, 7), np.int64)
    inputs = {"input_ids": ids, "position_ids": ids, "num_logits_to_keep": np.zeros(7, np.int64)}
    with pytest.raises(GenerationError, match="1 x 7 tokens with logits after 7 of them"):
        FixedShapes(specializations(1)).fit(inputs, [0])


def test_a_plan_refuses_what_no_call_checks(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["plan", "examples/tiny-llama", "--ctx-len", "64", "--num-speculative-tokens"]
    for given in ("0", "3,63"):
        assert cli.main([*argv, given]) == 1
        message = f"--num-speculative-tokens is [{given.replace(',', ', ')}]; expected 1 to 62"
        assert message in capsys.readouterr().err
    assert cli.main([*argv, "5,3,5", "--json"]) == 0
    assert '"num_logits_to_keep": true' in capsys.readouterr().out


# --- several logits a call ------------------------------------------------------------------------
@pytest.mark.parametrize("width", [1, 2, 3, MOST + 1, parity.PROMPT])
@pytest.mark.parametrize("name", [*parity.STATES.values(), NARROWED])
@pytest.mark.sampled(5)
def test_every_logit_of_a_call_agrees_with_hugging_face(name: str, width: int) -> None:
    subject, decoder = parity.subject(name), Decoder(program(name))
    ids, expected, noise = parity.expected_of(subject)
    for row in range(2):
        found = []
        for start in range(0, parity.PROMPT, width):
            piece = Piece(ids[row, start : start + width].tolist(), start)
            found.append(decoder.verify({row: piece})[row])
        got = np.concatenate(found)
        away = np.abs(got - expected[row]).max() / expected[row].std()
        assert away <= parity.TOLERANCE["fp32"] * noise
        # An answer a position off is another one.
        off = np.abs(got[:-1] - expected[row, 1:]).max() / expected[row].std()
        assert off > parity.DROPPED * parity.TOLERANCE["fp32"] * noise


@pytest.mark.parametrize("name", parity.STATES.values())
def test_prompts_and_single_tokens_run_as_without(name: str) -> None:
    subject, decoder = parity.subject(name), Decoder(program(name))
    ids, expected, noise = parity.expected_of(subject)
    for start, stop in ((0, 7), (7, 8), (8, 9)):
        run: Callable[..., Any] = decoder.decode if stop - start == 1 else decoder.prefill
        got = run({0: Piece(ids[0, start:stop].tolist(), start)})[0]
        away = np.abs(got - expected[0, stop - 1]).max() / expected[0].std()
        assert away <= parity.TOLERANCE["fp32"] * noise


@pytest.mark.parametrize("storage", ["fp32", "int8", "int4", "w8a8"])
def test_concurrent_slots_do_not_change_a_result(storage: str) -> None:
    """As docs/serving.md says: not a bit at fp32 and w8a8; the last digits of logits at int8 and int4."""
    ids = parity.tokens(rows=4)
    session = parity.subject("llama-base").lowered(storage, SEVERAL, 1)
    decoder = Decoder(OrtProgram(session, session.states, specializations(4)))

    def logits(rows: int) -> Any:
        for row in range(4):
            decoder.prefill({row: Piece(ids[row, : 9 + row].tolist(), 0)})
        pieces = {row: Piece([int(ids[row, 9 + row])], 9 + row) for row in range(rows)}
        return decoder.decode(pieces)

    every = logits(4)
    for rows in (1, 2, 3):
        for row, found in logits(rows).items():
            away = np.abs(found - every[row]).max() / every[row].std()
            assert away <= (0 if storage in ("fp32", "w8a8") else 1e-4)


def test_a_package_without_drafts_refuses_to_check_any() -> None:
    session = parity.subject("llama-base").lowered("fp32", (), 1)
    decoder = Decoder(OrtProgram(session, session.states, specializations(1)))
    assert not decoder.verifies
    with pytest.raises(GenerationError, match="Build it with --num-speculative-tokens"):
        decoder.verify({0: Piece([5, 6], 0)})


# --- sessions -------------------------------------------------------------------------------------
REPEATED = [7, 8, 9, 7, 8]


def opened(package: Package, speculate: Any) -> TextGenerationSession:
    session = qeff_zoo.load(package, threads=1, draft=speculate)
    assert isinstance(session, TextGenerationSession)
    return session


@pytest.mark.usefixtures("free_drafts")
@pytest.mark.parametrize("drafts", ["lookup", "itself"])
def test_answers_are_those_of_hugging_face(
    built: dict[str, Package], expected: list[list[int]], drafts: str
) -> None:
    package = built["drafts"]
    session = opened(package, "lookup" if drafts == "lookup" else package)
    for one in (PROMPTS, PROMPTS[::-1]):
        found = session.generate(one, generation_len=LENGTH, ignore_eos=True)
        right = dict(zip(PROMPTS, expected, strict=True))
        assert [output.token_ids for output in found] == [right[prompt] for prompt in one]
    plain = opened(package, None)
    for sampling in (Sampling(), Sampling(temperature=0.2, seed=5, repetition_penalty=1.1)):
        requested: Any = {"generation_len": 40, "ignore_eos": True, "sampling": sampling}
        (one,), (other,) = (
            session.generate([REPEATED], **requested),
            plain.generate([REPEATED], **requested),
        )
        assert (one, one.text) == (other, other.text)
        assert session.metrics is not None
        assert session.metrics.drafted_tokens == one.drafted_tokens
        assert (one.drafted_tokens > 0) or drafts == "lookup"
        assert ("drafted tokens accepted" in str(session.metrics)) == (one.drafted_tokens > 0)
    for words in ("(the|quick|or)", "(the)"):
        form = Grammar.regex(f"{words}( {words}){{20}}")
        (held,), (wanted,) = (
            one.generate(["the quick the quick"], grammar=form, generation_len=30)
            for one in (session, plain)
        )
        assert held.text == wanted.text
        assert re.match(f"{words}( {words}){{3}}", held.text)
    assert held.drafted_tokens > 0
    assert held.accepted_tokens > 0 or drafts == "itself"  # a draft model knows no grammar
    with Engine(session) as engine:
        engine.submit(session.request(REPEATED, generation_len=20)).result(timeout=60)
        engine.submit("a").cancel()
    assert engine.stats().drafted_tokens >= engine.stats().accepted_tokens


def test_unsuitable_draft_model_is_refused(built: dict[str, Package], tmp_path: Path) -> None:
    with pytest.raises(
        GenerationError, match=r"no drafts can be checked.* --num-speculative-tokens"
    ):
        opened(built["one row"], "lookup")
    with pytest.raises(GenerationError, match="in which no token is drafted"):
        qeff_zoo.load(built["encoder"], draft="lookup")
    with pytest.raises(
        GenerationError, match=r"The draft package .* is for task 'feature-extraction'"
    ):
        opened(built["drafts"], built["encoder"])
    other = Path(shutil.copytree(built["one row"].path, tmp_path / "other"))
    content = (other / "tokenizer.json").read_text().replace('"</s>"', '"</t>"')
    (other / "tokenizer.json").write_text(content)
    with pytest.raises(GenerationError, match="has another vocabulary than"):
        opened(built["drafts"], Package(other, built["one row"].manifest))


@pytest.mark.full
def test_a_device_that_keeps_its_states_cannot_take_back_a_recurrence(
    built: dict[str, Package],
) -> None:
    session = opened(built["drafts"], None)
    program_ = session.decoder.program
    program_.memory = None  # type: ignore[misc]
    program_.states = program(parity.STATES["recurrent"]).states  # type: ignore[misc]
    session.decoder = Decoder(program_)
    with pytest.raises(GenerationError, match="recurrent states, which its device keeps"):
        opening.speculation_of(session, "lookup")


@pytest.mark.usefixtures("free_drafts")
def test_the_commands_draft(built: dict[str, Package], capsys: pytest.CaptureFixture[str]) -> None:
    package = str(built["drafts"].path)
    argv = [
        "run",
        package,
        "--prompt",
        "the quick, the quick",
        "--generation-len",
        "12",
        "--threads",
        "1",
    ]
    answers = []
    for more in ([], ["--draft", "lookup"], ["--draft", package]):
        assert cli.main([*argv, "--regex", "the( the){20}", *more]) == 0
        answer, printed_text = capsys.readouterr()
        answers.append(answer)
        assert ("drafted tokens accepted" in printed_text) == bool(more)
    assert len({*answers}) == 1
    bench = ["bench", package, "--draft", "lookup", "--repeat", "1", "--batch-size", "1"]
    assert cli.main([*bench, "--prompt-len", "8", "--generation-len", "8", "-q"]) == 0
    assert "accepted" in capsys.readouterr().out
    assert cli.main([*argv, "--draft", str(built["encoder"].path)]) == 1
    assert "is for task 'feature-extraction'" in capsys.readouterr().err
    ratio = [*argv, "--temperature", "0.9", "--seed", "3", "--acceptance", "rejection"]
    assert cli.main([*ratio, "--draft", package]) == 0
    assert capsys.readouterr().out
    assert cli.main([*ratio, "--draft", "lookup"]) == 1
    assert "both ways accept the same" in capsys.readouterr().err
    assert cli.main(ratio) == 1
    assert "nothing is drafted" in capsys.readouterr().err
