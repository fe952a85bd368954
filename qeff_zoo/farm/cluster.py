# SPDX-License-Identifier: Apache-2.0
"""Machines of a farm, by Ray: this one, or those of a running cluster.

Ray places each step where the memory, disk and cores are free that the step requires, runs the step again if its worker
dies, and keeps worker processes for later steps. `disk` is a resource of ours in MB; on a cluster whose machines do not
declare it (`ray start --resources='{"disk": 200000}'`), room on disks is not reserved.
"""

import importlib.util
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ray
from ray.exceptions import OutOfMemoryError, RayError, RayTaskError, WorkerCrashedError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from qeff_zoo.disk.room import free_bytes
from qeff_zoo.errors import FarmError, Translating
from qeff_zoo.farm.estimates import PUBLISH
from qeff_zoo.farm.schedule import Result, Step
from qeff_zoo.farm.tasks import Options, run_step
from qeff_zoo.farm.zoo_file import Limits
from qeff_zoo.plan.spec import TRACERS
from qeff_zoo.runtime.memory import available_memory
from qeff_zoo.settings import offline
from qeff_zoo.store import default_root
from qeff_zoo.versions import installed

DISK = "disk"
_MEGA = 1_000_000
#: Number of times that Ray runs a step again whose worker died.
_RETRIES = 5
_STARTS = 3  # of Ray on this machine
#: Settings of Ray: no report to its makers, the GPUs as they are, workers that do not starve on a busy machine, and as
#: many retries of a step for which memory does not suffice.
_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_worker_niceness": "0",
        "RAY_task_oom_retries": "2",
    }
)
_QUIET: Mapping[str, Any] = MappingProxyType({"log_to_driver": False, "logging_level": "ERROR"})
_PATIENCE = 5.0  # seconds to reach a cluster
_POLL = 1.0  # seconds of one wait
_OBJECTS = 100 << 20  # bytes of Ray's object store, through which only steps and results pass
_STEPS_AHEAD = 2  # per core: Ray need not wait for the driver
#: Memory is requested in steps of this ratio, so that one worker serves similar builds.
_COARSE = 1.25
_LEAST = 100_000_000


def start(address: str | None, limits: Limits) -> "Cluster":
    """Start Ray on this machine, or connect to a cluster.

    Args:
        address: Address of a cluster: `HOST:PORT`, `ray://HOST:PORT` or `auto`; None for this machine.
        limits: Limits of this machine.

    Raises:
        FarmError: There is no cluster, or its machines have other versions.
    """
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    if address is None:
        _start_here(limits)
    else:
        _connect(address)
    cluster = Cluster()
    cluster.require_same_versions(address or "this machine")
    return cluster


