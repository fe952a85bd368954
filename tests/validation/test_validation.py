# SPDX-License-Identifier: Apache-2.0
"""Validation: what is right passes, what is wrong fails, and what was not run is not claimed."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from fixtures_builds import Models
from hypothesis import given
from hypothesis import strategies as st
from runnable_package import edit_json, package
from transformers import AutoModelForCausalLM

from qeff_zoo.contract import comparison, compute_contexts
from qeff_zoo.errors import ParityError, PlanError
from qeff_zoo.graph.numerics import Format, Numerics, RoundedMatrix, format_of
from qeff_zoo.package import Package, proof
from qeff_zoo.package.manifest import problems
from qeff_zoo.plan import shape as choosing_shape
from qeff_zoo.registry import find_recipe
from qeff_zoo.runtime.decoding.decoder import Decoder
from qeff_zoo.runtime.memory import MEMORY_ENV
from qeff_zoo.runtime.sizes import DecoderSizes, EncoderSizes
from qeff_zoo.runtime.text.tokenizer import Tokenizer
from qeff_zoo.targets.ort import session as ort_session
from qeff_zoo.tasks.text_generation.reference import DecoderReference
from qeff_zoo.validation import ladder as validation
from qeff_zoo.validation import tiny_models
from qeff_zoo.validation.judgement import records
from qeff_zoo.validation.judgement.parity import (
    TOLERANCES,
    Canary,
    Floor,
    Judge,
    Tolerance,
    cosine_distances,
    divergences,
    measure_floor,
    relative_errors,
)
from qeff_zoo.validation.judgement.records import Record
from qeff_zoo.validation.reference import answers as reference_answers
from qeff_zoo.validation.reference import process as reference_process
from qeff_zoo.validation.reference.answers import Answers, Reference
from qeff_zoo.validation.reference.damage import HEADS, SWAPPED, damaged
from qeff_zoo.validation.reference.numerics import Arithmetic, Widest, round_weights
from qeff_zoo.validation.reference.resuming import Resuming
from qeff_zoo.validation.trial import cases, sample_texts
from qeff_zoo.weights.quantization import round_trip

pytestmark = pytest.mark.turns(2)

#: Stages that compare no answers.
EXACT = ("text", "settings", "weights")
SHAPE = {"prefill_seq_len": 8, "ctx_len": 40}
CHOICES: Mapping[str, dict[str, Any]] = {
    "rows": {**SHAPE, "batch_size": 3},
    "slots": {**SHAPE, "full_batch_size": 3},
    "int4": {**SHAPE, "batch_size": 1, "weights": "int4"},
    "contexts": {
        **SHAPE,
        "batch_size": 3,
        "comp_ctx_lengths_prefill": (8, 20),
        "comp_ctx_lengths_decode": (12, 20),
    },
    "blocks": {**SHAPE, "batch_size": 1, "weights": "int4", "block_size": 64},
    "w8a8": {**SHAPE, "batch_size": 1, "weights": "w8a8"},
    "encoder": {"seq_lens": (8, 24), "batch_size": 2, "pooling": "cls", "normalize": True},
}
ALONE = ["prefill", "chunked_prefill", "ctx_len", "padded_batch", "decode"]
STAGES = {
    "rows": [*ALONE, "continuous_batching"],
    "slots": [*ALONE, "continuous_batching"],
    "int4": ALONE,
    "contexts": [
        *(*ALONE, "continuous_batching"),
        *(f"comp_ctx_lengths_{length}" for length in (8, 12, 20, 40)),
    ],
    "blocks": ALONE,
    "w8a8": ALONE,
    "encoder": ["seq_len_8", "seq_len_24", "padded_batch"],
}
REVISION = "0e9e39f249a16976918f6564b8830bc894c89659"
RUN = Reference.run


@pytest.fixture(scope="session")
def built(models: Models, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Package]:
    home = tmp_path_factory.mktemp("validation")
    models.trace(models.llama, home)
    models.trace(models.llama, home, full_batch_size=2)
    models.trace(models.odd, home, comp_ctx_lengths_decode=(16,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QEFF_HOME", str(home))
        return {name: package(source_of(models, name), **CHOICES[name]) for name in CHOICES}


def source_of(models: Models, name: str) -> Path:
    """Return the checkpoint of one of the packages."""
    return {"encoder": models.bert, "contexts": models.odd}.get(name, models.llama)


@pytest.fixture(scope="session")
def once() -> Iterator[None]:
    """Ask the reference each question once: of a damaged package it is the same."""
    answers: dict[str, Answers] = {}

    def remember(reference: Reference, request: Mapping[str, Any], *others: Any) -> Answers:
        paths = ("greedy", "weight_file", "reads")  # of stored tensors, see test_stored_tensors.py
        question = json.dumps({**request, **dict.fromkeys(paths)})
        if question not in answers:
            answers[question] = RUN(reference, request, *others)
        return answers[question]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reference, "run", remember)
        yield


class Shown:
    """Reporter that remembers the totals of phases, and what was done."""

    def __init__(self) -> None:
        self.totals: dict[str, int | None] = {}
        self.done: dict[str, int] = {}

    def begin(self, stage: str, total: int | None, unit: str) -> None:
        self.totals[stage], self.done[stage] = total, 0
        assert unit == ("step" if total is None else "token")

    def advance(self, amount: int) -> None:
        self.done[[*self.done][-1]] += amount

    def end(self) -> None:
        """Nothing to do."""


@pytest.fixture(scope="session")
def validated(built: dict[str, Package], models: Models, once: None) -> Callable[[str], Record]:
    """Give a function that validates a package, once."""
    found: dict[str, Record] = {}

    def validate(name: str) -> Record:
        if name not in found:
            source = source_of(models, name)
            shown = Shown()
            found[name] = validation.validate(
                built[name], source, level="tiny", threads=1, reporter=shown
            )
            rounds = built[name].programs[0].numerics.int8_activations
            phases = ["package", *(["package, rounded"] if rounds else []), "reference"]
            # The reference answers equal questions once.
            assert [one.split(": ")[1] for one in shown.totals] in (phases, phases[:-1])
            for phase, total in shown.totals.items():
                assert (total is None) == (name == "encoder")
                # Further canaries, which tiny models need, read more; faults that cannot be made read less.
                assert 0.7 < shown.done[phase] / (total or shown.done[phase]) < 2.5, (name, phase)
        return found[name]

    return validate


# --- packages that are right ----------------------------------------------------------------------
@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.sampled(3)
def test_a_package_that_is_right_passes(
    built: dict[str, Package], validated: Callable[[str], Record], name: str
) -> None:
    record = validated(name)
    assert record.failures == []
    assert record.passed
    shipped = ["as_shipped"] if built[name].programs[0].numerics.int8_activations else []
    stages = list(dict.fromkeys(check["stage"] for check in record.checks))
    assert stages == [*STAGES[name], *shipped, "text", "settings", "weights"]
    for stage in STAGES[name]:
        caught = [
            check["metric"]
            for check in record.checks
            if check["stage"] == stage and "canary" in check
        ]
        assert "max_relative_error" in caught, stage
    claim = {"validation": record.checks, "validated": "tiny"}
    assert problems({**built[name].manifest, **claim}) == []


def test_the_noise_floor_is_that_of_the_arithmetic(validated: Callable[[str], Record]) -> None:
    for name in ("rows", "slots"):
        (floor,) = validated(name).reported["noise_floor"].values()
        assert 1e-7 < floor["error"] < 1e-4
        assert 0 < floor["divergence"] < 1e-8
    (floor,) = validated("int4").reported["noise_floor"].values()
    assert 1e-7 < floor["error"] < 1e-4  # activations are not rounded when it is compared
    thresholds = [check["threshold"] for check in validated("rows").checks]
    assert max(thresholds[:2]) < 1e-3


def without_numbers(check: Mapping[str, Any]) -> dict[str, Any]:
    canary = {**check.get("canary", {}), "value": None}
    return {**check, "value": None, "threshold": None, "canary": canary}


def test_a_package_is_judged_alike_if_the_model_does_not_fit_into_memory(
    built: dict[str, Package],
    models: Models,
    validated: Callable[[str], Record],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = validated("int4")
    monkeypatch.setattr(Reference, "run", RUN)  # again
    monkeypatch.setenv(MEMORY_ENV, "300000")  # a KV cache, but no 180,000 parameters
    # Of the reference: a package with so little memory multiplies int8 matrices in parts, with a larger error.
    monkeypatch.setattr(ort_session, "available_memory", lambda: None)
    source = source_of(models, "int4")
    layered = validation.validate(built["int4"], source, level="tiny", threads=1)
    assert layered.passed
    canaries = [
        [(check.get("canary") or {}).get("value") or 0.0 for check in found.checks]
        for found in (layered, whole)
    ]
    # A canary of the whole model begins at the last layer, with the states of a longer pass.
    assert canaries[0] == pytest.approx(canaries[1], rel=1e-3)
    for one, other in zip(layered.checks, whole.checks, strict=True):
        # Where weights lie in memory changes the order of sums, on some processors.
        assert one["value"] == pytest.approx(other["value"], abs=0.01 * other["threshold"])
        assert without_numbers(one) == without_numbers(other)
        assert one["threshold"] == pytest.approx(other["threshold"], rel=0.01)
    assert layered.costs == whole.costs
    assert layered.reported == {**whole.reported, "layer_by_layer": True}


@pytest.mark.parametrize("name", ["int4", "blocks", "w8a8"])
def test_a_rounded_package_is_held_against_the_rounded_model(
    name: str, validated: Callable[[str], Record]
) -> None:
    record, storage = validated(name), "w8a8" if name == "w8a8" else "int4"
    dtype = f"float32 rounded to {storage}"
    numbers = [check for check in record.checks if check["stage"] not in EXACT]
    assert {check["against"]["dtype"] for check in numbers} == {dtype}
    thresholds = {
        check["threshold"] for check in record.checks if check["metric"] == "max_relative_error"
    }
    assert max(thresholds) < 1e-3
    (check,) = (check for check in record.checks if check["stage"] == "as_shipped")
    assert 0.8 < check["value"] < 1.25
    assert check["canary"]["value"] > 4


@pytest.mark.parametrize("name", ["rows", "slots", "int4", "w8a8", "contexts"])
def test_each_stage_names_the_faults_that_it_detects(
    name: str, validated: Callable[[str], Record]
) -> None:
    """The slightest damage of the last layer, and what the stage is there for."""
    errors = [check for check in validated(name).checks if check["metric"] == "max_relative_error"]
    assert all(
        "head 0 of 4 times 1.01 before model.layers.3" in error["canary"]["mutation"]
        for error in errors
    )
    faults = {
        error["stage"]: [fault["fault"] for fault in error["faults"] if fault["noticed"]]
        for error in errors
        if "faults" in error
    }
    assert faults["chunked_prefill"] == ["positions off by one"]
    assert faults["padded_batch"] == ["a padded row seen"]
    assert faults["decode"] == ["positions off by one"]
    assert "ctx_len" not in faults  # shorter stages show them
    assert ("continuous_batching" in faults) == (name not in ("int4", "w8a8"))


def test_what_rounding_costs_is_measured(validated: Callable[[str], Record]) -> None:
    assert validated("rows").costs == {}
    costs = {name: validated(name).costs for name in ("int4", "blocks", "w8a8")}
    for entry in costs.values():
        weights, activations = entry["weights"], entry["activations"]
        assert weights["metric"] == activations["metric"] == "kl_divergence"
        assert weights["positions"] == SHAPE["ctx_len"] - 1
        assert 0 < weights["error"] < weights["mean"]
        assert weights["perplexity_ratio"] == pytest.approx(1, abs=0.5)
        assert activations["mean"] == pytest.approx(activations["expected"], rel=0.25)
    means = [costs[name]["weights"]["mean"] for name in ("blocks", "int4", "w8a8")]
    assert means == sorted(means, reverse=True)


def test_a_costly_rounding_is_reported(validated: Callable[[str], Record]) -> None:
    costs = validated("blocks").costs
    assert costs["weights"]["mean"] > 0.1
    (text,) = proof.warnings(costs, "llama")
    assert text.startswith("'llama': Rounding weights costs ")
    assert "--weights int8" in text
    assert [*proof.warnings({"activations": costs["activations"]}, "llama")] == []
    assert [*proof.warnings({}, "llama")] == []


def test_a_record_describes_its_proof_in_sentences(validated: Callable[[str], Record]) -> None:
    record = validated("w8a8")
    agrees, activations, weights = proof.sentences(record.checks, record.costs)
    assert agrees.startswith(
        "Computes Hugging Face's model (float32 rounded to w8a8): largest error "
    )
    for words in ("head 0 of 4 times 1.01", "a padded row seen", "positions off by one"):
        assert words in agrees
    assert activations.startswith("Rounding activations to int8 costs ")
    assert weights.startswith("Rounding weights costs ")
    assert "perplexity x " in weights
    wrong = [{**check, "passed": False} for check in record.checks]
    assert proof.sentences(wrong, {})[0].startswith("Does not compute Hugging Face's model")
    equal = [{**check, "followed": {"near": 1, "equal": 2}} for check in record.checks[:1]]
    assert any(
        "Keeps 2 times another expert or key" in sentence for sentence in proof.sentences(equal, {})
    )


def test_greedy_answers_are_reported(validated: Callable[[str], Record]) -> None:
    assert validated("rows").reported["greedy"] == {"generated": 16, "matched": 16}
    assert "greedy" not in validated("encoder").reported


# --- packages that are wrong ----------------------------------------------------------------------
def scale(folder: Path, name: str, factor: float) -> None:
    """Multiply one tensor of a package's weights, in place."""
    path = folder / "weights.safetensors"
    path.chmod(0o644)  # as a copy of a package of the store it is read-only
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        entry = json.loads(file.read(length))[name]
    start, stop = entry["data_offsets"]
    values = np.memmap(path, np.float32, "r+", 8 + length + start, (stop - start) // 4)
    values *= factor
    values.flush()


@pytest.mark.usefixtures("once")
@pytest.mark.parametrize(
    "tensor",
    [
        "model.layers.3.mlp.up_proj.weight",
        "model.norm.weight",
        "model.layers.0.self_attn.k_proj.weight",
    ],
)
def test_a_weight_five_percent_off_fails(
    built: dict[str, Package], models: Models, tmp_path: Path, tensor: str
) -> None:
    folder = Path(shutil.copytree(built["rows"].path, tmp_path / "package"))
    scale(folder, tensor, 1.05)
    record = validation.validate(Package.open(folder), models.llama, threads=1)
    assert not record.passed
    failed = {check["stage"] for check in record.checks if not check["passed"]}
    # The only key of a single token gets all the attention, whatever it is.
    assert failed >= {"chunked_prefill", "padded_batch", "decode"}
    assert record.failures[0].startswith("prefill: max_relative_error is ")


def _forget_start(call: Any) -> Any:
    """Let every call of several tokens begin at position 0."""

    def damaged(
        self: Decoder, pieces: Any, rows: range, seq_len: int, context: int, *more: int
    ) -> Any:
        moved = {row: type(piece)(piece.tokens, 0) for row, piece in pieces.items()}
        return call(self, moved if seq_len > 1 else pieces, rows, seq_len, context, *more)

    return damaged


def _mix_rows(call: Any) -> Any:
    """Let every call answer for the row before."""

    def damaged(
        self: Decoder, pieces: Any, rows: range, seq_len: int, context: int, *more: int
    ) -> Any:
        found = call(self, pieces, rows, seq_len, context, *more)
        turned = [*found.values()]
        return dict(zip(found, [*turned[-1:], *turned[:-1]], strict=True))

    return damaged


def _write_padding(call: Any) -> Any:
    """Let padding write over the newest token's state."""

    def damaged(
        self: Decoder, pieces: Any, rows: range, seq_len: int, context: int, *more: int
    ) -> Any:
        found = call(self, pieces, rows, seq_len, context, *more)
        for state in self.states.values():
            for row in rows:
                newest = pieces[row].start + len(pieces[row].tokens) - 1
                if len(pieces[row].tokens) < seq_len:
                    state[row, :, newest] = 1
        return found

    return damaged


def _keep_row(call: Any) -> Any:
    """Let a second request of a row see what the first one left: its state does not change any more."""
    recorded: set[int] = set()

    def damaged(
        self: Decoder, pieces: Any, rows: range, seq_len: int, context: int, *more: int
    ) -> Any:
        kept = {name: state.copy() for name, state in self.states.items()}
        found = call(self, pieces, rows, seq_len, context, *more)
        for row in rows:
            if pieces[row].start == 0 and row in recorded:
                for name, state in self.states.items():
                    state[row] = kept[name][row]
            recorded.add(row)
        return found

    return damaged


def _confuse_whole_context(call: Any) -> Any:
    """Let the program of the longest compute context, which no short prompt needs, answer for a token before."""

    def damaged(
        self: Decoder, pieces: Any, rows: range, seq_len: int, context: int, *more: int
    ) -> Any:
        if context == self.sizes.ctx_len:
            pieces = {
                row: type(piece)([*piece.tokens[:-1], 5], piece.start)
                for row, piece in pieces.items()
            }
        return call(self, pieces, rows, seq_len, context, *more)

    return damaged


@pytest.mark.usefixtures("once")
@pytest.mark.parametrize(
    ("damage", "shape", "stage"),
    [
        (_forget_start, "rows", "chunked_prefill"),
        (_mix_rows, "rows", "padded_batch"),
        (_write_padding, "rows", "padded_batch"),
        (_write_padding, "slots", "padded_batch"),
        (_keep_row, "rows", "continuous_batching"),
        (_keep_row, "slots", "continuous_batching"),
        (_confuse_whole_context, "contexts", "comp_ctx_lengths_40"),
    ],
)
def test_each_stage_notices_its_own_damage(
    built: dict[str, Package],
    models: Models,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[Any], Any],
    shape: str,
    stage: str,
) -> None:
    monkeypatch.setattr(Decoder, "_call", damage(Decoder._call))
    record = validation.validate(built[shape], source_of(models, shape), threads=1)
    failed = {check["stage"] for check in record.checks if not check["passed"]}
    assert stage in failed
    if damage is _forget_start:
        assert "prefill" not in failed
    if damage is _confuse_whole_context:
        assert failed == {stage, "ctx_len"}  # which needs all of it too


