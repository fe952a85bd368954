# SPDX-License-Identifier: Apache-2.0
"""Claim: a farm builds many packages at least 1.6 times as fast as a shell loop, and keeps 100 machines 90 % busy.

    python benchmarks/farm.py build [--packages 60] [--cores 2]     # against `qeff-zoo build` in a loop, both validated
    python benchmarks/farm.py simulate --report FILE [--packages 10000] [--nodes 100]

`build` makes fine-tunes of one tiny model: one configuration, other weights. Each side begins with an empty store. It
prints JSON: seconds and CPU seconds of both sides, all of their processes included, their ratios, seconds of the farm
beside its steps (Ray's start, and the rest for each package), and the report of the farm. On a machine that does other
work, only CPU seconds mean something.

`simulate` runs the farm's own schedule on simulated machines. FILE is what `build` printed; the time of each step is
drawn from it, times a size of the model from 1 to 100. The schedule has the estimates without the spread of the
measured times. Machines run a step where the fewest cores are used, and later steps where the package is, as Ray does.
"""

import argparse
import ctypes
import heapq
import json
import math
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from measuring import machine

from qeff_zoo.farm.estimates import PUBLISH, STEPS, Estimate
from qeff_zoo.farm.planning import MISSING, Cell
from qeff_zoo.farm.schedule import Result, Schedule, Step, drive
from qeff_zoo.farm.zoo_file import Source, Wanted
from qeff_zoo.plan.request import Request

