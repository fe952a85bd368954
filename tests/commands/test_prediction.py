# SPDX-License-Identifier: Apache-2.0
"""Predictions of the trained tiny model and of others: known figures, the reference's arithmetic, the command."""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkout import TINY_LLAMA

from qeff_zoo import cli, pipeline, registry
from qeff_zoo.plan.request import Request
from qeff_zoo.prediction import search as searching
from qeff_zoo.prediction import subject as subjects
from qeff_zoo.prediction.measures import Figures, Tally
from qeff_zoo.prediction.predict import Prediction, predict
from qeff_zoo.prediction.subject import DEVICES, FLOAT32, Subject
from qeff_zoo.store import Store
from qeff_zoo.targets.base import OpenOptions
from qeff_zoo.targets.qnn_htp.session import open_program
from qeff_zoo.terminal.progress import Silent, Stopwatch
from qeff_zoo.validation import tiny_models
from qeff_zoo.weights import writing

pytestmark = pytest.mark.turns(3)

README = TINY_LLAMA / "README.md"
TOKENS = 97
HTP = "fp16 of HTP"
BOTH = "fp16 + mxfp6 + mxint8 KV"


def ignore(_: int) -> None:
    """Take no notice of progress."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make the store one of this module's own."""
    folder = tmp_path_factory.mktemp("prediction")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QEFF_HOME", str(folder))
        yield folder


@pytest.fixture(scope="module")
def subject(home: Path) -> Iterator[Subject]:
    """Open the trained model on a few tokens, in calls of 32."""
    with subjects.opened(
        str(TINY_LLAMA),
        text=README.read_text(encoding="utf-8"),
        tokens=TOKENS,
        request=Request(prefill_seq_len=32),
        watch=Stopwatch(Silent()),
    ) as (found, _):
        yield found


@pytest.fixture(scope="module")
def in_chunks(subject: Subject) -> Figures:
    """Figures of the subject with both matrices and states rounded."""
    return subject.on_device("x", DEVICES[BOTH], ignore)


