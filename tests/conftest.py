# SPDX-License-Identifier: Apache-2.0
"""Loaded before any test module: the plugin sets the environment that huggingface_hub reads when it is imported."""

import copy
import functools
import gc
import os
import shutil
import signal
import sys
import typing
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
import selection
import warm
from checkout import ROOT
from hypothesis import HealthCheck, settings
from sharing import made_once

from qeff_zoo.contract import tasks_of
from qeff_zoo.registry import list_recipes

pytest_plugins = [
    "forks",
    "seeds",
    "fixtures_browser",
    "fixtures_hub",
    "fixtures_pulls",
    "fixtures_builds",
    "fixtures_prepared",
    "fixtures_runtime",
    "fixtures_serving",
]
#: Objects between two collections. Traces make millions that live; looking for dead ones takes a tenth of the time.
_OBJECTS = 100_000


# Machines differ in speed by more than ten, and others work beside.
settings.register_profile(
    "any machine",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--changed",
        nargs="?",
        const="HEAD",
        metavar="REF",
        help="of recipes, test those that differ from this revision (HEAD), and what derives from them",
    )
    parser.addoption(
        "--requiring",
        metavar="PACKAGE",
        help="test tiny models of recipes that require this package, which are left out otherwise",
    )


def pytest_configure(config: pytest.Config) -> None:
    gc.set_threshold(_OBJECTS, 20, 20)
    # What a shell starts in the background ignores Ctrl-C, and so would all processes that tests interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    """Name the draw, so that it can be repeated."""
    return selection.draw_in_words()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Name the draw again, below failures and without a header (`-q`)."""
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line(selection.draw_in_words())


def pytest_sessionfinish() -> None:
    gc.freeze()  # pytest looks for dead objects twice before it ends, among millions that live


@pytest.hookimpl(trylast=True)  # after pytest's own order, by what fixtures share
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put all tests of one tiny model together, and leave out the recipes that a change does not touch."""
    parity = sys.modules.get("parity")
    cases = {**parity.all_cases(), **parity.more_cases()} if parity else {}
    items.sort(key=lambda item: _group(item, cases))
    in_full = _deselect(config, items)
    _leave_out(config, items)
    _sample(config, items, in_full)


def _group(item: pytest.Item, cases: Collection[str]) -> str:
    """Name what a test shares with others: of two processes, one then makes it, once. Others keep their order."""
    if mark := item.get_closest_marker("together"):
        return str(mark.args[0])
    return next((name for name in _strings(item) if name in cases), "")


def _deselect(config: pytest.Config, items: list[pytest.Item]) -> set[str]:
    """Leave out the recipes that a change does not touch; name the modules whose tests are left for those it does."""
    ref = config.getoption("--changed")
    if ref is None:
        return set()
    sources = {file.stem: file.read_text() for file in (ROOT / "recipes").glob("[!_]*.py")}
    try:
        touched = selection.affected(selection.changed_since(ref, ROOT), sources)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    if touched is None:
        return set()
    kept, left = [], []
    for item in items:
        call = getattr(item, "callspec", None)
        parameters = call.params.values() if call else ()
        needed = selection.is_needed(item.path.stem, parameters, touched, ROOT)
        (kept if needed else left).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left)
    return selection.PER_RECIPE


def _leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of tiny models that require what an option names; without it, those that require nothing."""
    required = {
        f"{recipe.model_type}-{tiny.name}{of_task}": recipe.requires
        for recipe in list_recipes()
        for tiny in recipe.tiny
        for of_task in ("", *(f"-{task}" for task in tasks_of(recipe)))
    }
    asked = config.getoption("--requiring")
    kept, left = [], []
    for item in items:
        names = [string for string in _strings(item) if string in required]
        wanted = {package for name in names for package in required[name]}
        mark = item.get_closest_marker("requiring")
        wanted |= set(mark.args if mark else ())
        (kept if (asked in wanted if asked else not wanted) else left).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left)


def _sample(config: pytest.Config, items: list[pytest.Item], in_full: set[str]) -> None:
    """Keep a sample of each test and of each module that is marked so, and all of some modules."""
    if selection.EVERY:
        return
    left = [item for item in items if item.get_closest_marker("full")]
    crossed = [item for item in items if item.path.stem not in in_full]
    for mark, cases in _marked(crossed, "sampled", _test).values():
        kept = {*mark.kwargs.get("kept", ())}
        kept = {_id(item) for item in cases if kept & {*_strings(item)}}
        drawn = selection.sample(_crossed(cases), *mark.args, kept)
        left += [item for item in cases if _id(item) not in drawn]
    dropped = {*map(id, left)}
    turns = _marked([item for item in items if id(item) not in dropped], "turns", _module)
    # What a module's tests share costs as much as they do: modules of a folder rest, too, and files that are named run.
    has_folders = any(Path(argument.partition("::")[0]).is_dir() for argument in config.args)
    resting = selection.half(turns) if has_folders else set()
    for module, (mark, tests) in turns.items():
        names = {item.name: () for item in tests}
        drawn = set() if module in resting else selection.sample(names, *mark.args)
        left += [item for item in tests if item.name not in drawn]
    dropped = {*map(id, left)}
    items[:] = [item for item in items if id(item) not in dropped]
    config.hook.pytest_deselected(items=left)


def _marked(
    items: list[pytest.Item], name: str, key: Callable[[pytest.Item], str]
) -> dict[str, tuple[pytest.Mark, list[pytest.Item]]]:
    """Group the tests that have a mark by a key, each group with the mark of its first test."""
    groups: dict[str, tuple[pytest.Mark, list[pytest.Item]]] = {}
    for item in items:
        if mark := item.get_closest_marker(name):
            groups.setdefault(key(item), (mark, []))[1].append(item)
    return groups


def _test(item: pytest.Item) -> str:
    """Name the function of a test, which all cases of it share."""
    return f"{item.path}::{getattr(item, 'originalname', '')}"


def _module(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _strings(item: pytest.Item) -> list[str]:
    call = getattr(item, "callspec", None)
    return [value for value in call.params.values() if isinstance(value, str)] if call else []


def _crossed(cases: list[pytest.Item]) -> dict[str, tuple[int, ...]]:
    """Number the values of the parameters that a test crosses; those that are always set together are one."""
    calls = [getattr(item, "callspec", None) for item in cases]
    names = calls[0].indices if calls[0] else ()
    axes = {tuple(call.indices[name] for call in calls if call) for name in names}
    rows = zip(*axes, strict=True) if axes else ((),) * len(cases)
    return dict(zip(map(_id, cases), rows, strict=True))


def _id(item: pytest.Item) -> str:
    """Return the names of a case's values: tests of one model are drawn together, and share what is made of it."""
    call = getattr(item, "callspec", None)
    return str(call.id) if call else item.name


