# SPDX-License-Identifier: Apache-2.0
"""Packages of target `qaic` run on a stand-in of the SDK's runtime, which is as strict as a card."""

import gc
import json
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import fixtures_runtime
import numpy as np
import peft_adapters
import pytest
import torch
import toy_qpc
from fixtures_builds import Models
from fixtures_handoff import serving
from fixtures_qaic_runtime import FAKE, LENGTH, PROMPTS, SIZES, rt
from fixtures_serving import complete, connect, running
from hypothesis import given
from hypothesis import strategies as st
from toy_qpc import package_of, toy, toy_answer, toy_package
from transformers import AutoModelForCausalLM

import qeff_zoo
from qeff_zoo import bench, pipeline
from qeff_zoo.bench import case as bench_case
from qeff_zoo.errors import GenerationError, HandoffError, PackageError, SettingsError
from qeff_zoo.graph.states import State
from qeff_zoo.package import Package
from qeff_zoo.plan.request import Request
from qeff_zoo.recipe import Shape
from qeff_zoo.runtime import Engine, Sampling, TextGenerationSession
from qeff_zoo.runtime.decoding.call_inputs import Piece
from qeff_zoo.runtime.engine.disaggregated import Prefills, terms_of
from qeff_zoo.runtime.program import Memory
from qeff_zoo.sessions import EmbeddingSession
from qeff_zoo.targets.qaic import slices
from qeff_zoo.targets.qaic.buffers import Buffer
from qeff_zoo.targets.qaic.cards import DEVICES_ENV
from qeff_zoo.targets.qaic.session import open_program
from qeff_zoo.tasks.text_generation import task as text_generation
from qeff_zoo.validation import perplexity
from qeff_zoo.validation.perplexity import Scoring

pytestmark = pytest.mark.turns(2)

__all__ = ["rt"]


def session_of(package: Package) -> TextGenerationSession:
    return TextGenerationSession(package.path, open_program(package, "decoder"))


def answers(session: TextGenerationSession, **choices: Any) -> list[list[int]]:
    found = session.generate(PROMPTS, generation_len=LENGTH, ignore_eos=True, **choices)
    return [one.token_ids for one in found]


# --- answers --------------------------------------------------------------------------------------
@pytest.mark.parametrize("listed", [True, False], ids=["states listed", "states hidden"])
@pytest.mark.parametrize("name", SIZES)
def test_every_request_is_answered_as_if_it_were_alone(
    name: str, listed: bool, tmp_path: Path
) -> None:
    options = {"split-retained-state-io": listed}
    session = session_of(toy_package(tmp_path / "p", sizes=SIZES[name], options=options))
    expected = [toy_answer(prompt, LENGTH) for prompt in PROMPTS]
    assert answers(session) == expected
    assert answers(session) == expected  # rows are used again


def test_states_may_be_named_as_by_qnn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"split-retained-state-io": True}
    package = toy_package(tmp_path / "p", sizes={}, options=options)
    path = package.path / "qpc/decoder/programqpc.bin"
    note = json.loads(path.read_bytes().removeprefix(b"NO QPC\n"))
    monkeypatch.setattr(toy_qpc, "_dotted", lambda name: name)
    note["model"] = str(toy(tmp_path / "other.onnx", slots=False, contexts=False))
    note["pairs"] = {
        name.replace(".", "_"): other.replace(".", "_") for name, other in note["pairs"].items()
    }
    path.write_bytes(b"NO QPC\n" + json.dumps(note).encode())
    assert answers(session_of(package)) == [toy_answer(prompt, LENGTH) for prompt in PROMPTS]


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_logits_are_read_in_the_precision_that_was_compiled(precision: str, tmp_path: Path) -> None:
    states = dict.fromkeys(("past_key.0", "past_key.0_RetainedState"), "float16")
    custom_io = {"logits": precision, **states}
    package = toy_package(tmp_path / "p", sizes=SIZES["slots"], custom_io=custom_io)
    session = session_of(package)
    assert answers(session) == [toy_answer(prompt, LENGTH) for prompt in PROMPTS]
    one = {name: np.array([[0]]) for name in ("input_ids", "position_ids")}
    kind = np.float16 if precision == "float16" else np.float32
    assert session.decoder.program.outputs["logits"].dtype == kind
    assert session.decoder.program.run(one, [1])["logits"].dtype == kind