def test_nothing_checked_is_nothing_passed() -> None:
    record = Record(level="tiny", checks=[], reported={}, versions={}, sequences=[], arrays={})
    assert (record.passed, record.failures) == (False, [])


# --- the reference --------------------------------------------------------------------------------
def test_a_reference_that_does_not_run_is_an_error(
    built: dict[str, Package], models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_answers.sys, "executable", shutil.which("false"))
    monkeypatch.setattr(Reference, "run", RUN)
    with pytest.raises(ParityError, match=r"does not run: its process ended with 1.*--no-validate"):
        validation.validate(built["rows"], models.llama, threads=1)


def test_a_reference_without_all_its_weights_is_an_error(
    built: dict[str, Package], models: Models, tmp_path: Path
) -> None:
    """transformers would make up what a checkpoint does not hold."""
    folder = models.copy(models.llama, tmp_path / "checkpoint")
    edit_json(folder / "config.json", attention_bias=True)
    with pytest.raises(ParityError, match=r"The checkpoint has no \['model.layers.0"):
        validation.validate(built["rows"], folder, threads=1)


@pytest.fixture
def llama(models: Models) -> Any:
    return AutoModelForCausalLM.from_pretrained(models.tied, attn_implementation="eager").eval()


TOKENS = torch.arange(3, 23)[None]


