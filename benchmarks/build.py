# SPDX-License-Identifier: Apache-2.0
"""Claim: a build costs little more than reading and writing the weights, in little memory.

Makes Llama checkpoints of random weights once, then builds them in fresh processes, validation off, each measured from
outside. Prints JSON: every case with its limits and whether it kept them. Of several runs the one with the least CPU
time counts; the CPU times of all are listed. The limits are for 1.2 B parameters on two cores; `--quick` takes 160 M.

    python benchmarks/build.py [--quick] [--repeat 3] [--cases graph fp32 ...] [--peers [PYTHON]] [--cache DIR]

`--peers` runs onnxruntime-genai's builder beside ours, from the Python that has it installed.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from measuring import Measured, machine, measure
from random_llama import SIZES, config_of, make

_GB = 1_000_000_000
_PACKAGES = (
    "qeff-zoo",
    "torch",
    "transformers",
    "onnx",
    "onnx-ir",
    "onnxscript",
    "onnxruntime",
    "numpy",
)
_START = {"wall_seconds": 0.5}
_CACHED = {
    "cpu_seconds": 18,
    "peak_anonymous_bytes": 1.5 * _GB,
    "cpu_seconds_but_weights": 6,
    "writes_per_byte": 1.01,
}
_COLD = {"cpu_seconds": 28, "peak_anonymous_bytes": 1.5 * _GB, "writes_per_byte": 1.01}
_GRAPH = {"cpu_seconds": 15, "peak_rss_bytes": 1.2 * _GB}
_DEEP = {"cpu_seconds": 30, "wall_seconds": 30, "peak_rss_bytes": 1.5 * _GB}
_LOWERED = {"wall_seconds": 60, "peak_rss_bytes": 2 * _GB}
_DEPTH_RATIO = 1.3  # of 126 layers to 16
# The limits above over what onnxruntime-genai's builder took where they were set.
_PEER_RATIOS = {"fp32": 28 / 24, "int4": 40 / 47}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A thing to measure.

    Args:
        command: Run in a process of its own.
        limits: The most that each figure may be.
        prepare: Called before every run, outside the measurement.
    """

    command: list[str]
    limits: Mapping[str, float] = field(default_factory=dict)
    prepare: Callable[[], None] = lambda: None


def main() -> None:
    """Measure what was asked for and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", choices=["160m", "1.2b"], default="1.2b", help="parameters")
    parser.add_argument(
        "--quick", action="store_const", dest="size", const="160m", help="the small model"
    )
    parser.add_argument("--repeat", type=int, default=3, help="runs of each case; the best counts")
    parser.add_argument("--cases", nargs="+", metavar="CASE", help="only these")
    parser.add_argument(
        "--peers", nargs="?", const=sys.executable, metavar="PYTHON", help="with its builder"
    )
    default = Path(tempfile.gettempdir(), "qeff-zoo-benchmarks")
    parser.add_argument(
        "--cache", type=Path, default=default, metavar="DIR", help="keeps the checkpoints"
    )
    parser.add_argument("--do", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.do:
        json.dump(perform(json.loads(arguments.do)), sys.stdout)
        return
    facts = machine(_PACKAGES)
    for seed in (0, 1):
        make(arguments.cache / f"llama-{arguments.size}-{seed}", SIZES[arguments.size], seed)
    cases = graph_cases(arguments.size, arguments.cache)
    cases |= build_cases(arguments.size, arguments.cache) | start_cases()
    if arguments.peers and not _has_builder(arguments.peers):
        print(f"{arguments.peers} has no onnxruntime-genai; peers are left out.", file=sys.stderr)
    elif arguments.peers:
        cases |= peer_cases(arguments.size, arguments.cache, arguments.peers)
    chosen = {name: case for name, case in cases.items() if name in (arguments.cases or cases)}
    work = arguments.cache / "work"
    environment = {**os.environ, "QEFF_HOME": str(work / "store"), "HF_HUB_OFFLINE": "1"}
    found = {name: run(name, case, arguments.repeat, environment) for name, case in chosen.items()}
    shutil.rmtree(work, ignore_errors=True)
    answer = {"machine": facts, "size": arguments.size, "cases": found, "ratios": ratios(found)}
    json.dump(answer, sys.stdout, indent=1)
    sys.stdout.write("\n")


class CpuPerStage:
    """Notes this process's CPU time by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._stage, self._begun = "", 0.0

    def begin(self, stage: str, total: int | None, unit: str) -> None:
        """Start a stage."""
        self._stage, self._begun = stage, time.process_time()

    def advance(self, amount: int) -> None:
        """Count nothing."""

    def end(self) -> None:
        """Finish the stage."""
        self.seconds[self._stage] = round(time.process_time() - self._begun, 2)


