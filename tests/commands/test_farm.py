# SPDX-License-Identifier: Apache-2.0
"""A zoo file, its plan, and the order of its steps; builds are in test_farm_runs."""

import gzip
import io
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from fixtures_builds import Models
from local_hub import LocalHub
from publications import folder_files

from qeff_zoo import cli
from qeff_zoo.errors import FarmError, RemoteError
from qeff_zoo.farm import zoo_file
from qeff_zoo.farm.estimates import STEPS, Estimate
from qeff_zoo.farm.planning import BUILT, MISSING, PUBLISHED, RED, STALE, UNPROVED, Cell, plan_farm
from qeff_zoo.farm.running import _Watcher
from qeff_zoo.farm.schedule import FAILURES, REVALIDATE, Result, Schedule, Step
from qeff_zoo.hub.index import INDEX_NAME, Index
from qeff_zoo.hub.index_files import files_of
from qeff_zoo.plan.request import Request
from qeff_zoo.store import Store
from qeff_zoo.terminal.progress_bars import board

Write = Callable[[str], Path]
MODEL = '[[models]]\nmodel = "org/name"\n'


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Give a function that writes a zoo file."""

    def written(text: str) -> Path:
        path = tmp_path / "zoo.toml"
        path.write_text(text)
        return path

    return written


# --- the zoo file ---------------------------------------------------------------------------------
def test_each_value_of_a_list_is_a_variant(write: Write) -> None:
    text = '[[variants]]\nname = "cpu"\nweights = ["int8", "int4"]\nctx_len = [64, 128]\n'

    zoo = zoo_file.read(write(MODEL + text))

    assert [(one.request.weights, one.request.ctx_len) for one in zoo.wanted] == [
        ("int8", 64), ("int8", 128), ("int4", 64), ("int4", 128),
    ]  # fmt: skip
    assert str(zoo.wanted[0]) == "org/name cpu weights=int8 ctx_len=64"


def test_an_option_of_several_values_takes_lists_in_a_list(write: Write) -> None:
    zoo = zoo_file.read(write(MODEL + "[[variants]]\nseq_lens = [[8, 16], 32]\n"))

    assert [one.request.seq_lens for one in zoo.wanted] == [(8, 16), (32,)]


def test_rules_include_and_exclude(write: Write) -> None:
    text = """