@pytest.mark.parametrize("damage", HEADS, ids=lambda damage: damage.words)
def test_damaged_heads_change_the_answer_for_as_long_as_they_are(llama: Any, damage: Any) -> None:
    with torch.no_grad():
        right = llama(TOKENS).logits
        with damaged([llama], damage) as mutation:
            wrong = llama(TOKENS).logits
        assert torch.equal(llama(TOKENS).logits, right)
    layer = 3 if damage.in_last else 0
    assert mutation.endswith(f" before model.layers.{layer}.self_attn.o_proj")
    assert relative_errors(right[0].numpy(), wrong[0].numpy()).min() > 1e-4


def test_damage_goes_from_slight_to_gross(llama: Any) -> None:
    errors = []
    with torch.no_grad():
        right = llama(TOKENS).logits[0].numpy()
        for damage in HEADS[:4]:
            with damaged([llama], damage):
                errors.append(relative_errors(right, llama(TOKENS).logits[0].numpy()).max())
    assert errors == sorted(errors)
    assert errors[1] == pytest.approx(5 * errors[0], rel=0.1)


def test_other_sums_are_as_right(llama: Any) -> None:
    with torch.no_grad():
        right = llama(TOKENS).logits[0].numpy()
        with Arithmetic(halved=True):
            other = llama(TOKENS).logits[0].numpy()
    assert 0 < relative_errors(right, other).max() < 1e-4