@pytest.fixture(scope="session", autouse=True)
def _collect_seldom() -> None:
    """Spend less on garbage: what is there when the first test runs stays anyway."""
    from accelerate.utils import memory

    gc.freeze()
    # Accelerate looks through all objects whenever a training ends, though no device's memory is to be freed here.
    memory.clear_device_cache = lambda **_: None


@pytest.fixture(scope="session", autouse=True)
def _leave_the_interpreter() -> None:
    """Spare each server that runs in this process a search through the objects of all tests for garbage."""
    from qeff_zoo.serving.server import fleet
    from qeff_zoo.serving.server import process as server

    fleet.settle = server.settle = server.tune = lambda: None


@pytest.fixture(scope="session", autouse=True)
def _write_no_records_of_traces() -> None:
    """Spare a sixth of each trace: torch writes records of it for any handler, and pytest adds its own."""
    import torch

    log = torch._logging._internal.trace_log
    log.addHandler = lambda _: None  # type: ignore[method-assign]
    log.handlers.clear()


@pytest.fixture(scope="session", autouse=True)
def _read_torchlib_once() -> None:
    """Keep the exporter's table of translations, which it reads from onnxscript's sources for every trace."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    read = functools.cache(ONNXRegistry.from_torchlib)

    def copied(**options: Any) -> ONNXRegistry:  # each export adds translations to its own
        registry = copy.copy(read(**options))
        registry.functions = {op: list(known) for op, known in registry.functions.items()}
        return registry

    ONNXRegistry.from_torchlib = staticmethod(copied)


@pytest.fixture(scope="session", autouse=True)
def _read_protocols_once() -> None:
    """Keep the members of protocols, which Python before 3.12 looks up at each isinstance: of every node of a graph."""
    if read := getattr(typing, "_get_protocol_attrs", None):
        typing._get_protocol_attrs = functools.cache(read)  # type: ignore[attr-defined]


@pytest.fixture(scope="session", autouse=True)
def _read_signatures_once() -> None:
    """Keep the signatures of ONNX's operators, which the exporter reads from their schemas for every node."""
    from onnx_ir.schemas import OpSignature

    read, known = OpSignature.from_op_schema, dict[tuple[Any, ...], OpSignature]()

    def kept(schema: Any) -> OpSignature:
        key = schema.domain, schema.name, schema.since_version
        return known.get(key) or known.setdefault(key, read(schema))

    OpSignature.from_op_schema = staticmethod(kept)


@pytest.fixture(scope="session", autouse=True)
def _import_once(_shared_cache: None) -> Iterator[None]:
    """Start references, and what makes tiny models, in processes that need not import anything."""
    from qeff_zoo.scaffold import trial
    from qeff_zoo.validation import tiny_models
    from qeff_zoo.validation.reference import answers

    with pytest.MonkeyPatch.context() as patch:
        for module in (answers, tiny_models, trial):
            patch.setattr(module, "sys", warm.PYTHON)
        yield


@pytest.fixture(scope="session", autouse=True)
def _trace_once(_shared_cache: None) -> None:
    """Trace what builds ask for once a session, by whichever process comes first: stores of tests begin empty."""
    import onnx_ir

    from qeff_zoo.pipeline import graphs

    traced = graphs.trace

    def trace(
        folder: Path, plan: Any, program: Any, checkpoint: Any, name: str = graphs.GRAPH
    ) -> Any:
        key = plan.graph_key(program, "")
        known = made_once(
            Path(os.environ["QEFF_ZOO_TEST_CACHE"], f"{key}.onnx"),
            lambda place: traced(place.parent, plan, program, checkpoint, place.name),
        )
        shutil.copy(known, folder / name)
        return onnx_ir.load(folder / name)

    graphs.trace = trace


@pytest.fixture(scope="session", autouse=True)
def _shared_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Name the folder where `parity` keeps traced graphs for all processes of a session."""
    folder = tmp_path_factory.getbasetemp() / "graphs"
    folder.mkdir(exist_ok=True)
    os.environ["QEFF_ZOO_TEST_CACHE"] = str(folder)
