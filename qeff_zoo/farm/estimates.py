# SPDX-License-Identifier: Apache-2.0
"""Estimates of what the steps of a build need: from a checkpoint's index, or from earlier builds.

Earlier builds are manifests and outcomes in the store. A build of the same model type is scaled by the bytes of its
weights; without one, the constants below apply. They were measured on the CPU and are meant to be too large.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qeff_zoo.checkpoint.opening import Checkpoint
from qeff_zoo.package import Package
from qeff_zoo.plan.package_plan import Plan
from qeff_zoo.store import Store

TRACE, BUILD, VALIDATE, PUBLISH = STEPS = ("trace", "build", "validate", "publish")

_PROCESS = 900_000_000  # bytes of a process that has imported torch and transformers, and traces
_MATRICES = 2_000_000_000  # bytes of the matrices that are converted at once, at most
_SECONDS = {TRACE: 15.0, BUILD: 5.0, VALIDATE: 10.0, PUBLISH: 1.0}
#: Bytes of weights per second: converted and written, compared with the reference, uploaded.
_RATES = {BUILD: 100e6, VALIDATE: 40e6, PUBLISH: 50e6}
_BITS = {
    "float32": 32,
    "float16": 16,
    "bfloat16": 16,
    "fp32": 32,
    "int8": 8.5,
    "w8a8": 8.5,
    "int4": 6,
}
_OTHER_BITS = 16
_QUANTIZED_BITS = 4.5


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Needs of one package.

    Args:
        weights: Bytes of the checkpoint's weights.
        memory: Bytes of memory by step.
        disk: Bytes of disk: the package, and the checkpoint if it must be downloaded.
        seconds: Wall time by step.
        measured: Whether an earlier build is the source.
    """

    weights: int
    memory: Mapping[str, int]
    disk: int
    seconds: Mapping[str, float]
    measured: bool


@dataclass(kw_only=True)
class History:
    """Earlier builds of a store.

    Args:
        store: The store.
        builds: Measured builds by model type: spec, bytes of weights and package, outcome.
    """

    store: Store
    builds: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, packages: Iterable[Package]) -> "History":
        """Add packages that were built here."""
        for package in packages:
            outcome = self.store.outcome(package.build_key)
            if "memory" in outcome:
                one = {"spec": package.manifest["spec"], "size": package.size, **outcome}
                self.builds.setdefault(package.model_type, []).append(one)
        return self

    def nearest(self, plan: Plan) -> Mapping[str, Any] | None:
        """Return the measured build that is most like a plan; None without one of its model type."""
        builds = self.builds.get(plan.recipe.model_type, [])
        groups = ("target", "quantization", "arch", "shape", "task")
        same = [
            sum(build["spec"].get(name) == plan.spec[name] for name in groups) for build in builds
        ]
        return builds[same.index(max(same))] if builds else None


def estimate(checkpoint: Checkpoint, plan: Plan, history: History) -> Estimate:
    """Estimate what a package needs.

    Args:
        checkpoint: Opened checkpoint; its weights may be remote.
        plan: Plan of the package.
        history: Earlier builds.
    """
    weights = bytes_of_weights(checkpoint)
    download = 0 if checkpoint.is_at_hand else weights
    parameters = weights * 8 / _stored_bits(checkpoint)
    quantization = plan.spec["quantization"]
    bits = _BITS.get(str(quantization.get("weights")), _OTHER_BITS)
    size = int(parameters * quantization.get("bits", bits) / 8)
    reference = _PROCESS + int(4 * parameters)  # of a validation, in a separate process, in float32
    memory = {
        TRACE: _PROCESS,
        BUILD: _PROCESS + min(2 * weights, _MATRICES),
        VALIDATE: _PROCESS + size + reference,
        PUBLISH: _PROCESS // 4,
    }
    seconds = {step: _SECONDS[step] + weights / _RATES.get(step, math.inf) for step in STEPS}
    if earlier := history.nearest(
        plan
    ):  # which may lack steps: it was interrupted, or its graphs were there
        ratio = max(weights / max(earlier["weights"], 1), 0.05)
        memory |= {
            step: int(_PROCESS / 2 + max(it - _PROCESS / 2, 0) * ratio)
            + (reference if step == VALIDATE else 0)  # what was measured is the other process
            for step, it in earlier["memory"].items()
        }
        seconds |= {step: it * ratio for step, it in earlier["seconds"].items()}
        size = int(earlier["size"] * ratio)
    return Estimate(
        weights=weights,
        memory=memory,
        disk=size + download,
        seconds=seconds,
        measured=earlier is not None,
    )


def bytes_of_weights(checkpoint: Checkpoint) -> int:
    """Return the size of a checkpoint's files of weights; 0 for files whose size the Hub does not give."""
    sizes: Mapping[str, int] = getattr(checkpoint.files, "sizes", {})
    return sum(
        _size(checkpoint.folder / name, sizes.get(name, 0)) for name in checkpoint.weight_files
    )


def _size(path: Path, announced: int) -> int:
    return path.stat().st_size if path.is_file() else announced


def _stored_bits(checkpoint: Checkpoint) -> float:
    if checkpoint.quantization:
        bits = checkpoint.quantization.get("bits")
        return float(bits) if isinstance(bits, int | float) and bits else _QUANTIZED_BITS
    config = checkpoint.text_config
    return _BITS.get(str(config.get("dtype") or config.get("torch_dtype")), 16)
