# SPDX-License-Identifier: Apache-2.0
"""Asking the reference: a request goes to a process of its own, its answers come back."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from qeff_zoo.errors import ParityError
from qeff_zoo.validation.parity import Array
from qeff_zoo.validation.trials import Key, Progress


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What the reference said: see `qeff_zoo.validation.reference`.

    Args:
        about: The model's class, versions, what the canary's damage was, and the greedy continuation.
        arrays: `variant.sequence` -> (positions, values); of a run of the package `variant.sequence.run`, where the
            reference was told to choose as the package did.
    """

    about: Mapping[str, Any]
    arrays: Mapping[str, Array]

    def at(self, variant: str, keys: Sequence[Key]) -> Array:
        """Return a variant's answers to some questions."""
        found = []
        for number, index, run in keys:
            name = f"{variant}.{number}"
            found.append(self.arrays.get(f"{name}.{run}", self.arrays[name])[index])
        return np.stack(found)

    def all(self, variant: str) -> Array:
        """Return all answers of a variant."""
        names = [name.split(".") for name in self.arrays]
        found = [name for name in names if name[0] == variant and len(name) == 2]
        return np.concatenate([self.arrays[".".join(name)] for name in found])

    def has(self, variant: str) -> bool:
        """Tell whether a variant was run."""
        return f"{variant}.0" in self.arrays


def ask(
    request: Mapping[str, Any],
    threads: int | None,
    step: Progress,
    module: str = "qeff_zoo.validation.reference",
    arrays: Mapping[str, Array] = MappingProxyType({}),
) -> Answers:
    """Run a reference process.

    Args:
        request: As the module takes it.
        threads: CPU threads; None for one per physical core.
        step: Told of every call.
        module: What runs there.
        arrays: What the request has besides JSON.

    Raises:
        ParityError: It fails.
    """
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    with tempfile.TemporaryDirectory(prefix="qeff-reference-") as name:
        folder = Path(name)
        (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
        command = [sys.executable, "-W", "ignore", "-m", module]
        np.savez(folder / "arrays.npz", allow_pickle=False, **arrays)
        command += [str(folder / name) for name in ("request.json", "answer.npz", "arrays.npz")]
        log = folder / "log"
        with (
            log.open("wb") as errors,
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, env=environment, cwd=folder
            ) as process,
        ):
            assert process.stdout is not None
            for _ in process.stdout:
                step(1)
        if process.returncode:
            raise _no_reference(request, log.read_text(encoding="utf-8", errors="replace"))
        with np.load(folder / "answer.npz", allow_pickle=False) as answer:
            arrays = dict(answer)
    about = json.loads(str(arrays.pop("about")))
    return Answers(about=about, arrays=arrays)


def _no_reference(request: Mapping[str, Any], log: str) -> ParityError:
    last = (log.strip().splitlines() or ["it was killed"])[-1]
    return ParityError(
        f"The reference for {request['checkpoint']!r} does not run: {last} Expected transformers "
        "to load the checkpoint in float32 and run it. Free memory if it was killed, or build "
        "with --no-validate and validate on a larger machine."
    )