def test_operators_of_one_type_get_the_widest() -> None:
    """Where a model's own code keeps to float32, and the rest of it computes in float64."""
    table, places = torch.randn(1, 2, 5, 5), torch.rand(1, 7, 1, 2, dtype=torch.float64)
    sample = partial(torch.nn.functional.grid_sample, align_corners=False)
    with pytest.raises(RuntimeError, match="Double"):
        sample(table, places)
    with Widest():
        assert torch.equal(sample(table, places), sample(table.double(), places))
        with pytest.raises(RuntimeError, match="size"):
            table.double() + torch.ones(3)


@pytest.mark.parametrize("gathered", [True, False], ids=["both uses", "one use"])
def test_of_tied_weights_the_rounded_uses_are_rounded(llama: Any, gathered: bool) -> None:
    matrix = RoundedMatrix(
        name="lm_head.weight",
        rows=257,
        columns=64,
        input_major=False,
        format=format_of("int4", 32),
        multiplied=True,
        gathered=gathered,
    )
    before = llama.lm_head.weight.clone()
    storages = round_weights(llama, [matrix])
    assert set(storages) == {llama.lm_head.weight.untyped_storage().data_ptr()}
    assert not torch.equal(llama.lm_head.weight, before)
    assert torch.equal(llama.model.embed_tokens.weight, before) != gathered
    step = (llama.lm_head.weight - before).abs().amax() / before.abs().amax()
    assert step < 0.1


