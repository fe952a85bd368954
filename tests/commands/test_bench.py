# SPDX-License-Identifier: Apache-2.0
"""Measuring packages: which cases, what is counted, what is refused. Never how long anything took."""

import json
import shutil
import struct
import subprocess
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest

import qeff_zoo
from qeff_zoo import bench, cli
from qeff_zoo.bench import case as bench_case
from qeff_zoo.bench import plots
from qeff_zoo.errors import GenerationError
from qeff_zoo.package import Package
from qeff_zoo.terminal import progress

pytestmark = pytest.mark.turns(2)

CONTEXT = 48  # of all packages here
FIGURES = [
    "batch_size", "prompt_len", "generation_len", "threads", "draft", "images", "audio",
    "ttft_s", "encode_s", "image_tokens", "audio_tokens", "prefill_tokens_per_s",
    "decode_tokens_per_s", "e2e_tokens_per_s", "peak_rss_bytes", "drafted_tokens", "accepted_tokens",
]  # fmt: skip


def case(**changes: Any) -> bench.Case:
    """Give a small case."""
    sizes = {"batch_size": 1, "prompt_len": 5, "generation_len": 3, "threads": 1}
    return bench.Case(**{**sizes, **changes})


def figures(**changes: Any) -> bench.Figures:
    """Give figures nobody measured."""
    rates = {"prefill_tokens_per_s": 20.0, "decode_tokens_per_s": 8.0, "e2e_tokens_per_s": 6.0}
    rates |= {"drafted_tokens": 0, "accepted_tokens": 0, "encode_s": None, "image_tokens": 0}
    rates |= {"audio_tokens": 0}
    return bench.Figures(
        **{**asdict(case()), "ttft_s": 0.5, **rates, "peak_rss_bytes": 1 << 20, **changes}
    )


# --- cases ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "choices", "expected"),
    [
        ("one row", {}, [(1, 24, 24)]),
        ("rows", {}, [(1, 24, 24), (3, 24, 24)]),
        ("slots", {}, [(1, 24, 24), (2, 24, 24)]),
        ("rows", {"generation_len": 8}, [(1, 40, 8), (3, 40, 8)]),
        ("rows", {"batch_sizes": [2], "prompt_lens": [4, 9]}, [(2, 4, 24), (2, 9, 24)]),
        ("one row", {"generation_len": 8, "spread": True}, [(1, n, 8) for n in (5, 10, 20, 40)]),
        ("rows", {"prompt_lens": [4], "spread": True}, [(1, 4, 24), (3, 4, 24)]),
    ],
)
def test_cases_fill_in_what_is_left_out(
    built: dict[str, Package], shape: str, choices: dict[str, Any], expected: list[tuple[int, ...]]
) -> None:
    cases = bench.plan(built[shape], threads=2, **choices)

    assert [(one.batch_size, one.prompt_len, one.generation_len) for one in cases] == expected
    assert {one.threads for one in cases} == {2}


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"batch_sizes": [4]}, "A batch of 4 .* at most 3"),
        ({"prompt_lens": [40], "generation_len": 9}, "40 and 9 new tokens .* the 48 of ctx_len"),
        ({"generation_len": CONTEXT}, f"1 and {CONTEXT} new tokens"),
        ({"prompt_lens": [0]}, "prompt_len 0; .* Change --prompt-len"),
        ({"generation_len": 0}, "generation_len 0"),
        ({"batch_sizes": [-1]}, "batch_size -1"),
        ({"threads": 0}, "threads 0"),
        ({"batch_sizes": [9], "prompt_lens": [99]}, r"(?s)A batch of 9.*A prompt of 99"),
    ],
)
def test_cases_that_cannot_be_run_are_refused(
    built: dict[str, Package], choices: dict[str, Any], message: str
) -> None:
    with pytest.raises(GenerationError, match=message):
        bench.plan(built["rows"], **choices)


def test_packages_that_do_not_generate_are_refused(built: dict[str, Package]) -> None:
    with pytest.raises(GenerationError, match=r"'feature-extraction'; expected 'text-generation'"):
        bench.plan(built["encoder"])


# --- figures --------------------------------------------------------------------------------------


def test_figures_agree_with_each_other(built: dict[str, Package]) -> None:
    two, first_only = bench.run(
        built["rows"], [case(batch_size=2), case(generation_len=1)], repeat=1
    )

    prefill_s = 2 * 5 / two.prefill_tokens_per_s
    decode_s = 2 * 2 / two.decode_tokens_per_s  # type: ignore[operator]
    assert 2 * 3 / two.e2e_tokens_per_s == pytest.approx(prefill_s + decode_s)
    assert 0 < two.ttft_s < prefill_s + decode_s
    assert two.peak_rss_bytes > 10 << 20
    assert (first_only.decode_tokens_per_s, first_only.batch_size) == (None, 1)