def perform(request: Mapping[str, Any]) -> dict[str, Any]:
    """Build or export in this process, as a case asks."""
    from qeff_zoo import pipeline
    from qeff_zoo.plan.request import Request

    stages = CpuPerStage()
    if request["do"] == "graph":
        output = Path(request["output"])
        pipeline.export(request["model"], output, graph_only=True, reporter=stages)
        return {"cpu_seconds_by_stage": stages.seconds}
    if request["do"] == "lower":
        return lower_for_qaic(Path(request["model"]), stages)
    asked = Request(weights=request["weights"])
    built = pipeline.build(request["model"], asked, validate=False, reporter=stages)
    return {
        "hit": built.hit,
        "cpu_seconds_by_stage": stages.seconds,
        "package_bytes": built.package.size,
    }


def lower_for_qaic(config: Path, stages: CpuPerStage) -> dict[str, Any]:
    """Trace a Llama with slots from its config, and lower it for Cloud AI 100."""
    from qeff_zoo.export import exporter
    from qeff_zoo.export.program_plan import ProgramPlan
    from qeff_zoo.graph.external_data import is_placeholder
    from qeff_zoo.graph.numerics import FLOAT32
    from qeff_zoo.recipe import Shape
    from qeff_zoo.registry import find_recipe
    from qeff_zoo.targets.qaic import lowering
    from qeff_zoo.weights.bound_graph import BoundGraph

    stages.begin("trace", None, "")
    facts = json.loads(config.read_bytes())
    model = exporter.export_graph(facts, find_recipe("llama"), continuous_batching=True)
    stages.end()
    named = {
        name: name for name, value in model.graph.initializers.items() if is_placeholder(value)
    }
    program = ProgramPlan(
        role="decoder",
        task="text-generation",
        shape=Shape(batch_size=1, prefill_seq_len=128, ctx_len=131_072, full_batch_size=4),
        variant={"continuous_batching": True},
        specializations=({"name": "Decode", "symbols": {"batch_size": 1, "ctx_len": 131_072}},),
        weights=FLOAT32,
    )
    stages.begin("lower", None, "")
    graph = BoundGraph(model=model, bindings=named, digest="", cached=False)
    lowered = lowering.lower(graph, program)
    stages.end()
    return {"ways": lowered.ways, "cpu_seconds_by_stage": stages.seconds}


def build_cases(size: str, cache: Path) -> dict[str, Case]:
    """List builds, in order: a cached graph rests on the build before."""
    work = cache / "work"
    store = work / "store"
    base, tuned = (str(cache / f"llama-{size}-{seed}") for seed in (0, 1))

    def build(model: str, weights: str) -> list[str]:
        return _command(do="build", model=model, weights=weights)

    def build_unmeasured(model: str) -> None:
        environment = {**os.environ, "QEFF_HOME": str(store)}
        command = build(model, "fp32")
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)

    def forget_all_but_graphs() -> None:
        if not (store / "graphs").is_dir():  # asked for alone
            build_unmeasured(base)
        for folder in ("packages", "digests"):
            shutil.rmtree(store / folder, ignore_errors=True)

    clear = partial(_clear, work)
    return {
        "fp32": Case(command=build(base, "fp32"), limits=_COLD, prepare=clear),
        "fp32_graph_cached": Case(
            command=build(tuned, "fp32"), limits=_CACHED, prepare=forget_all_but_graphs
        ),
        "hit": Case(
            command=build(tuned, "fp32"),
            limits={"wall_seconds": 2},
            prepare=partial(build_unmeasured, tuned),
        ),
        "int4": Case(
            command=build(base, "int4"), limits={**_COLD, "cpu_seconds": 40}, prepare=clear
        ),
    }