def test_a_matrix_of_two_programs_is_rounded_once(llama: Any) -> None:
    format = Format(bits=4, block=32, zero_points=True, fitted=True)  # rounding twice moves values
    both = RoundedMatrix(
        name="lm_head.weight",
        rows=257,
        columns=64,
        input_major=False,
        format=format,
        multiplied=True,
        gathered=True,
    )
    expected = round_trip(llama.lm_head.weight.detach().numpy().copy(), format)
    assert not np.array_equal(round_trip(expected, format), expected)
    round_weights(llama, [both, replace(both, multiplied=False)])
    for weight in (llama.lm_head.weight, llama.model.embed_tokens.weight):
        assert np.array_equal(weight.detach().numpy(), expected)


@pytest.mark.parametrize("input_major", [False, True])
@pytest.mark.parametrize(
    ("name", "shape", "rounded"),
    [
        ("proj", (32, 32), slice(None)),
        ("proj", (3, 32, 32), slice(None)),
        ("proj.1", (3, 32, 32), slice(1, 2)),
        ("proj.32", (96, 32), slice(32, 64)),
    ],
    ids=["matrix", "stack", "one of a stack", "rows"],
)
def test_a_square_matrix_is_rounded_along_its_inputs(
    name: str, shape: tuple[int, ...], rounded: slice, input_major: bool
) -> None:
    """What is stored input-major does not show in the shape, as of GPT-OSS' experts."""
    model = torch.nn.Module()
    model.proj = torch.nn.Parameter(
        torch.randn(shape, generator=torch.Generator().manual_seed(0)), requires_grad=False
    )
    before, format = model.proj.data.clone(), format_of("int4", 32)
    round_weights(
        model,
        [
            RoundedMatrix(
                name=name,
                rows=32,
                columns=32,
                input_major=input_major,
                format=format,
                multiplied=True,
            )
        ],
    )
    for old, new in zip(
        before[rounded].split(32, -2), model.proj[rounded].split(32, -2), strict=True
    ):
        for matrix, left in zip(old.reshape(-1, 32, 32), new.reshape(-1, 32, 32), strict=True):
            expected = round_trip((matrix.T if input_major else matrix).numpy(), format)
            torch.testing.assert_close(
                left.T if input_major else left, torch.from_numpy(expected), rtol=0, atol=0
            )
    untouched = torch.ones(len(before), dtype=torch.bool)
    untouched[rounded] = False
    assert torch.equal(model.proj[untouched], before[untouched])


def test_a_package_lists_its_roundings(built: dict[str, Package]) -> None:
    assert built["rows"].programs[0].numerics == Numerics()
    found = built["blocks"].programs[0].numerics
    assert (found.int8_activations, {matrix.format.block for matrix in found.matrices}) == (
        True,
        {64},
    )
    found = built["int4"].programs[0].numerics
    by_name = {matrix.name: matrix for matrix in found.matrices}
    assert found.int8_activations
    assert by_name["model.layers.3.mlp.down_proj.weight"] == RoundedMatrix(
        name="model.layers.3.mlp.down_proj.weight",
        rows=64,
        columns=96,
        input_major=False,
        format=format_of("int4"),
        multiplied=True,
        gathered=False,
    )
    assert by_name["model.embed_tokens.weight"].gathered
    assert len(found.matrices) == 4 * 7 + 2