@given(st.lists(st.floats(-(2.0**120), 2.0**120, width=32), min_size=1))
def test_bfloat16_is_the_nearest_number(values: list[float]) -> None:
    buffer = Buffer(dtype=np.dtype(np.uint16), is_bfloat16=True)
    given_ = np.array(values, np.float32)
    found = buffer.read(buffer.write(given_))
    assert found.tolist() == torch.tensor(given_).bfloat16().float().tolist()


def halves(folder: Path, sizes: dict[str, Any]) -> list[TextGenerationSession]:
    """Open a package for prompts and one for answers, whose states are listed in float16."""
    states = ("past_key.0", "recurrent_state.1")
    precise = {f"{state}{end}": "float16" for state in states for end in ("", "_RetainedState")}
    options = {"split-retained-state-io": True, "aic-num-cores": 8}
    return [
        session_of(
            toy_package(
                folder / half, sizes={**sizes, half: True}, custom_io=precise, options=options
            )
        )
        for half in ("prefill_only", "decode_only")
    ]


@pytest.mark.parametrize("name", ["rows", "slots"])
def test_cards_that_run_prompts_hand_over_to_cards_that_decode(
    name: str, rt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = halves(tmp_path, SIZES[name])
    moved: dict[int, list[tuple[int, int]]] = {}  # by length of calls: directions and rows
    set_slices = rt.ExecObj.setDataWithSlices

    def spy(self: Any, slices: Any, handle: Any, offsets: Any) -> Any:
        assert {array.shape[0] for _, array in slices} == {1}
        qpc = self.program.qpc
        width = qpc.note["specializations"][0][1]["seq_len"]
        ways = {qpc.bindings[index][1] for index, _ in slices}
        moved.setdefault(width, []).extend((way, dict(offsets)["batch_index"]) for way in ways)
        return set_slices(self, slices, handle, offsets)

    monkeypatch.setattr(rt.ExecObj, "setDataWithSlices", spy)
    with serving(first) as address, Engine(second, prefills=Prefills(second, [address])) as engine:
        handles = [
            engine.submit(second.request(prompt, generation_len=LENGTH, ignore_eos=True))
            for prompt in PROMPTS
        ]
        assert [handle.result(60).token_ids for handle in handles] == [
            toy_answer(prompt, LENGTH) for prompt in PROMPTS
        ]
        assert engine.stats().handed_over == len(PROMPTS)
    # Prompts run in row 0, and each call returns it; answers stay on the card, which is given each row once.
    assert {*moved[8]} == {(1, 0)}
    assert len(moved[1]) == len(PROMPTS)
    # As many rows as happen to be busy at a time.
    assert {(0, 0)} <= {*moved[1]} <= {(0, row) for row in range(3)}


def test_a_package_for_answers_gives_no_states_away(tmp_path: Path) -> None:
    first, second = halves(tmp_path, SIZES["slots"])
    assert first.decoder.movable
    assert not second.decoder.movable
    assert terms_of(first) == terms_of(second)
    with pytest.raises(HandoffError, match="expected states that can be read"):
        terms_of(second, reads=True)


def test_prefill_package_reuses_prompt_prefixes(tmp_path: Path) -> None:
    """The prefix cache writes into rows of a package for prompts, whose card then has them too."""
    first, _ = halves(tmp_path, SIZES["slots"])
    prompts = [[7] * 40 + [n] for n in range(5)]
    found = first.generate(prompts, generation_len=1, ignore_eos=True)
    assert [one.token_ids for one in found] == [toy_answer(prompt, 1) for prompt in prompts]
    assert sum(one.reused_tokens for one in found) > 0


@pytest.mark.parametrize(
    ("row", "extent", "kind", "then", "why"),
    [
        (1, 1, np.float16, "pairs", None),
        (3, 1, np.float16, "pairs", "QS_INVAL"),
        (2, 2, np.float16, "pairs", "QS_INVAL"),
        (0, 1, np.float32, "pairs", "QS_INVAL"),
        (0, 1, np.float16, "buffers", "QS_INVAL"),
        (None, 1, np.float16, "pairs", "QS_INVAL"),
    ],
    ids=["a slot", "no slot", "too many", "type", "no pairs", "no offset"],
)
def test_the_stand_in_takes_slices_as_both_sessions_give_them(
    row: int | None, extent: int, kind: Any, then: str, why: str | None, rt: Any, tmp_path: Path
) -> None:
    """A slice begins on the card where the offsets say, and is as large as its array."""
    _, session = halves(tmp_path, SIZES["slots"])
    program: Any = session.decoder.program
    (execution,) = program._active
    offsets = [("ctx_start", 0)] if row is None else [("batch_index", row), ("ctx_start", 0)]
    index = program._names.index("past_key.0")
    array = np.ones((extent, 1, 64, 1), kind)
    status, _ = execution.setDataWithSlices([(index, array)], program._slices.handle, offsets)
    if status.name == "QS_SUCCESS" and then == "buffers":
        count = len(program._names)
        dims = rt.BufferDimensionsVecRef([(1, [0])] * count)
        status = execution.setData([rt.QBuffer(b"")] * count, dims)
    assert status.name == (why or "QS_SUCCESS")


def test_slices_are_of_one_state_each() -> None:
    """A pattern is of a layer's names alone: `past_key.1.*` would also be of layer 10."""
    states = [
        State(name=f"past_{kind}.{layer}_vllmKvCache", kind="growing", layer=layer, axes=axes)
        for kind in ("key", "value")
        for layer in (1, 10, 11)
        for axes in [("full_batch_size", 2, "ctx_len", 4)]
    ]
    shapes = {job.name: np.zeros((2, 2, 8, 4), np.float16) for job in states}
    specs = json.loads(slices.specification(states, Memory(shapes)))["BufferSpecs"]
    for state in states:
        for name in (state.name, state.output):
            (spec,) = [one for one in specs if re.fullmatch(one["Name"], name)]
            assert spec["ElemSize"] == 2
            assert [dimspec["start"] for dimspec in spec["DimSpecs"]] == [
                "batch_index",
                0,
                "ctx_start",
                0,
            ]


@pytest.mark.parametrize(
    ("precision", "listed"), [("mxint8", True), ("float16", False)], ids=["mxint8", "hidden"]
)
def test_unreadable_states_are_not_transferred(
    precision: str, listed: bool, tmp_path: Path
) -> None:
    custom_io = dict.fromkeys(("past_key.0", "past_key.0_RetainedState"), precision)
    options = {"split-retained-state-io": listed}
    sizes = {"prefill_only": True}
    package = toy_package(tmp_path / "p", sizes=sizes, custom_io=custom_io, options=options)
    session = session_of(package)
    assert session.generate([[5]], generation_len=1)[0].token_ids == toy_answer([5], 1)
    with pytest.raises(HandoffError, match="without --mxint8-kv-cache"):
        terms_of(session)


def test_a_draw_does_not_depend_on_what_runs_beside_it(tmp_path: Path) -> None:
    session = session_of(toy_package(tmp_path / "p", sizes=SIZES["slots"]))
    sampling = Sampling(temperature=3.0, top_p=0.9, seed=7)
    together = answers(session, sampling=sampling)
    alone = [
        session.generate([prompt], generation_len=LENGTH, ignore_eos=True, sampling=sampling)[0]
        for prompt in PROMPTS
    ]
    assert together == [one.token_ids for one in alone]
    assert together != answers(session)


def test_an_engine_serves_threads(tmp_path: Path) -> None:
    session = session_of(toy_package(tmp_path / "p", sizes=SIZES["slots"]))
    with Engine(session) as engine, ThreadPoolExecutor(8) as pool:

        def send_request(prompt: list[int]) -> list[int]:
            request = session.request(prompt, generation_len=LENGTH, ignore_eos=True)
            return engine.submit(request).result(60).token_ids

        found = list(pool.map(send_request, PROMPTS * 2))
        assert engine.stats().reused_tokens == 0  # no prompt's states can be kept
    assert found == [toy_answer(prompt, LENGTH) for prompt in PROMPTS] * 2


# --- models ---------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def portable(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export the tiny Llama with slots, as every target gets it."""
    home = tmp_path_factory.mktemp("home")
    models.trace(models.llama, home, full_batch_size=2)
    folder = tmp_path_factory.mktemp("portable") / "graph"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QEFF_HOME", str(home))
        pipeline.export(str(models.llama), folder, request=Request(ctx_len=48, full_batch_size=2))
    return folder / "graph.onnx"


@pytest.fixture
def llama(models: Models, portable: Path, tmp_path: Path) -> TextGenerationSession:
    """Give a session of the tiny Llama."""
    folder = tmp_path / "llama"
    folder.mkdir()
    for file in models.llama.glob("*.json"):
        shutil.copy(file, folder)
    shape = Shape(ctx_len=48, prefill_seq_len=8, full_batch_size=2)
    return session_of(package_of(folder, portable, text_generation.TASK.specializations(shape)))


def test_a_llama_answers_as_transformers_does(
    llama: TextGenerationSession, expected: list[list[int]]
) -> None:
    found = llama.generate(
        fixtures_runtime.PROMPTS, generation_len=fixtures_runtime.LENGTH, ignore_eos=True
    )
    assert [one.token_ids for one in found] == expected


def test_texts_are_scored_as_transformers_scores_them(
    llama: TextGenerationSession, models: Models
) -> None:
    scoring = Scoring(tokens=[5, 9, 2, 7, 1, 8, 3, 3, 6, 4, 2, 9], window=12, stride=6)
    model: Any = AutoModelForCausalLM.from_pretrained(models.llama, dtype=torch.float32)
    tokens = torch.tensor([scoring.tokens])
    with torch.no_grad():
        expected = float(model(tokens, labels=tokens).loss)
    found = perplexity.score(scoring, llama.decoder, lambda _: None)
    assert found.targets == len(scoring.tokens) - 1
    assert found.nats_per_token == pytest.approx(expected, abs=2e-3)  # states are in float16


def test_a_server_answers_clients(llama: TextGenerationSession) -> None:
    prompts = fixtures_runtime.PROMPTS
    expected = [one.text for one in llama.generate(prompts, generation_len=12)]
    with Engine(llama) as engine, running(engine) as url:
        found = complete(connect(url), prompt=prompts)
    assert [choice.text for choice in found.choices] == expected


def test_cards_keep_the_matrices_of_adapters(
    models: Models, home: Path, tmp_path: Path, rt: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written once, when they are loaded; rows of a call have each their own, as peft computes them."""
    sizes: dict[str, Any] = {"ctx_len": 48, "prefill_seq_len": 8, "full_batch_size": 3}
    request = Request(target="qaic", max_loras=2, max_lora_rank=8, **sizes)
    folder = pipeline.prepare(str(models.llama), tmp_path / "made", request=request, validate=False)
    types = re.findall(r"IOName: (.+)\n +Precision: (.+)", (folder / "custom_io.yaml").read_text())
    assert "-split-retained-state-io" in (folder / "compile.sh").read_text()
    package = package_of(
        folder,
        folder / "model.onnx",
        text_generation.TASK.specializations(Shape(**sizes)),
        custom_io=dict(types),
        options={"split-retained-state-io": True},
    )
    given: list[set[str]] = []
    fill = rt.ExecObj.setData

    def filling(self: Any, pairs: list[tuple[int, Any]]) -> Any:
        names = {self.program.qpc.bindings[index][0] for index, _ in pairs}
        given.append({name for name in names if name.startswith("lora_") and name != "lora_ids"})
        return fill(self, pairs)

    monkeypatch.setattr(rt.ExecObj, "setData", filling)
    session = session_of(package)
    kinds = ["every layer", "patterns"]
    made = [
        peft_adapters.write(
            tmp_path / kind, peft_adapters.load(models.llama), **peft_adapters.KINDS[kind]
        )
        for kind in kinds
    ]
    tokens = [*range(5, 14)]

    def output() -> list[Any]:
        session.decoder.prefill({row: Piece(tokens[:8], 0, slot=row) for row in range(3)})
        found = session.decoder.decode({row: Piece(tokens[8:], 8, slot=row) for row in range(3)})
        return [found[row] for row in range(3)]

    base, *alike = output()
    for kind, adapter in zip(kinds, made, strict=True):
        session.adapters.load(kind, adapter)
    got = output()
    matrices = {name for site in session.adapters.sites for name in site.inputs}
    assert given == [matrices, *[set()] * 3, matrices, *[set()] * 3]
    expected = [peft_adapters.logits(models.llama, one, tokens) for one in (None, *made)]
    for row in range(3):
        away = np.abs(got[row] - expected[row]).max() / expected[row].std()
        assert away < 5e-2  # weights, matrices and states in float16
        assert row == 0 or np.abs(expected[row] - expected[0]).max() > 1.5 * expected[row].std()
    np.testing.assert_allclose([base, *alike], [got[0]] * 3, atol=1e-5)


def test_an_encoder_embeds_texts(built: dict[str, Package], tmp_path: Path) -> None:
    own = built["encoder"]
    folder = tmp_path / "bert"
    folder.mkdir()
    for file in own.path.glob("*.json"):
        if file.name != "manifest.json":
            shutil.copy(file, folder)
    specializations = own.programs[0].specializations
    graph = own.path / "graph.onnx"
    # In a package for prompts alone too, what retains nothing, as that which reads pictures, has nothing to give.
    package = package_of(
        folder,
        graph,
        specializations,
        role="encoder",
        task=own.task,
        shape={"prefill_only": True},
    )
    session = EmbeddingSession(folder, open_program(package, "encoder"))
    texts = ["the quick", "brown fox jumps over that lazy dog and another one", "a", "text"]
    ours: Any = qeff_zoo.load(own, threads=1)
    assert np.allclose(session.embed(texts), ours.embed(texts), atol=1e-6)


def test_its_speed_is_measured_as_that_of_any_package(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = toy_package(tmp_path / "p", sizes=SIZES["slots"])
    with pytest.raises(GenerationError, match=r"A batch of 9 .* at most 3"):
        bench.plan(package, batch_sizes=[9])
    (case,) = bench.plan(package, batch_sizes=[2], prompt_lens=[4], generation_len=2)
    bench_case.main([json.dumps({"package": str(package.path), "repeat": 1, "case": asdict(case)})])
    assert json.loads(capsys.readouterr().out)["decode_tokens_per_s"] > 0


# --- cards ----------------------------------------------------------------------------------------
def test_the_first_free_cards_are_taken_and_given_back(rt: Any, tmp_path: Path) -> None:
    flags, options = {"num_cores": 10}, {"aic-num-cores": 10}
    package = toy_package(tmp_path / "p", sizes={}, flags=flags, options=options)
    opened = [open_program(package, "decoder") for _ in range(rt.DEVICES)]
    assert rt.used == {0: 10, 1: 10, 2: 10, 3: 10}
    with pytest.raises(GenerationError, match=r"0 of 4 .* have 10 free cores .*; expected 1"):
        open_program(package, "decoder")
    opened[2].close()
    opened.append(open_program(package, "decoder"))
    assert rt.used[2] == 10
    del opened
    gc.collect()
    assert {*rt.used.values()} == {0}
    assert rt.messages == []


def test_a_closed_program_is_refused(tmp_path: Path) -> None:
    program = open_program(toy_package(tmp_path / "p", sizes={}), "decoder")
    program.close()
    program.close()
    with pytest.raises(GenerationError, match=r"Cannot run .* it is closed"):
        program.run({}, [0])


@pytest.fixture
def two(tmp_path: Path) -> Package:
    """Give a package that was compiled for two cards."""
    partitions = tmp_path / "mdp.json"
    devices = [{"deviceId": 0}, {"deviceId": 1}]
    partitions.write_text(json.dumps({"partitions": [{"devices": devices}]}))
    options = {"mdp-load-partition-config": str(partitions)}
    return toy_package(tmp_path / "p", sizes={}, flags={"num_devices": 2}, options=options)


def test_cards_that_were_named_are_taken(
    two: Package, rt: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DEVICES_ENV, " 3, 1")
    session = session_of(two)
    assert {card for card, cores in rt.used.items() if cores} == {1, 3}
    assert answers(session) == [toy_answer(prompt, LENGTH) for prompt in PROMPTS]


@pytest.mark.parametrize(
    ("named", "error", "message"),
    [
        ("1", GenerationError, "names 1 cards, 1; expected 2, as .* --num-devices 1"),
        ("0,1,2", GenerationError, "names 3 cards, 0, 1, 2; expected 2"),
        ("1,1", SettingsError, "is '1,1'; expected ids of different cards"),
        ("a", SettingsError, "is 'a'; expected ids"),
        ("-1,0", SettingsError, "is '-1,0'; expected ids"),
        ("7,8", GenerationError, "Cannot open .* on Cloud AI 100 card 7, 8: QS_NODEV"),
    ],
)
def test_cards_that_do_not_fit_are_refused(
    named: str, error: type[Exception], message: str, two: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DEVICES_ENV, named)
    with pytest.raises(error, match=message):
        open_program(two, "decoder")


# --- what does not fit ----------------------------------------------------------------------------
def test_without_the_sdk_there_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = toy_package(tmp_path / "p", sizes={})
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one != str(FAKE)])
    monkeypatch.delitem(sys.modules, "qaicrt")
    message = r"No module named 'qaicrt'. Expected .* under '/opt/qti-aic/dev' .* Install them"
    with pytest.raises(GenerationError, match=message):
        open_program(package, "decoder")


def test_without_a_qpc_there_is_a_sentence(tmp_path: Path) -> None:
    package = toy_package(tmp_path / "p", sizes={})
    (package.path / "qpc/decoder/programqpc.bin").unlink()
    with pytest.raises(GenerationError, match=r"there is no programqpc.bin in .*qpc/decoder'"):
        open_program(package, "decoder")


def test_without_a_card_there_is_a_sentence(
    rt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rt, "DEVICES", 0)
    with pytest.raises(
        GenerationError, match=r"0 of 0 .* have 1 free cores .*QS_NODEV.*expected 1"
    ):
        open_program(toy_package(tmp_path / "p", sizes={}), "decoder")


def test_an_unknown_type_is_refused_unless_it_stays_on_the_card(
    rt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(rt._KINDS, "float32", 99)
    monkeypatch.setitem(rt._BUFFERS, 99, np.float32)
    with pytest.raises(
        PackageError, match="gives 'logits' the type 99; expected one of FLOAT_TYPE"
    ):
        open_program(toy_package(tmp_path / "p", sizes={}), "decoder")
    choices = {"custom_io": {"logits": "float16"}, "options": {"split-retained-state-io": True}}
    session = session_of(toy_package(tmp_path / "q", sizes={}, **choices))
    assert answers(session) == [toy_answer(prompt, LENGTH) for prompt in PROMPTS]


def test_invalid_qpc_is_refused(tmp_path: Path) -> None:
    package = toy_package(tmp_path / "p", sizes={})
    (package.path / "qpc/decoder/programqpc.bin").write_bytes(b"other")
    with pytest.raises(GenerationError, match=r"Cannot open .* card 0: QS_INVAL"):
        open_program(package, "decoder")


def test_a_qpc_for_other_cards_is_refused(rt: Any, tmp_path: Path) -> None:
    """The manifest knows another number than the QPC."""
    package = toy_package(tmp_path / "p", sizes={}, flags={"num_devices": 2})
    refused = r"Cannot load .* card 0, 1: .*QS_INVAL.* for 2 of .* Platform SDK here is absent"
    with pytest.raises(GenerationError, match=refused):
        open_program(package, "decoder")
    assert rt.messages == ["compiled for 1 devices"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"specializations": [("Decode", {"batch_size": 1, "seq_len": 1, "ctx_len": 64})]},
         r"it was not compiled for \{'batch_size': '1', 'seq_len': '8'"),
        ({"other": {"slots": True, "contexts": False}}, "it takes 'batch_index' as well"),
        ({"other": {"slots": False, "contexts": False, "logits": "scores"}}, "it has no 'logits'"),
    ],
)  # fmt: skip
def test_a_qpc_of_another_build_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    package = toy_package(tmp_path / "p", sizes={})
    path = package.path / "qpc/decoder/programqpc.bin"
    note = json.loads(path.read_bytes().removeprefix(b"NO QPC\n"))
    if other := change.pop("other", None):
        note["model"] = str(toy(tmp_path / "other.onnx", **other))
        for _, symbols in note["specializations"]:
            symbols["full_batch_size"] = 1
    path.write_bytes(b"NO QPC\n" + json.dumps({**note, **change}).encode())
    with pytest.raises(PackageError, match=f"is of another program .*: {message}"):
        open_program(package, "decoder")


def test_calls_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    program = open_program(toy_package(tmp_path / "p", sizes=SIZES["slots"]), "decoder")
    assert program.inputs.keys() == {"input_ids", "position_ids"}  # slots follow from the rows
    for count, width in ((1, 9), (2, 2), (4, 1)):
        call = {name: np.zeros((count, width), np.int64) for name in program.inputs}
        with pytest.raises(GenerationError, match=f"no call of {count} x {width} tokens"):
            program.run(call, range(count))


@pytest.mark.parametrize(
    ("owner", "method", "what"),
    [
        ("ExecObj", "setData", "fill the buffers of"),
        ("Queue", "enqueue", "start"),
        ("ExecObj", "waitForCompletion", "run"),
    ],
)
def test_a_failure_of_a_card_reaches_the_caller(
    owner: str, method: str, what: str, rt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_of(toy_package(tmp_path / "p", sizes=SIZES["slots"]))
    status: Any = rt.QStatus.QS_ERROR
    monkeypatch.setattr(getattr(rt, owner), method, lambda *_: status)
    with Engine(session) as engine:
        handle = engine.submit(session.request(PROMPTS[0]))
        with pytest.raises(GenerationError, match=rf"Cannot {what} .* card 0: QStatus.QS_ERROR"):
            handle.result(60)