@pytest.fixture(scope="module")
def printed(home: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """Run the command for an encoder; give its answer and its plot."""
    folder = tmp_path_factory.mktemp("printed")
    recipe = registry.find_recipe("bert")
    bert, plot = tiny_models.make(recipe, recipe.tiny[0], folder / "bert"), folder / "distances.png"
    with pytest.MonkeyPatch.context() as patch:
        lines: list[Any] = []
        patch.setattr("qeff_zoo.cli.predicting.print_json", lines.append)
        assert cli.main(["predict", str(bert), "--json", "--plot", str(plot), "-q"]) == 0
    return lines[0], plot


# --- figures --------------------------------------------------------------------------------------

#: Mean KL at least and at most, largest relative error at most: around what 400 tokens have.
EXPECTED = {
    FLOAT32: (0, 1e-9, 1e-4),
    "fp16": (1e-6, 2e-5, 0.02),
    HTP: (1e-5, 1e-4, 0.04),
    "fp16 + mxfp6": (1e-3, 0.02, 1.0),
    "fp16 + mxint8 KV": (1e-4, 1e-3, 0.2),
    BOTH: (1e-3, 0.02, 1.0),
    "int8": (1e-4, 3e-3, 0.3),
    "int4": (0.02, 0.2, 2.0),
    "w8a8": (2e-4, 6e-3, 0.4),
}


def assert_as_measured(found: Figures) -> None:
    least, most, error = EXPECTED[found.numerics]
    assert least <= found.mean_distance <= most, found.numerics
    assert found.max_relative_error <= error, found.numerics
    assert found.answers == TOKENS - 1


@pytest.mark.full
def test_figures_are_those_that_were_measured(home: Path) -> None:
    found = predict(str(TINY_LLAMA), text=README.read_text(encoding="utf-8"), tokens=TOKENS)
    rows = {row.numerics: row for row in found.rows}

    assert list(rows) == list(EXPECTED)
    for row in found.rows:
        assert_as_measured(row)
    assert rows[FLOAT32].ratio == pytest.approx(1, abs=1e-5)
    assert rows["fp16"].ratio == pytest.approx(1, abs=2e-3)
    assert rows["fp16 + mxfp6"].ratio == pytest.approx(1, abs=0.05)
    assert rows["fp16"].verdict == "good"


def test_figures_of_integers_are_those_that_were_measured(subject: Subject) -> None:
    assert_as_measured(subject.in_float32(ignore))
    assert_as_measured(subject.in_integers("w8a8", Store(), ignore))


def test_int4_is_rounded_as_by_a_build(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices of the vocabulary to int8, and the others by the importance of their columns."""
    write, rounded = writing.write, dict[str, Any]()

    def noting(layout: Any, *arguments: Any, importance: Any) -> Any:
        bits = {name: slot.format.bits for name, slot in layout.slots.items()}
        rounded.update(bits=bits, importance=importance)
        return write(layout, *arguments, importance=importance)

    monkeypatch.setattr(writing, "write", noting)
    assert_as_measured(subject.in_integers("int4", Store(), ignore))
    bits = rounded["bits"]
    assert {bit for name, bit in bits.items() if "embed" in name or "lm_head" in name} == {8}
    assert {*rounded["importance"]} == {name for name, bit in bits.items() if bit == 4}
    assert rounded["importance"]


@pytest.mark.full
def test_errors_of_htp_are_those_of_its_simulator(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subjects.opened(
        str(TINY_LLAMA),
        text=README.read_text(encoding="utf-8"),
        tokens=25,
        watch=Stopwatch(Silent()),
    ) as (found, store):
        predicted = found.on_device(HTP, DEVICES[HTP], ignore)
        sizes = Request(target="qnn-htp", ctx_len=64, prefill_seq_len=8)
        package = pipeline.build(str(TINY_LLAMA), sizes, validate=False, store=store).package
        monkeypatch.setattr(found, "width", 1)  # as it generates: every call answers for its token
        simulated = found.compare(
            HTP, open_program(package, "decoder", OpenOptions(threads=1)), ignore
        )

    assert predicted.answers == simulated.answers == 24
    assert 0.5 <= predicted.max_relative_error / simulated.max_relative_error <= 2
    assert 0.5 <= (predicted.mean_distance / simulated.mean_distance) ** 0.5 <= 2


def test_the_prediction_lists_its_assumptions(printed: tuple[dict[str, Any], Path]) -> None:
    answer, plot = printed

    assert "mean cosine distance <= 0.001" in answer["thresholds"]
    assert "saturating at 65504" in answer["assumed"]
    assert "search" not in answer
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_hugging_face_in_the_same_numerics_is_nearer_than_in_float32(
    subject: Subject, in_chunks: Figures
) -> None:
    """What sets a prediction apart from float32 is rounding, and the reference rounds alike."""
    numerics = DEVICES[BOTH]
    in_float32 = subject._expected
    try:
        subject._expected = subject.reference(ignore, numerics)
        nearer = subject.on_device("x", numerics, ignore)
    finally:
        subject._expected = in_float32

    # A value near the middle between two of int8 may go to either.
    assert nearer.mean_distance < in_chunks.mean_distance / 10


def test_a_text_is_predicted_alike_in_calls_of_any_width(
    subject: Subject, in_chunks: Figures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "width", 1)

    by_token = subject.on_device("x", DEVICES[BOTH], ignore)

    # Sums in another order, and then roundings to the other side.
    assert by_token.mean_distance == pytest.approx(in_chunks.mean_distance, rel=0.1)
    assert by_token.perplexity == pytest.approx(in_chunks.perplexity, rel=2e-3)


def test_texts_longer_than_the_context_are_cut_into_windows(home: Path) -> None:
    with subjects.opened(
        str(TINY_LLAMA),
        tokens=60,
        request=Request(ctx_len=32, prefill_seq_len=10),
        watch=Stopwatch(Silent()),
    ) as (found, _):
        figures = found.in_float32(ignore)

        assert len(found.texts.sequences) > 1
        assert figures.answers == 59
        assert figures.mean_distance < 1e-9


# --- what is kept -----------------------------------------------------------------------------------


def test_all_weights_may_be_kept(subject: Subject) -> None:
    kept = [
        subject.on_device("x", replace(DEVICES[name], keep=("*",)), ignore)
        for name in ("fp16", "fp16 + mxfp6")
    ]

    assert asdict(kept[0]) == asdict(kept[1])
    assert kept[0].mean_distance < subject.on_device("x", DEVICES["fp16"], ignore).mean_distance
    assert subject.matrices(replace(DEVICES[BOTH], keep=("*",))) == ()


@pytest.mark.full
def test_a_search_ranks_layers_and_spares_the_fewest(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = ("model.layers.[3-5].*",)
    most = subject.on_device("x", replace(DEVICES[BOTH], keep=kept), ignore).mean_distance
    monkeypatch.setattr("qeff_zoo.prediction.measures.GOOD_KL", most * 0.7)
    monkeypatch.setattr("qeff_zoo.prediction.measures.GOOD_TOP1", 0.5)

    found = searching.search(subject, kept, Stopwatch(Silent()))

    assert set(found.costs) == {"lm_head.weight", *(f"model.layers.{n}.*" for n in range(3))}
    assert list(found.costs.values()) == sorted(found.costs.values(), reverse=True)
    assert 0 < len(found.keep) < 4
    assert found.keep == tuple(found.costs)[: len(found.keep)]
    assert (found.without.verdict, found.figures.verdict) == ("fair", "good")


def test_nothing_is_spared_where_all_is_well(subject: Subject) -> None:
    found = searching.search(subject, ("lm_head.*", "model.layers.[1-5].*"), Stopwatch(Silent()))

    assert list(found.costs) == ["model.layers.0.*"]
    assert found.keep == ()
    assert found.without == found.figures


# --- other models -----------------------------------------------------------------------------------


def test_embeddings_are_compared_by_their_cosine(printed: tuple[dict[str, Any], Path]) -> None:
    rows = {row["numerics"]: row for row in printed[0]["rows"]}

    assert list(rows) == [
        FLOAT32,
        "fp16",
        HTP,
        "fp16 + mxfp6",
        "int8",
        "int4",
        "w8a8",
    ]  # there are no states
    distances = {name: row["mean_distance"] for name, row in rows.items()}
    assert distances[FLOAT32] < 1e-10
    assert distances[FLOAT32] < distances["fp16"] < 1e-4
    assert distances["fp16"] < distances["fp16 + mxfp6"]
    assert rows["fp16"]["top1"] is rows["fp16"]["perplexity"] is None


def test_recurrences_are_rounded_within(home: Path, tmp_path: Path) -> None:
    recipe = registry.find_recipe("mamba2")
    folder = tiny_models.make(recipe, recipe.tiny[0], tmp_path / "mamba2")

    with subjects.opened(str(folder), tokens=24, watch=Stopwatch(Silent())) as (found, _):
        assert list(found.numerics) == ["fp16", HTP, "fp16 + mxfp6"]  # no keys and values
        assert found.in_float32(ignore).mean_distance < 1e-9
        assert 1e-8 < found.on_device("x", DEVICES["fp16"], ignore).mean_distance < 1e-2


# --- what is said -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("distance", "top1", "verdict"),
    [
        (0.02, 0.90, "good"),
        (0.021, 0.99, "fair"),
        (0.001, 0.89, "fair"),
        (0.11, 0.99, "poor"),
        (0.001, 0.79, "poor"),
        (float("nan"), 0.99, "poor"),
        (1e-3, None, "good"),
        (5e-3, None, "fair"),
        (2e-2, None, "poor"),
    ],
)
def test_verdicts(distance: float, top1: float | None, verdict: str) -> None:
    figures = Figures(
        numerics="x",
        answers=1,
        mean_distance=distance,
        max_distance=0,
        max_relative_error=0,
        top1=top1,
    )

    assert figures.verdict == verdict


def test_a_tally_sums_up_answers() -> None:
    expected = np.log(np.array([[0.5, 0.5], [0.25, 0.75]]))
    got = np.log(np.array([[0.5, 0.5], [0.75, 0.25]]))
    tally = Tally("x")
    tally.add(expected[:1], got[:1], [0])
    tally.add(expected[1:], got[1:], [1])

    figures = tally.figures()

    assert (figures.answers, figures.top1) == (2, 0.5)
    assert figures.mean_distance == pytest.approx(np.log(3) / 4)
    assert figures.perplexity == pytest.approx(8**0.5)
    assert figures.ratio == pytest.approx(3**0.5)


def test_the_table_is_printed(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Figures(
        numerics="fp16", answers=3, mean_distance=0.5, max_distance=1.0, max_relative_error=2.0,
        top1=0.75, perplexity=20.0, ratio=1.25,
    )  # fmt: skip
    spared = searching.Search(
        name="m",
        costs={"model.layers.1.*": 0.5},
        keep=("model.layers.1.*",),
        figures=row,
        without=row,
    )
    requested: dict[str, Any] = {}

    def answer(model: str, **given: Any) -> Prediction:
        requested.update(given)
        return Prediction(
            name="m", task="text-generation", tokens=4, keep=(), rows=[row], spared=spared
        )

    monkeypatch.setattr("qeff_zoo.prediction.predict.predict", answer)

    options = ["--ctx-len", "64", "--keep-precision", "a.*", "--search", "--text", str(README)]
    assert cli.main(["predict", "m", *options]) == 0

    printed_text = capsys.readouterr().out
    assert requested["keep"] == ("a.*",)
    assert requested["text"] == README.read_text(encoding="utf-8")
    assert requested["search"]
    assert requested["request"].ctx_len == 64
    assert "0.5" in printed_text
    assert "Good: mean KL <= 0.02" in printed_text
    assert "75.0%" in printed_text
    assert "poor" in printed_text
    assert "It does not do well even with all of them spared" in printed_text
    assert "--keep-precision 'model.layers.1.*'" in printed_text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tokens", "1"], "Cannot predict 1 tokens; expected at least 2"),
        (["--text", "absent.txt"], "Cannot read 'absent.txt'"),
        (["--plot", "absent/x.png"], "Cannot draw 'absent/x.png'"),
        (["--task", "text-classification"], "text-classification"),
        (["--keep-precision", "modell.*"], "'modell.*' names no weight of 'tiny-llama'"),
    ],
)
def test_bad_requests_are_refused(
    options: list[str], message: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["predict", str(TINY_LLAMA), *options]) == 1

    assert message in capsys.readouterr().err


def test_a_text_without_tokens_is_refused(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.txt").write_text("")

    assert cli.main(["predict", str(TINY_LLAMA), "--text", str(tmp_path / "empty.txt")]) == 1

    assert "is too short; expected at least two tokens" in capsys.readouterr().err


def test_answers_are_json(printed: tuple[dict[str, Any], Path]) -> None:
    assert json.loads(json.dumps(printed[0])) == printed[0]