def graph_cases(size: str, cache: Path) -> dict[str, Case]:
    """List what is made from a configuration alone."""
    work = cache / "work"

    def case(config: Path, limits: Mapping[str, float]) -> Case:
        command = _command(do="graph", model=str(config), output=str(work / "graph"))
        return Case(command=command, limits=limits, prepare=partial(_clear, work))

    return {
        "graph": case(cache / f"llama-{size}-0" / "config.json", _GRAPH),
        "graph_405b_16_layers": case(_deep_config(cache, 16), _DEEP),
        "graph_405b_126_layers": case(_deep_config(cache, 126), _DEEP),
        "qaic_405b_126_layers": Case(
            command=_command(do="lower", model=str(_deep_config(cache, 126))), limits=_LOWERED
        ),
    }


def start_cases() -> dict[str, Case]:
    """List commands that only start."""
    zoo = [sys.executable, "-m", "qeff_zoo"]
    commands = {"help": ["--help"], "list": ["list"], "show": ["show", "llama"]}
    return {name: Case(command=[*zoo, *words], limits=_START) for name, words in commands.items()}


def peer_cases(size: str, cache: Path, python: str) -> dict[str, Case]:
    """List the same builds by onnxruntime-genai."""
    work, model = cache / "work", str(cache / f"llama-{size}-0")

    builder = [python, "-m", "onnxruntime_genai.models.builder", "-i", model, "-e", "cpu"]
    folders = ["-o", str(work / "peer"), "-c", str(work / "peer-cache")]
    return {
        f"onnxruntime-genai_{weights}": Case(
            command=[*builder, *folders, "-p", weights], prepare=partial(_clear, work)
        )
        for weights in ("fp32", "int4")
    }


def run(name: str, case: Case, repeat: int, environment: Mapping[str, str]) -> dict[str, Any]:
    """Measure a case several times; the run with the least CPU time stands for it."""
    runs: list[Measured] = []
    for _ in range(repeat):
        case.prepare()
        runs.append(measure(case.command, environment))
        print(f"{name}: {runs[-1].cpu_seconds} s CPU", file=sys.stderr)
    figures = asdict(min(runs, key=lambda each: each.cpu_seconds))
    figures |= figures.pop("answer")
    if "package_bytes" in figures:
        figures["writes_per_byte"] = round(figures["written_bytes"] / figures["package_bytes"], 3)
        weights = figures["cpu_seconds_by_stage"].get("weights", 0.0)
        # The rest: start, imports, hashing, graph, manifest.
        figures["cpu_seconds_but_weights"] = round(figures["cpu_seconds"] - weights, 2)
    judged = {
        key: {"limit": most, "within": figures[key] <= most} for key, most in case.limits.items()
    }
    return {
        **figures,
        "runs": [each.cpu_seconds for each in runs],
        "limits": judged,
        "within": all(each["within"] for each in judged.values()),
    }


def ratios(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Compare depths, and ours with the peer's: below 1 is better."""
    compared = {}
    shallow, deep = found.get("graph_405b_16_layers"), found.get("graph_405b_126_layers")
    if shallow and deep:
        compared["126_layers_to_16"] = _ratio(deep, shallow, ("cpu_seconds",), _DEPTH_RATIO)
    for weights, limit in _PEER_RATIOS.items():
        ours, theirs = found.get(weights), found.get(f"onnxruntime-genai_{weights}")
        if ours and theirs:
            figures = ("cpu_seconds", "wall_seconds", "peak_rss_bytes", "peak_anonymous_bytes")
            compared[f"{weights}_to_onnxruntime-genai"] = _ratio(ours, theirs, figures, limit)
    return compared


def _ratio(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], figures: tuple[str, ...], limit: float
) -> dict[str, Any]:
    found = {name: round(ours[name] / theirs[name], 2) for name in figures}
    return {
        **found,
        "limits": {
            "cpu_seconds": {"limit": round(limit, 2), "within": found["cpu_seconds"] <= limit}
        },
    }


def _clear(work: Path) -> None:
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)


def _command(**request: str) -> list[str]:
    return [sys.executable, __file__, "--do", json.dumps(request)]


def _deep_config(cache: Path, layers: int) -> Path:
    path = cache / f"llama-405b-{layers}" / "config.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config_of(replace(SIZES["405b"], layers=layers))), encoding="utf-8")
    return path


def _has_builder(python: str) -> bool:
    find = "import importlib.util, sys; sys.exit(importlib.util.find_spec('onnxruntime_genai') is None)"
    return subprocess.run([python, "-c", find], check=False).returncode == 0


if __name__ == "__main__":
    main()