@pytest.mark.parametrize("shape", ["rows", "slots", "one row"])
def test_exactly_the_requested_number_of_tokens_is_generated(
    built: dict[str, Package], shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopping: Any = qeff_zoo.load(built[shape], threads=1)
    stopping.eos_token_ids = frozenset(range(stopping.decoder.vocab_size))
    assert len(stopping.generate([[1, 2]], generation_len=3)[0].token_ids) == 1
    made: list[int] = []
    generation = stopping.generation
    monkeypatch.setattr(
        stopping,
        "generation",
        lambda answer: made.append(len(answer.token_ids)) or generation(answer),
    )

    bench_case.run_once(stopping, case(batch_size=stopping.decoder.sizes.rows), 0)

    assert made == [3] * stopping.decoder.sizes.rows


def test_no_run_has_the_prompts_of_another(
    built: dict[str, Package], monkeypatch: pytest.MonkeyPatch
) -> None:
    session: Any = qeff_zoo.load(built["rows"], threads=1)
    prompts: list[tuple[int, ...]] = []
    request = session.request
    monkeypatch.setattr(
        session,
        "request",
        lambda prompt, **rest: prompts.append(tuple(prompt)) or request(prompt, **rest),
    )

    for number in range(3):
        bench_case.run_once(session, case(batch_size=2), number)

    assert len(set(prompts)) == 6
    assert {len(prompt) for prompt in prompts} == {5}


def test_memory_is_that_of_the_process_alone() -> None:
    ballast = bytearray(200 << 20)
    code = "from qeff_zoo.terminal.progress import peak_rss_bytes; print(peak_rss_bytes())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert progress.peak_rss_bytes() > len(ballast)
    assert 0 < int(done.stdout) < len(ballast) / 2


@pytest.mark.parametrize("repeat", [0, -2])
def test_no_runs_are_refused(built: dict[str, Package], repeat: int) -> None:
    with pytest.raises(GenerationError, match=f"{repeat} runs; .* Change --repeat"):
        bench.run(built["rows"], [case()], repeat=repeat)


def test_a_failed_case_reports_its_reason(built: dict[str, Package], tmp_path: Path) -> None:
    shutil.copytree(built["rows"].path, tmp_path / "package")
    package = Package.open(tmp_path / "package")
    (package.path / "graph.onnx").unlink()

    with pytest.raises(GenerationError, match=r"^Package .* is damaged: 'graph\.onnx' is missing"):
        bench.run(package, [case()])


def test_a_killed_case_is_reported_with_advice(
    built: dict[str, Package], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.sys, "executable", shutil.which("false"))

    with pytest.raises(GenerationError, match=r"'batch_size': 1.*it was killed .* free memory"):
        bench.run(built["rows"], [case()])


# --- the command ----------------------------------------------------------------------------------


def test_the_command_answers_with_a_list(
    built: dict[str, Package], capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["bench", str(built["slots"].path), "--prompt-len", "4", "--generation-len", "2"]
    argv += ["--batch-size", "2", "--threads", "1", "--repeat", "1"]

    assert cli.main([*argv, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert list(found) == FIGURES == [field.name for field in fields(bench.Figures)]
    assert [found[name] for name in FIGURES[:5]] == [2, 4, 2, 1, None]
    assert all(found[name] > 0 for name in ("ttft_s", *FIGURES[11:-2]))
    assert [found[name] for name in FIGURES[-2:]] == [0, 0]

    assert cli.main(argv) == 0
    *_, row = capsys.readouterr().out.splitlines()
    assert row.split()[:3] == ["2", "4", "2"]


def test_the_command_refuses_before_it_measures(
    built: dict[str, Package], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "run", lambda *_, **__: pytest.fail("measured"))
    package = str(built["one row"].path)

    assert cli.main(["bench", package, "--batch-size", "2"]) == 1
    assert "at most 1" in capsys.readouterr().err
    assert cli.main(["bench", package, "--language", "en"]) == 1
    assert "--language does not apply to text-generation" in capsys.readouterr().err
    assert cli.main(["bench", package, "--plot", "/nowhere/plot.png"]) == 1
    assert "Cannot draw '/nowhere/plot.png'" in capsys.readouterr().err
    assert cli.main(["bench", package, "--plot", "plot.docx"]) == 1
    assert "Cannot draw 'plot.docx'" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.backend_bases", raising=False)
    assert cli.main(["bench", package, "--plot", "plot.png"]) == 1
    assert "pip install 'qeff-zoo[plot]'" in capsys.readouterr().err


# --- plots ----------------------------------------------------------------------------------------


def test_a_plot_shows_what_was_measured(tmp_path: Path) -> None:
    measured = [
        figures(batch_size=batch, prompt_len=length, decode_tokens_per_s=9.0 * batch)
        for batch in (1, 4)
        for length in (10, 1000)
    ]
    path = tmp_path / "plot.png"

    plots.draw(measured, path, "a model")

    header = path.read_bytes()[:24]
    assert header.startswith(b"\x89PNG")
    assert min(struct.unpack(">II", header[16:])) > 500


def test_lines_have_a_point_for_each_case() -> None:
    measured = [
        figures(batch_size=batch, prompt_len=length, decode_tokens_per_s=9.0 * batch)
        for length in (1000, 10)
        for batch in (4, 1)
    ]
    alone = figures(generation_len=1, decode_tokens_per_s=None, prompt_len=7)

    by_batch, by_prompt = plots.curves([*measured, alone])

    points = [(11.5, 9.0), (1001.5, 9.0)]
    assert by_batch == {"batch 1": points, "batch 4": points}
    assert by_prompt["prompt of 1,000"] == [(1, 6.0), (4, 6.0)]
    assert by_prompt["prompt of 7"] == [(1, 6.0)]