def _start_here(limits: Limits) -> None:
    """Start Ray on this machine; on a busy one, its processes may come too late for each other."""
    free = free_bytes(default_root())

    def failed(error: BaseException) -> FarmError:
        text = " ".join(str(error).split())[:300].rstrip(".")
        expected = (
            "Expected its processes to start in time. Try again when the machine is less busy."
        )
        return FarmError("this machine", [f"Ray does not start: {text}. {expected}"])

    for left in reversed(range(_STARTS)):
        try:
            with Translating(failed):
                ray.init(
                    "local",
                    num_cpus=limits.cores or os.cpu_count(),
                    _memory=limits.memory or available_memory() or _half_of_memory(),
                    resources={DISK: max(min(limits.disk or free, free) // _MEGA, 1)},
                    object_store_memory=_OBJECTS,
                    include_dashboard=importlib.util.find_spec("aiohttp_cors") is not None,
                    **_QUIET,
                )
        except FarmError:
            ray.shutdown()
            if not left:
                raise
        else:
            return


def _half_of_memory() -> int:
    """Return half of all memory in bytes, on systems that do not report what is free."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _connect(address: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    expected = "Expected HOST:PORT of a running cluster. Start one with `ray start --head`, or leave --address out."
    try:
        if address != "auto":
            socket.create_connection((host, int(port)), _PATIENCE).close()
        ray.init(address=address, **_QUIET)
    except (OSError, ValueError, ConnectionError) as error:
        raise FarmError(
            f"--address {address}", [f"There is no cluster: {error}. {expected}"]
        ) from error
    except RuntimeError as error:
        if "ersion mismatch" not in str(error):
            raise
        reason = " ".join(str(error).split())[:600].rstrip(".")
        expected = "Expected one version of Ray and Python on all machines. Install that of the cluster here."
        raise FarmError(f"--address {address}", [f"{reason}. {expected}"]) from error


def versions() -> dict[str, str]:
    """Return the versions of a machine on which packages depend, with a digest of our sources."""
    import platform

    import qeff_zoo

    folders = [Path(path) for path in qeff_zoo.__path__]
    recipes = importlib.util.find_spec("qeff_zoo.recipes")
    folders += map(Path, (recipes and recipes.submodule_search_locations) or ())
    digest = sha256()
    for file in sorted({file for folder in folders for file in folder.rglob("*.py")}):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return {
        "python": platform.python_version(),
        "qeff-zoo": f"{installed('qeff-zoo')} ({digest.hexdigest()[:12]})",
        **{name: installed(name) or "absent" for name in (*TRACERS, "onnxruntime", "ray")},
    }


class Cluster:
    """An `Executor` of steps on the machines of a Ray cluster.

    Args:
        options: Options of all steps.
    """

    def __init__(self, options: Options | None = None) -> None:
        self._options = options or Options()
        self._running: dict[Any, Step] = {}

    def configure(self, options: Options) -> None:
        """Set the options of all steps."""
        self._options = options

    @property
    def home(self) -> str:
        """Machine of this process."""
        return str(ray.get_runtime_context().get_node_id())

    @property
    def _nodes(self) -> list[dict[str, Any]]:
        return [node for node in ray.nodes() if node["Alive"]]

    def require_same_versions(self, address: str) -> None:
        """Refuse machines with other versions than this one.

        Args:
            address: Name of the cluster, for the message.

        Raises:
            FarmError: A machine has other versions, or lacks qeff-zoo.
        """
        nodes = self._nodes
        if len(nodes) == 1:
            return
        ours = versions()
        probe = ray.remote(num_cpus=0)(versions)
        problems = []
        for node in nodes:
            strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            name = node["NodeManagerHostname"] or node["NodeManagerAddress"]
            try:
                remote = ray.get(probe.options(scheduling_strategy=strategy).remote())
            except RayError as error:
                problems.append(
                    f"Machine {name!r} cannot run qeff-zoo: {_reason(error)}. Expected what is installed here. "
                    "Install it there."
                )
                continue
            problems += [
                f"Machine {name!r} ({node['NodeID'][:8]}) has {each} {remote[each]}; expected {ours[each]}, as here. "
                "Install that there."
                for each in ours
                if remote[each] != ours[each]
            ]
        if problems:
            raise FarmError(address, problems)

    # --- an executor -------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Number of steps that may be submitted now."""
        cores = int(ray.cluster_resources().get("CPU", 1))
        # Steps that must wait for one machine do not keep others idle.
        return _STEPS_AHEAD * cores - sum(not step.node for step in self._running.values())

    def submit(self, step: Step) -> Result | None:
        """Start a step; return a result if no machine is large enough."""
        nodes = [node["Resources"] for node in self._nodes]
        most = int(max((node.get("memory", 0) for node in nodes), default=0))
        if step.memory > most:
            return Result(
                failure="OutOfMemoryError",
                refused=True,
                reason=f"It requires {step.memory / 1e9:.1f} GB of memory; expected a machine with that much, and the "
                f"largest has {most / 1e9:.1f} GB. Add a larger machine, or state a smaller `memory` in the zoo file.",
            )
        resources = {}
        if step.disk and (disks := [node[DISK] for node in nodes if DISK in node]):
            resources[DISK] = max(step.disk // _MEGA, 1)
            if resources[DISK] > max(disks):
                return Result(
                    failure="StoreError",
                    refused=True,
                    reason=f"It requires {resources[DISK]:,} MB of disk; expected a machine with that much, and the "
                    f"largest has {int(max(disks)):,} MB. Free space there, or add a larger machine.",
                )
        memory = min(_coarse(step.memory), most)
        options: dict[str, Any] = {"memory": memory, "resources": resources}
        if step.node:
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(step.node, soft=True)
        task: Any = ray.remote(max_retries=_RETRIES)(_run)
        task = task.options(num_cpus=0 if step.name == PUBLISH else 1, **options)
        self._running[task.remote(step, self._options, offline())] = step
        return None

    def wait(self) -> Sequence[tuple[Step, Result]]:
        """Wait for steps that are done, for a while."""
        done, _ = ray.wait([*self._running], num_returns=1, timeout=_POLL)
        more, _ = ray.wait([*self._running], num_returns=len(self._running), timeout=0)
        return [
            (self._running.pop(one), self._result(one)) for one in dict.fromkeys([*done, *more])
        ]

    @staticmethod
    def _result(reference: Any) -> Result:
        try:
            result: Result = ray.get(reference)
        except RayError as error:
            return Result(failure=_failure(error), reason=_reason(error))
        return result


def _run(step: Step, options: Options, offline: bool) -> Result:
    """Run a step in a worker of Ray."""
    from qeff_zoo.settings import go_offline

    if offline:
        go_offline()
    node = ray.get_runtime_context().get_node_id()
    return replace(run_step(step, options), node=node)


def _coarse(size: int) -> int:
    rounded = _LEAST
    while rounded < size:
        rounded = int(rounded * _COARSE)
    return rounded


def _failure(error: RayError) -> str:
    cause = getattr(error, "cause", None)
    return type(cause or error).__name__


def _reason(error: RayError) -> str:
    """Describe a failure that no step expects."""
    if isinstance(error, OutOfMemoryError):
        return "Ray ended its process, since the machine ran out of memory. Expected that much to be free. Free memory."
    if isinstance(error, WorkerCrashedError):
        return (
            f"Its process died {_RETRIES + 1} times. Expected it to live. See the kernel's log, and Ray's in "
            "/tmp/ray/session_latest/logs."
        )
    if isinstance(error, RayTaskError) and error.cause is not None:
        (*_, last) = str(error.cause).strip().splitlines() or [""]
        return f"Something went wrong that should not: {type(error.cause).__name__}: {last}"
    (first, *_) = str(error).strip().splitlines() or [type(error).__name__]
    return first


@contextmanager
def started(address: str | None, limits: Limits) -> Iterator[Cluster]:
    """Start or join a cluster, and leave it at the end; see `start`."""
    try:
        yield start(address, limits)
    finally:
        ray.shutdown()