# --- RoPE that follows the length -----------------------------------------------------------------
def test_a_base_that_follows_the_length_is_noticed(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan refuses such a context; were it not to, the text to the end of it would show."""
    scaling = {"rope_type": "dynamic", "rope_theta": 1000.0, "factor": 4.0}
    folder = models.copy(models.llama, tmp_path / "checkpoint")
    edit_json(folder / "config.json", max_position_embeddings=32, rope_parameters=scaling)
    with pytest.raises(PlanError, match="has 32 positions, and beyond them its RoPE"):
        package(folder, **SHAPE, batch_size=1)
    monkeypatch.setattr(choosing_shape, "_positions", lambda *_: None)
    record = validation.validate(package(folder, **SHAPE, batch_size=1), folder, threads=1)
    failed = {check["stage"] for check in record.checks if not check["passed"]}
    assert "ctx_len" in failed


@pytest.mark.parametrize("factors", ["long", "short"])
def test_longrope_takes_one_set_of_factors_for_every_text(tmp_path: Path, factors: str) -> None:
    recipe = find_recipe("phi3")
    (longrope,) = (one for one in recipe.tiny if one.name == "longrope")
    folder = tiny_models.make(recipe, longrope, tmp_path / "checkpoint")
    made = package(folder, **SHAPE, batch_size=1, rope_factors=factors)
    record = validation.validate(made, folder, threads=1)
    assert record.failures == []
    numbers = [check for check in record.checks if check["stage"] not in EXACT]
    assert {json.dumps(check["against"]["settings"]) for check in numbers} == {
        json.dumps({"rope_factors": factors})
    }
    assert record.reported["rope_factors"].startswith(f"longrope's {factors} factors rotate every")
    assert problems({**made.manifest, "validation": record.checks, "validated": "checkpoint"}) == []


def test_a_text_by_itself_may_choose_another_of_equal_scores() -> None:
    """Nothing is told then, and yet the answer is not that of the longer text."""
    alone = np.zeros((1, 3), np.float32)
    answers: Any = SimpleNamespace(run_prefix=lambda *_: alone)
    choices: Any = SimpleNamespace(
        differing=lambda: [4],
        runs={4: 1},
        length=lambda run: 2,
        following=lambda run: None,
        followed={4: [0, 0]},
        excused=True,
    )
    assert reference_process._follow_package(answers, choices)["1.4"] is alone


# --- the judge ------------------------------------------------------------------------------------
def judge(**changes: Any) -> Judge:
    values: dict[str, Any] = {
        "level": "tiny",
        "tolerance": Tolerance(factor=8, least=1e-5, most=1e-2),
        "floor": Floor(error=1e-4, divergence=1e-9),
        "against": {"dtype": "float32"},
        "comparison": comparison.LOGITS,
    }
    return Judge(**{**values, **changes})


LOGITS = np.array([[0, 1, 2, 4], [3, 0, 1, 2.9998]], np.float32)


def verdicts(got: Any, canary: Any = -LOGITS, **changes: Any) -> dict[str, Any]:
    damaged = Canary("heads swapped", np.float32(canary))
    checks = judge(**changes).judge("decode", LOGITS, np.float32(got), damaged)
    return {check["metric"]: check for check in checks}


def test_distances() -> None:
    moved = LOGITS + np.float32([[0, 0, 0, 0.01], [0, 0, 0, 0]])
    errors = relative_errors(LOGITS, moved)
    assert errors == pytest.approx([0.01 / LOGITS[0].std(), 0], rel=1e-4)
    shifted = LOGITS + 7
    assert divergences(LOGITS, shifted) == pytest.approx([0, 0], abs=1e-12)
    p = np.exp(LOGITS[0]) / np.exp(LOGITS[0]).sum()
    q = np.exp(moved[0]) / np.exp(moved[0]).sum()
    assert divergences(LOGITS, moved)[0] == pytest.approx((p * np.log(p / q)).sum(), rel=1e-3)
    cosine = (LOGITS[0] @ moved[0]) / np.linalg.norm(LOGITS[0]) / np.linalg.norm(moved[0])
    assert cosine_distances(LOGITS, moved)[0] == pytest.approx(1 - cosine, abs=1e-7)
    floor = measure_floor([(LOGITS, LOGITS), (LOGITS, moved)], comparison.LOGITS)
    assert floor.error == pytest.approx(errors[0])


def test_a_near_tie_is_not_a_disagreement() -> None:
    """Noise may turn 3 and 2.9998 around, but not 2 and 4."""
    turned = LOGITS.copy()
    turned[1, 3] = 3.0001
    found = verdicts(turned)
    assert all(check["passed"] for check in found.values())
    assert found["top1_agreement"]["note"] == "1 of 2 positions are too close to call"
    turned[0, 2] = 4.1
    found = verdicts(turned)
    assert (found["top1_agreement"]["value"], found["top1_agreement"]["passed"]) == (0.0, False)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_fails(value: float) -> None:
    broken = LOGITS.copy()
    broken[0, 1] = value
    with np.errstate(invalid="ignore"):
        found = verdicts(broken)
    assert found["max_relative_error"]["value"] is None
    assert not found["max_relative_error"]["passed"]


def test_thresholds_are_bounded() -> None:
    bounds = TOLERANCES["fp32"]
    for error, value, decided_by in (
        (0, bounds.least, "least"),
        (9, bounds.most, "most"),
        (np.nan, bounds.least, "least"),
        (1e-4, pytest.approx(8e-4), "noise-floor"),
    ):
        found = judge(floor=Floor(error=error, divergence=error)).allowed_error
        assert (found.value, found.decided_by) == (value, decided_by)
    assert judge().allowed_divergence.value == pytest.approx(64e-9)
    assert judge().decides
    assert not judge(floor=Floor(error=9, divergence=9)).decides


def test_a_comparison_that_noise_exceeds_is_left_out_beside_another() -> None:
    judges = {"rounded": judge(floor=Floor(error=9, divergence=9)), "device": judge()}
    reference = Answers(about={"choices": {"made": 0}}, arrays={})
    assert [*validation._deciding(judges, reference)] == ["device"]
    alone = {"rounded": judges["rounded"]}
    assert [*validation._deciding(alone, reference)] == ["rounded"]
    assert [*validation._deciding({**judges, "rounded": judge()}, reference)] == [*judges]
    chosen = Answers(about={"choices": {"made": 3}}, arrays={})
    assert [*validation._deciding(judges, chosen)] == ["rounded"]


def test_agreement_over_no_clear_position_is_no_check() -> None:
    found = verdicts(LOGITS, floor=Floor(error=9, divergence=1e-9))
    assert "top1_agreement" not in found
    assert "too close to call" in found["max_relative_error"]["note"]
    assert verdicts(LOGITS)["top1_agreement"]["positions"] == 1


def test_a_canary_is_quoted_only_where_it_was_caught() -> None:
    found = verdicts(LOGITS, canary=LOGITS + np.float32([1e-2, 0, 0, 0]))
    assert found["max_relative_error"]["canary"]["failed"]
    assert "canary" not in found["top1_agreement"]
    unnoticed = judge().uncaught("decode", LOGITS, Canary("heads swapped", LOGITS))
    assert (unnoticed["passed"], unnoticed["value"]) == (False, 0.0)
    assert "proves nothing" in unnoticed["note"]


@pytest.mark.parametrize("name", ["rows", "w8a8"])
def test_a_gate_that_cannot_fail_does_not_pass(
    built: dict[str, Package],
    models: Models,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """As if heads did not matter: the answers of every canary are the right ones."""
    monkeypatch.setattr(Reference, "run", _harmless(Reference.run))
    record = validation.validate(built[name], models.llama, threads=1)
    assert {check["metric"] for check in record.checks if not check["passed"]} == {
        "canary_relative_error"
    }
    assert not record.passed


def _harmless(request: Any) -> Any:
    def requested(*arguments: Any, **arrays: Any) -> Answers:
        found = request(*arguments, **arrays)
        right = "rounded" if found.has("rounded") else "reference"
        same = {
            name: found.arrays[f"{right}.{name.rpartition('.')[2]}"]
            for name in found.arrays
            if name.startswith("canary.")
        }
        return Answers(about=found.about, arrays={**found.arrays, **same})

    return requested


# --- the cases ------------------------------------------------------------------------------------


@pytest.mark.parametrize("window_rows", [0, 512])
def test_one_text_is_read_to_the_end_of_the_context(window_rows: int) -> None:
    sizes = DecoderSizes(prefill_seq_len=128, ctx_len=1024, batch_size=1, full_batch_size=None)
    stages = {stage.name: stage for stage in cases.decoder_stages(sizes, window_rows=window_rows)}
    names = ["chunked_prefill", *(["window"] if window_rows else []), "ctx_len"]
    assert [stages[name].after for name in names] == ["prefill", *names[:-1]]
    longest = stages["prefill"].calls[-1]
    spans = [span for name in names for call in stages[name].calls for span in call.spans]
    spans = [*longest.spans, *spans]
    assert [span.start for span in spans[1:]] == [span.stop for span in spans[:-1]]
    assert (spans[0].start, spans[-1].stop) == (0, 1024)
    assert {call.kind for call in stages["ctx_len"].calls} == {"prefill", "decode"}


def test_rounding_is_measured_in_the_shortest_stages_with_enough_questions() -> None:
    positions = [[*range(0, 100, 10), 900], [5, 6, 7, 8, 9, 11]]
    stages = {
        "long": [(0, 10, 3)],
        "middle": [(0, index, 1) for index in range(10)],
        "short": [(1, index, 2) for index in range(6)],
        "none": [],
    }
    assert cases.short_stages(stages, positions) == {"short": 12, "middle": 91}
    del stages["short"]
    assert cases.short_stages(stages, positions) == {"middle": 91, "long": 901}


@given(
    prefill_seq_len=st.integers(1, 300),
    ctx_len=st.integers(2, 700),
    rows=st.integers(1, 20),
    slots=st.booleans(),
    contexts=st.tuples(*[st.sets(st.integers(2, 700), max_size=3)] * 2),
    window_rows=st.integers(0, 700),
    longest=st.integers(512, 600),
    drafted=st.sets(st.integers(1, 40)),
)
def test_every_case_fits_the_package(
    prefill_seq_len: int,
    ctx_len: int,
    rows: int,
    slots: bool,
    contexts: tuple[set[int], set[int]],
    window_rows: int,
    longest: int,
    drafted: set[int],
) -> None:
    width = min(prefill_seq_len, ctx_len)
    prefills, decodes = (
        compute_contexts.fit(sorted(found), least, ctx_len) if any(contexts) else ()
        for found, least in zip(contexts, (max(2, width), 2), strict=True)
    )
    sizes = DecoderSizes(
        prefill_seq_len=width,
        ctx_len=ctx_len,
        batch_size=1 if slots else rows,
        full_batch_size=rows if slots else None,
        comp_ctx_lengths_prefill=prefills,
        comp_ctx_lengths_decode=decodes,
        num_speculative_tokens=tuple(sorted(count for count in drafted if count <= ctx_len - 2)),
    )
    stages = cases.decoder_stages(sizes, window_rows=window_rows, longest=longest)
    lengths = cases.sequence_lengths(stages)
    names = [stage.name for stage in stages]
    assert {"prefill", "padded_batch", "decode"} <= set(names)
    ends = {
        stage.name: max(span.stop for call in stage.calls for span in call.spans)
        for stage in stages
    }
    last = "ctx_len" if ctx_len <= longest else f"first_{longest}"
    assert ends[last] == min(ctx_len, longest)
    assert ("window" in names) == (0 < window_rows < ctx_len)
    assert ends.get("window", ctx_len) > window_rows or window_rows >= ctx_len
    assert ("continuous_batching" in names) == (rows > 1 and ctx_len >= 4)
    assert ("every_slot" in names) == (rows > 4)
    assert {span.row for stage in stages for call in stage.calls for span in call.spans} == {
        *range(rows)
    }
    at: dict[int, tuple[int, int]] = {}
    for call in (call for stage in stages for call in stage.calls):
        limits = {"prefill": sizes.prefill_seq_len, "decode": 1, "verify": ctx_len}
        limit = limits[call.kind]
        assert len({span.row for span in call.spans}) == len(call.spans)
        for span in call.spans:
            assert 0 <= span.row < sizes.rows
            assert 0 < span.stop - span.start <= limit
            assert span.stop <= min(ctx_len, lengths[span.sequence])
            assert span.start == 0 or at[span.row] == (span.sequence, span.start)
            assert len(span.answered) == (span.stop - span.start if call.kind == "verify" else 1)
            at[span.row] = (span.sequence, span.stop)
    before = {stage.name: names[max(0, place - 1)] for place, stage in enumerate(stages)}
    assert all(stage.after in ("", before[stage.name]) for stage in stages)
    for count in sizes.num_speculative_tokens:
        (stage,) = [one for one in stages if one.name == f"num_speculative_tokens_{count}"]
        widths = [len(span.answered) for call in stage.calls for span in call.spans]
        assert max(widths) == count + 1
    tried: dict[str, set[int]] = {"prefill": set(), "decode": set()}
    for call in (call for stage in stages for call in stage.calls if call.kind != "verify"):
        least = max(call.context, *(span.stop for span in call.spans))
        given_ = prefills if call.kind == "prefill" else decodes
        tried[call.kind] |= {sizes.covering(given_, least)} & {*given_}
    assert tried == {"prefill": {*prefills}, "decode": {*decodes}}


@given(seq_lens=st.sets(st.integers(1, 200), min_size=1, max_size=4), batch_size=st.integers(1, 9))
def test_every_encoder_case_fits_the_package(seq_lens: set[int], batch_size: int) -> None:
    sizes = EncoderSizes(batch_size=batch_size, seq_lens=tuple(sorted(seq_lens)))
    stages, lengths = cases.encoder_stages(sizes)
    for call in (call for stage in stages for call in stage.calls):
        assert 0 < len(call.sequences) <= batch_size
        assert all(0 < lengths[number] <= call.seq_len for number in call.sequences)
    names = [f"seq_len_{seq_len}" for seq_len in sorted(seq_lens)] + ["padded_batch"]
    assert [stage.name for stage in stages] == names + ["whole_batch"] * (batch_size > 4)
    widest = max(len(call.sequences) for stage in stages for call in stage.calls)
    assert widest == batch_size or batch_size <= 4


def test_sequences_are_the_same_every_time(models: Models) -> None:
    lengths = [1, 30, 700]
    tokenizer = Tokenizer(models.llama)
    drawn = sample_texts.draw(lengths, tokenizer, 257)
    assert [len(sequence) for sequence in drawn] == lengths
    assert drawn == sample_texts.draw(lengths, tokenizer, 257)
    assert drawn[1][0] == tokenizer.token_id("<s>")
    assert drawn[1] != drawn[2][:30]
    random = sample_texts.draw(lengths, None, 11)
    assert random[1][:8] == [1, 9, 8, 2, 5, 4, 7, 8]
    (whole,) = sample_texts.draw([24], Tokenizer(models.bert), 257, whole=True)
    assert (len(whole), whole[-1]) == (24, Tokenizer(models.bert).token_id("</s>"))


@pytest.mark.parametrize("whole", [False, True])
def test_a_tokenizer_of_other_texts_gets_random_tokens(tmp_path: Path, whole: bool) -> None:
    made = tokenizers.Tokenizer(tokenizers.models.BPE({"\N{RUNIC LETTER E}": 0}, []))
    made.save(str(tmp_path / "tokenizer.json"))
    (drawn,) = sample_texts.draw([24], Tokenizer(tmp_path), 11, whole=whole)
    assert len(drawn) == 24
    assert len({*drawn}) > 5


# --- the record -----------------------------------------------------------------------------------
def test_a_record_is_written_once_for_each_kind_of_package(
    built: dict[str, Package], validated: Callable[[str], Record], tmp_path: Path
) -> None:
    first = records.write(built["rows"], validated("rows"), tmp_path)
    assert first == tmp_path / "local" / "llama.json"
    before = first.read_bytes()
    assert records.write(built["rows"], validated("rows"), tmp_path).read_bytes() == before
    records.write(built["int4"], validated("int4"), tmp_path)
    content = json.loads(first.read_text())
    assert [entry["weights"] for entry in content["records"]] == ["fp32", "int4"]
    entry = content["records"][0]
    assert (entry["verdict"], entry["revision"], entry["level"]) == ("validated", None, "tiny")
    assert entry["plan"] == built["rows"].manifest["spec"]
    assert entry["versions"].keys() == {"qeff_zoo", "onnxruntime", "torch", "transformers"}
    (last,) = [row for row in entry["reference"] if row["position"] == 7]
    assert len(last["tokens"]) == len(last["logits"]) == len(last["package"]) == 10
    assert last["logits"] == sorted(last["logits"], reverse=True)
    assert entry["prompts"] == validated("rows").sequences

    manifest = json.loads(json.dumps(dict(built["rows"].manifest)))
    manifest["name"], manifest["spec"]["sources"]["model"]["revision"] = "org/name", REVISION
    hub = records.write(Package(built["rows"].path, manifest), validated("rows"), tmp_path)
    assert hub == tmp_path / "org" / "name.json"
    assert json.loads(hub.read_text())["records"][0]["revision"] == REVISION


@pytest.mark.parametrize("name", ["rows", "encoder"])
def test_evidence_is_kept(validated: Callable[[str], Record], tmp_path: Path, name: str) -> None:
    path = validated(name).save_evidence(tmp_path)
    assert path == tmp_path / "evidence" / "validation.npz"
    before = path.read_bytes()
    assert validated(name).save_evidence(tmp_path).read_bytes() == before
    with np.load(path, allow_pickle=False) as kept:
        for stage in STAGES[name]:
            assert kept[f"{stage}.got"].shape == kept[f"{stage}.expected"].shape
            assert len(kept[f"{stage}.positions"]) == len(kept[f"{stage}.relative_errors"])
            np.testing.assert_allclose(kept[f"{stage}.got"], kept[f"{stage}.expected"], atol=1e-4)


def test_a_damaged_last_layer_begins_where_the_right_model_was(models: Models) -> None:
    model = AutoModelForCausalLM.from_pretrained(models.llama, attn_implementation="eager")
    sequences = [[*range(1, 30)], [*range(5, 20)]]
    request = {"sequences": sequences, "positions": [[3, 20, 28], [14]]}
    with torch.no_grad():
        answers = DecoderReference(model, request, {})
        resuming = Resuming(model, answers)
        with resuming.recording():
            right = answers.alone()
        for damage in HEADS:
            words, found = resuming.beginnings(damage, [0, 1], 25, right)
            with damaged([model], damage) as expected_words:
                expected = answers.beginnings([0, 1], 25)
            assert words == expected_words
            assert all(np.array_equal(found[number], expected[number]) for number in (0, 1))
        calls: list[Any] = []
        model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
        resuming.beginnings(HEADS[0], [0, 1], 25, right)
        assert not calls  # left out
        resuming.beginnings(SWAPPED, [0, 1], 25, right)
        assert len(calls) == 2  # it damages the first layer