_EXAMPLE = Path(__file__).parent.parent / "examples" / "tiny-llama"
_SEED = 44
_MODELS_PER_ARCHITECTURE, _VARIANTS = 25, 4
_LARGEST = 100  # size of a model, in units of the measured one
_CHILD_SUBREAPER = 36  # of Linux: orphans below this process become its children
_SAMPLING = 0.2  # seconds
_AHEAD = 2  # steps per core, as `qeff_zoo.farm.cluster` submits


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build")
    build.add_argument("--packages", type=int, default=60)
    build.add_argument("--cores", type=int, default=2)
    simulated = commands.add_parser("simulate")
    simulated.add_argument("--report", type=Path, required=True)
    simulated.add_argument("--packages", type=int, default=10_000)
    simulated.add_argument("--nodes", type=int, default=100)
    simulated.add_argument("--cores", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.command == "build":
        found = compare(arguments.packages, arguments.cores)
    else:
        report = json.loads(arguments.report.read_bytes())["report"]
        found = simulate(report, arguments.packages, arguments.nodes, arguments.cores)
    facts = machine(["qeff-zoo", "ray", "torch", "transformers", "onnxruntime"])
    json.dump({"machine": facts, **found}, sys.stdout, indent=1)
    sys.stdout.write("\n")


# --- real builds --------------------------------------------------------------------------------


def compare(packages: int, cores: int) -> dict[str, Any]:
    """Build all packages in a loop, then by the farm."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = [fine_tune(folder / f"tune-{number:03}", number) for number in range(packages)]
        (folder / "zoo.toml").write_text(
            f'[limits]\ncores = {cores}\n[[models]]\nmodel = "tune-*"\n[[variants]]\nctx_len = 64\n'
        )
        qeff_zoo = shlex.join([sys.executable, "-m", "qeff_zoo"])
        lines = [f"{qeff_zoo} build {shlex.quote(str(model))} --ctx-len 64 -q" for model in models]
        loop, loop_cpu, _ = timed(["bash", "-e", "-c", "\n".join(lines)], folder / "loop")
        farm, farm_cpu, output = timed(
            ["bash", "-c", f"{qeff_zoo} farm run zoo.toml -q --json"], folder / "farm", cwd=folder
        )
    report = json.loads(output)
    steps = sum(sum(cell["seconds"].values()) for cell in report["cells"])
    return {
        "packages": packages,
        "cores": cores,
        "loop_seconds": loop,
        "farm_seconds": farm,
        "ratio": round(loop / farm, 3),
        "loop_cpu_seconds": loop_cpu,
        "farm_cpu_seconds": farm_cpu,
        "cpu_ratio": round(loop_cpu / farm_cpu, 3),
        "busy": round(steps / (farm * cores), 3),
        "overhead_seconds_per_package": round((farm * cores - steps) / packages / cores, 3),
        "report": report,
    }


def fine_tune(folder: Path, number: int) -> Path:
    """Copy the example model with other values in its last norm."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(_EXAMPLE, folder)
    tensors = load_file(folder / "model.safetensors")
    torch.manual_seed(number)
    name = "model.norm.weight"
    tensors[name] = tensors[name] * (1 + torch.rand_like(tensors[name]) / 10)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def timed(command: Sequence[str], home: Path, cwd: Path | None = None) -> tuple[float, float, str]:
    """Run a command on an empty store; return its seconds, the CPU seconds of all its processes, and its output."""
    ctypes.CDLL(None).prctl(_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans stay below this process
    environment = {**os.environ, "QEFF_HOME": str(home)}
    used, over = dict[tuple[int, float], float](), threading.Event()
    sampling = threading.Thread(target=sample, args=(used, over))
    sampling.start()
    begun = time.perf_counter()
    try:
        done = subprocess.run(
            command, env=environment, cwd=cwd, stdout=subprocess.PIPE, text=True, check=True
        )
        seconds = time.perf_counter() - begun
    finally:
        over.set()
        sampling.join()
    return round(seconds, 2), round(sum(used.values()), 1), done.stdout


def sample(used: dict[tuple[int, float], float], over: threading.Event) -> None:
    """Note the CPU seconds of each process below this one; Ray's workers are not waited for, so no parent has them."""
    while not over.wait(_SAMPLING):
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                times = process.cpu_times()
                used[process.pid, process.create_time()] = times.user + times.system


# --- simulated machines -------------------------------------------------------------------------


def simulate(report: Mapping[str, Any], packages: int, nodes: int, cores: int) -> dict[str, Any]:
    """Run the schedule of many packages on simulated machines."""
    dice = random.Random(_SEED)
    measured = {
        step: [cell["seconds"][step] for cell in report["cells"] if step in cell["seconds"]]
        for step in STEPS
    }
    measured = {step: found or [1.0] for step, found in measured.items()}
    sizes = [_LARGEST ** dice.random() for _ in range(math.ceil(packages / _VARIANTS))]
    cells = [
        simulated_cell(number, measured, sizes[number // _VARIANTS]) for number in range(packages)
    ]
    machines = Machines(nodes, cores, measured, dice)
    schedule = Schedule(cells)
    begun = time.perf_counter()
    drive(schedule, machines)
    scheduling = time.perf_counter() - begun
    states = {one.state for one in schedule.progress}
    return {
        "packages": packages,
        "nodes": nodes,
        "cores": cores,
        "states": sorted(states),
        "hours": round(machines.now / 3600, 2),
        "busy": round(machines.worked / (machines.now * nodes * cores), 4),
        "scheduling_milliseconds_per_package": round(1000 * scheduling / packages, 3),
    }


def simulated_cell(number: int, measured: Mapping[str, Sequence[float]], size: float) -> Cell:
    """Return a cell of a model of some size; every fourth begins another model, every hundredth an architecture."""
    model = number // _VARIANTS
    means = {step: sum(found) / len(found) for step, found in measured.items()}
    seconds = {step: mean * (1 if step == "trace" else size) for step, mean in means.items()}
    return Cell(
        wanted=Wanted(source=Source(model=f"org/{model}"), variant="", request=Request()),
        remote=f"hf://zoo/{model}",
        state=MISSING,
        build_key=f"qz1-{number:064x}",
        model_type="llama",
        target="ort",
        graphs=(f"qg1-{model // _MODELS_PER_ARCHITECTURE}",),
        needs=Estimate(
            weights=1, memory=dict.fromkeys(STEPS, 1), disk=1, seconds=seconds, measured=True
        ),
    )


class Machines:
    """Simulated machines: an `Executor` whose clock jumps from end to end of steps.

    Args:
        nodes: Number of machines.
        cores: Cores of each.
        measured: Measured seconds by step.
        dice: Source of the spread of times.
    """

    def __init__(
        self, nodes: int, cores: int, measured: Mapping[str, Sequence[float]], dice: random.Random
    ) -> None:
        self._free = [cores] * nodes
        self._capacity, self._running = nodes * cores * _AHEAD, 0
        self._dice = dice
        self._ratios = {
            step: [one * len(found) / max(sum(found), 1e-9) for one in found]
            for step, found in measured.items()
        }
        self._ends: list[tuple[float, int, Step, int]] = []
        self._anywhere, self._there = deque[Step](), [deque[Step]() for _ in range(nodes)]
        self.now = self.worked = 0.0

    @property
    def room(self) -> int:
        """Number of steps that may be submitted now."""
        return self._capacity - self._running

    def submit(self, step: Step) -> Result | None:
        """Start a step, or queue it."""
        self._running += not step.node
        node = (
            int(step.node) if step.node else max(range(len(self._free)), key=self._free.__getitem__)
        )
        if step.name == PUBLISH or self._free[node]:
            self._start(step, node)
        else:
            (self._there[node] if step.node else self._anywhere).append(step)
        return None

    def _start(self, step: Step, node: int) -> None:
        seconds = step.seconds * self._dice.choice(self._ratios[step.name])
        if step.name != PUBLISH:
            self._free[node] -= 1
            self.worked += seconds
        heapq.heappush(self._ends, (self.now + seconds, step.number, step, node))

    def wait(self) -> Sequence[tuple[Step, Result]]:
        """Jump to the end of the next step."""
        self.now, _, step, node = heapq.heappop(self._ends)
        self._running -= not step.node
        if step.name != PUBLISH:
            self._free[node] += 1
            if queue := self._there[node] or self._anywhere:
                self._start(queue.popleft(), node)
        return [(step, Result(node=str(node)))]


if __name__ == "__main__":
    main()