[[models]]
model = ["a/one", "a/two", "b/three"]
[[variants]]
name = "cpu"
weights = ["int8", "int4"]
[[variants]]
name = "card"
target = "qaic"
[[include]]
model = "a/*"
[[exclude]]
model = "a/two"
weights = "int4"
[[exclude]]
model = "a/one"
variant = "card"
"""
    assert [str(one) for one in zoo_file.read(write(text)).wanted] == [
        *("a/one cpu weights=int8", "a/one cpu weights=int4"),
        *("a/two cpu weights=int8", "a/two card target=qaic"),
    ]


def test_a_pattern_finds_folders_and_gguf_files(write: Write, tmp_path: Path) -> None:
    for name in ("models/a", "models/b", "models/none"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("models/a/config.json", "models/b/config.json", "models/c.gguf", "models/d.txt"):
        (tmp_path / name).write_text("{}")

    zoo = zoo_file.read(write('[[models]]\nmodel = "models/*"\n'))

    assert [one.source.name for one in zoo.wanted] == ["a", "b", "c.gguf"]
    assert all(Path(one.source.model).is_absolute() for one in zoo.wanted)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("remote = [", "It cannot be read: "),
        ("version = 2\n" + MODEL, "version is 2; expected 1. Install a newer qeff-zoo."),
        ("remotes = 'x'\n" + MODEL, "has 'remotes'; expected version, remote, "),
        ("", "models is []; expected one [[models]] at least."),
        (MODEL + MODEL, "Model 'org/name' is there 2 times; expected each once."),
        ("[[models]]\nmodel = 'nowhere'\n", "model of [[models]] is 'nowhere'; expected a Hub id"),
        ("[[models]]\nmodel = 'no-*'\n", "model of [[models]] is 'no-*'; expected a pattern of folders"),
        ("[[models]]\nmodel = 'a/b'\nrevison = 'x'\n", "Did you mean 'revision'? Correct it, or leave it out."),
        (MODEL + "[[variants]]\nctxlen = 64\n", "Did you mean 'ctx_len'? Correct it, or leave it out."),
        (MODEL + "[[variants]]\nctx_len = '64'\n", "ctx_len of [[variants]] is '64'; expected values"),
        (MODEL + "[[variants]]\nweights = 'int3'\n", "is 'int3'; expected one of fp32, int8, int4"),
        (MODEL + "[[variants]]\nname='a'\n[[variants]]\nname='a'\n", "expected another name for each"),
        (MODEL + "[[variants]]\nctx_len = [8, 8]\n", "expected each value once"),
        (MODEL + "[limits]\nmemory = 'much'\n", "memory of [limits] is 'much'; expected a size"),
        (MODEL + "[limits]\ncores = 0\n", "cores of [limits] is 0; expected a number from 1 on."),
        (MODEL + "[[exclude]]\nmodel = '*'\n", "Its rules leave no package."),
        (MODEL + "[[exclude]]\nmodels = '*'\n", "[[exclude]] has 'models'"),
    ],
)  # fmt: skip
def test_a_wrong_zoo_file_is_refused_by_name(write: Write, text: str, problem: str) -> None:
    with pytest.raises(FarmError) as caught:
        zoo_file.read(write(text))

    assert problem in str(caught.value)


def test_all_problems_of_a_zoo_file_come_at_once(write: Write) -> None:
    with pytest.raises(FarmError) as caught:
        zoo_file.read(write(MODEL * 2 + "colour = 1\n[[variants]]\nweights = 'int3'\n"))

    assert len(caught.value.problems) == 3


def test_the_zoo_file_of_the_guide_is_read(write: Write, tmp_path: Path) -> None:
    guide = ROOT / "docs" / "farm.md"
    text = guide.read_text().partition("```toml\n")[2].partition("```")[0]
    (tmp_path / "checkpoints" / "own").mkdir(parents=True)
    (tmp_path / "checkpoints" / "own" / "config.json").write_text("{}")

    zoo = zoo_file.read(write(text))

    counts = Counter(one.source.name for one in zoo.wanted)
    assert counts == {"org/one": 6, "org/two": 4, "own": 6, "org/three-GGUF": 6}
    assert zoo.limits == zoo_file.Limits(memory=20 * 10**9, disk=200 * 10**9, cores=4)


# --- the plan -------------------------------------------------------------------------------------
@pytest.fixture
def zoo(write: Write, tmp_path: Path, models: Models, home: Path) -> Path:
    """Give a zoo of one tiny model in two variants, and an empty store."""
    shutil.copytree(models.llama, tmp_path / "llama")
    return write(
        f'remote = "file://{tmp_path}/remote"\n[[models]]\nmodel = "llama"\n'
        "[[variants]]\nctx_len = [32, 48]\n"
    )


def test_a_plan_lists_the_requirements_of_each_package(zoo: Path) -> None:
    plan = plan_farm(zoo_file.read(zoo))

    first, second = plan.as_dict()["cells"]
    assert first["build_key"] != second["build_key"]
    assert first["steps"] == [*STEPS]
    assert plan.cells[0].graphs == plan.cells[1].graphs  # traced once
    assert first["state"] == MISSING
    assert first["estimate"]["memory"] > 1e9
    assert not first["estimate"]["measured"]


def test_a_plan_finds_what_the_store_has(zoo: Path, models: Models, home: Path) -> None:
    models.build(models.llama, home, ctx_len=48)

    first, second = plan_farm(zoo_file.read(zoo)).cells

    assert (first.state, second.state) == (MISSING, UNPROVED)
    assert second.steps == ("validate", "publish")


def test_an_earlier_build_is_the_estimate_of_later_ones(
    zoo: Path, models: Models, home: Path
) -> None:
    package = models.build(models.llama, home, ctx_len=48)
    memory = {"build": 700_000_000, "validate": 500_000_000}
    measured = {"memory": memory, "seconds": {"build": 2.5}, "weights": 10**5}
    Store(home).note_outcome(package.build_key, measured)

    first = plan_farm(zoo_file.read(zoo)).cells[0]

    assert first.needs is not None
    assert first.needs.measured
    ratio = first.needs.weights / 10**5
    assert first.needs.seconds["build"] == pytest.approx(2.5 * ratio)
    assert (
        {*first.needs.seconds} == {*first.needs.memory} == {*STEPS}
    )  # of an interrupted build, too


def test_a_failed_build_is_remembered_with_its_reason(zoo: Path, home: Path) -> None:
    cell = plan_farm(zoo_file.read(zoo)).cells[0]
    Store(home).note_outcome(cell.build_key, {"failed": "No room."})

    assert plan_farm(zoo_file.read(zoo)).cells[0].why == "Last time: No room."


def test_variants_that_cannot_be_are_conflicts_before_anything_runs(
    zoo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zoo.write_text(zoo.read_text() + "[[variants]]\nname = 'odd'\nseq_lens = [[8]]\n")

    assert cli.main(["farm", "plan", str(zoo), "--json"]) == 1
    (conflict,) = json.loads(capsys.readouterr().out)["conflicts"]
    assert conflict.startswith("llama odd seq_lens=8: ")
    assert cli.main(["farm", "run", str(zoo)]) == 1
    assert "--seq-lens" in capsys.readouterr().err


def test_one_package_twice_is_a_conflict(zoo: Path) -> None:
    zoo.write_text(
        zoo.read_text() + "[[variants]]\nname = 'same'\nctx_len = 32\nweights = 'fp32'\n"
    )

    (conflict,) = plan_farm(zoo_file.read(zoo)).conflicts

    assert "the package is the same as that of llama ctx_len=32" in conflict


def test_a_model_that_cannot_be_opened_is_red(zoo: Path, tmp_path: Path) -> None:
    (tmp_path / "llama" / "model.safetensors").unlink()

    first, _ = plan_farm(zoo_file.read(zoo)).cells

    assert first.state == RED
    assert "model.safetensors" in first.why


def test_a_package_of_a_newer_version_is_refused(zoo: Path, models: Models, home: Path) -> None:
    package = models.build(models.llama, home, ctx_len=48)
    manifest = package.path / "manifest.json"
    manifest.chmod(0o644)
    manifest.write_text(manifest.read_text().replace("qeff-package/2", "qeff-package/3"))

    with pytest.raises(FarmError, match="has manifest schema 'qeff-package/3'; expected"):
        plan_farm(zoo_file.read(zoo))


def test_a_remote_that_is_none_is_refused(zoo: Path) -> None:
    zoo.write_text(zoo.read_text().replace("file://", "ftp://"))

    with pytest.raises(RemoteError, match="names no remote"):
        plan_farm(zoo_file.read(zoo))


def test_a_folder_without_rights_is_refused(
    zoo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write everywhere

    assert cli.main(["farm", "run", str(zoo)]) == 1
    assert "may not be written" in capsys.readouterr().err


def test_a_cluster_that_is_not_there_is_refused(
    zoo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["farm", "run", str(zoo), "--address", "127.0.0.1:9"]) == 1
    assert "There is no cluster" in capsys.readouterr().err


def test_an_index_of_a_newer_version_is_refused(zoo: Path, tmp_path: Path) -> None:
    (tmp_path / "remote").mkdir()
    newer = files_of(Index())[INDEX_NAME]
    newer = gzip.compress(gzip.decompress(newer).replace(b"qeff-index/3", b"qeff-index/9"))
    (tmp_path / "remote" / INDEX_NAME).write_bytes(newer)

    with pytest.raises(RemoteError, match="qeff-index/9"):
        plan_farm(zoo_file.read(zoo))


def test_models_of_a_hub_are_planned_without_their_weights(
    write: Write, alice: LocalHub, models: Models, home: Path
) -> None:
    commit = alice.commit("acme/llama", folder_files(models.llama))

    (cell,) = plan_farm(zoo_file.read(write(MODEL.replace("org/name", "acme/llama")))).cells

    size = (models.llama / "model.safetensors").stat().st_size
    assert (cell.state, cell.revision) == (MISSING, commit)
    assert cell.needs is not None
    assert cell.needs.weights == size
    assert cell.needs.disk > size  # of the download, and the package
    assert not [request for request in alice.requests("safetensors") if request.sent >= size]


def test_a_hub_without_rights_is_refused_before_anything_runs(
    zoo: Path, hub: LocalHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_bob")
    hub.commit("acme/zoo", {"README.md": b""})
    zoo.write_text(re.sub('remote = ".*"', 'remote = "hf://acme/zoo"', zoo.read_text()))

    assert cli.main(["farm", "run", str(zoo)]) == 1
    assert "'bob' is no member of 'acme'" in capsys.readouterr().err
    monkeypatch.setenv("HF_TOKEN", "hf_alice")
    assert cli.main(["farm", "run", str(zoo)]) == 1
    assert "llama: acme/zoo is public, but its source states no" in capsys.readouterr().err
    assert "index.json" not in hub.files("acme/zoo")


# --- the order of steps ---------------------------------------------------------------------------
def cells(count: int, **changes: Any) -> list[Cell]:
    """Make cells of one model, the first of which takes longest."""
    source = zoo_file.Source(model="org/name")
    wanted = zoo_file.Wanted(source=source, variant="", request=Request())
    return [
        replace(
            Cell(
                wanted=wanted, remote="file:///zoo", state=MISSING, build_key=f"qz1-{number:064x}",
                model_type="llama", target="ort", graphs=("qg1-a",),
                needs=Estimate(
                    weights=1, memory=dict.fromkeys(STEPS, 1), disk=1, measured=False,
                    seconds=dict.fromkeys(STEPS, float(count - number)),
                ),
            ),
            **changes,
        )
        for number in range(count)
    ]  # fmt: skip


def started(schedule: Schedule) -> list[Step]:
    """Start all that is ready."""
    return [*iter(schedule.next, None)]


def finish(schedule: Schedule, steps: list[Step], **result: Any) -> None:
    for step in steps:
        schedule.finish(step, Result(**result))


def test_graphs_are_traced_once_and_publications_are_one_at_a_time() -> None:
    schedule = Schedule(cells(3))
    ran = Counter[str]()
    while not schedule.done:
        steps = started(schedule)
        counts = Counter(step.name for step in steps)
        assert counts["trace"] <= 1
        assert counts["publish"] <= 1
        ran += counts
        finish(schedule, steps)

    assert ran == {"trace": 1, "build": 3, "validate": 3, "publish": 3}
    assert [one.state for one in schedule.progress] == [PUBLISHED] * 3


def test_the_longest_cell_comes_first() -> None:
    schedule = Schedule([*reversed(cells(3, graphs=(), remote=None, state=UNPROVED))])

    assert [step.seconds for step in started(schedule)] == [3.0, 2.0, 1.0]


def test_a_failed_trace_is_tried_by_the_next_cell() -> None:
    schedule = Schedule(cells(3))
    finish(schedule, started(schedule), failure="ExportError", reason="It has no shape.")

    (step,) = started(schedule)

    assert (step.name, step.number) == ("trace", 1)
    assert schedule.progress[0].state == RED
    assert schedule.progress[0].reason == "It has no shape."


def test_three_failures_of_one_kind_stop_that_kind() -> None:
    of_others = cells(1, model_type="gemma", graphs=("qg1-b",))
    schedule = Schedule([*cells(FAILURES + 2), *of_others])
    while step := schedule.next():
        bad = step.name == "build" and step.cell.model_type == "llama"
        schedule.finish(step, Result(failure="CompileError" if bad else "", reason="Bad."))
    assert schedule.done

    reasons = [one.reason for one in schedule.progress]
    assert reasons[:FAILURES] == ["Bad."] * FAILURES
    assert all(text.startswith("Not tried after 3 failures") for text in reasons[FAILURES:-1])
    assert schedule.progress[-1].state == PUBLISHED


def test_bars_show_every_package_and_those_that_are_not_tried(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = io.StringIO()
    screen.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stderr", screen)
    schedule = Schedule(cells(FAILURES + 2))  # all of one name
    bars = board(FAILURES + 2)
    watcher = _Watcher(schedule, Store(home), bars)
    while step := schedule.next():
        watcher.begun(step)
        result = Result(failure="CompileError", reason="Bad.")
        schedule.finish(step, result)
        watcher.done(step, result)

    shown = screen.getvalue()
    assert "trace    org/name" in shown
    assert re.search(rf"all \(5 red\) +{FAILURES + 2}/{FAILURES + 2} ", shown)


def test_packages_that_are_too_large_stop_no_others() -> None:
    schedule = Schedule(cells(FAILURES + 1))
    while step := schedule.next():
        large = step.number < FAILURES
        schedule.finish(step, Result(failure="OutOfMemoryError" if large else "", refused=large))

    assert [one.state for one in schedule.progress] == [RED] * FAILURES + [PUBLISHED]


def test_a_package_whose_machine_is_gone_is_built_again() -> None:
    schedule = Schedule(cells(1))
    names = []
    while not schedule.done:
        for step in started(schedule):
            names.append(step.name)
            gone = step.name == "validate" and len(names) == 3
            schedule.finish(
                step, Result(node="a", absent=gone, failure="AbsentPackage" if gone else "")
            )

    assert names == ["trace", "build", "validate", "build", "validate", "publish"]


def test_a_package_of_an_earlier_run_is_looked_for_where_that_ran() -> None:
    schedule = Schedule(cells(1, state=UNPROVED))
    schedule.home = "here"
    (first,) = started(schedule)
    schedule.finish(first, Result(failure="AbsentPackage", absent=True, node="there"))

    (second,) = started(schedule)

    assert [(step.name, step.node) for step in (first, second)] == [
        ("validate", ""), ("validate", "here"),
    ]  # fmt: skip


def test_stale_cells_are_validated_again_and_built_if_they_fail() -> None:
    older = cells(2, state=STALE, older_key="qz1-old")
    schedule = Schedule(older, revalidate=True)
    good, bad = started(schedule)
    schedule.finish(good, Result())
    schedule.finish(bad, Result(failure="ParityError", reason="It differs."))

    assert [good.name, bad.name] == [REVALIDATE] * 2
    assert schedule.progress[0].state == BUILT
    (step,) = started(schedule)
    assert (step.name, step.number) == ("trace", 1)
