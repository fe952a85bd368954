# SPDX-License-Identifier: Apache-2.0
"""Requests to the reference, which runs in a process of its own, and its answers."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from qeff_zoo.errors import ParityError
from qeff_zoo.validation.judgement.parity import Array, in_common
from qeff_zoo.validation.reference.preloaded import Forked, Server
from qeff_zoo.validation.trial.package_runner import Key
from qeff_zoo.validation.trial.phases import Progress, expect

_START = "qeff_zoo.validation.reference"  # starts a module


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Answers of the reference: see `qeff_zoo.validation.reference.process`.

    Args:
        about: The model's class, versions, what the damage of each canary was, and the greedy continuation.
        arrays: `variant.sequence` -> (positions, values); of a run of the package `variant.sequence.run`, where the
            reference follows the package's selections.
    """

    about: Mapping[str, Any]
    arrays: Mapping[str, Array]

    def answered(self, variant: str, keys: Sequence[Key]) -> list[int]:
        """Return the indices of the questions that a variant answered, which may have read beginnings alone."""
        counts = {
            number: len(self.arrays[f"{variant}.{number}"])
            for number in {one for one, _, _ in keys}
        }
        return [place for place, (number, index, _) in enumerate(keys) if index < counts[number]]

    def at(self, variant: str, keys: Sequence[Key]) -> Array:
        """Return a variant's answers to some questions."""
        arrays = []
        for number, index, run in keys:
            name = f"{variant}.{number}"
            arrays.append(self.arrays.get(f"{name}.{run}", self.arrays[name])[index])
        return np.stack(arrays)

    def all(self, variant: str) -> Array:
        """Return all answers of a variant."""
        names = [name.split(".") for name in self.arrays]
        answers = [name for name in names if name[0] == variant and len(name) == 2]
        return np.concatenate([self.arrays[".".join(name)] for name in answers])

    def beside(self, variant: str, other: str) -> tuple[Array, Array]:
        """Return the answers of two variants to the questions that both answered."""
        names = [name for name in self.arrays if name.count(".") == 1]
        numbers = [name.partition(".")[2] for name in names if name.startswith(f"{variant}.")]
        return in_common(
            *([self.arrays[f"{one}.{number}"] for number in numbers] for one in (variant, other))
        )

    def has(self, variant: str) -> bool:
        """Whether a variant was run."""
        return f"{variant}.0" in self.arrays


class Reference:
    """A process that answers one request; meanwhile it imports its libraries, which takes seconds.

    Args:
        threads: CPU threads; None for one per physical core.
        module: Module of the process.
        server: Server that forks the process, which then has imported its libraries; None for a new Python.
    """

    def __init__(
        self,
        threads: int | None,
        module: str = "qeff_zoo.validation.reference.process",
        server: Server | None = None,
    ) -> None:
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
        if threads is not None:
            environment["OMP_NUM_THREADS"] = str(threads)
        with ExitStack() as opened:
            name = opened.enter_context(tempfile.TemporaryDirectory(prefix="qeff-reference-"))
            self._folder = Path(name)
            log = opened.enter_context((self._folder / "log").open("wb"))
            self._process: subprocess.Popen[bytes] | Forked
            if server:
                self._process = server.start(self._folder, log, environment)
            else:
                self._process = opened.enter_context(
                    subprocess.Popen(
                        [
                            sys.executable,
                            "-W",
                            "ignore",
                            "-m",
                            _START,
                            module,
                            "answer.npz",
                            "arrays.npz",
                        ],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=log,
                        env=environment,
                        cwd=self._folder,
                    )
                )
            opened.callback(self._process.kill)
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def run(
        self,
        request: Mapping[str, Any],
        step: Progress,
        arrays: Mapping[str, Array] = MappingProxyType({}),
    ) -> Answers:
        """Send the request and wait for the answers.

        Args:
            request: Request for the module.
            step: Callback after every call.
            arrays: Arrays of the request.

        Raises:
            ParityError: The process fails.
        """
        np.savez(self._folder / "arrays.npz", allow_pickle=False, **arrays)
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError), process.stdin as stdin:
            stdin.write(json.dumps(request).encode())
        for line in process.stdout:  # see `runs.tick` and `runs.announce`
            word, _, amount = line.decode().strip().rpartition(" ")
            (partial(expect, step) if word else step)(int(amount))
        if code := process.wait():
            log = (self._folder / "log").read_text(encoding="utf-8", errors="replace")
            raise _no_reference(request, log, code)
        with np.load(self._folder / "answer.npz", allow_pickle=False) as answer:
            content = dict(answer)
        about = json.loads(str(content.pop("about")))
        return Answers(about=about, arrays=content)


def _no_reference(request: Mapping[str, Any], log: str, code: int) -> ParityError:
    """Explain the end of the process.

    Args:
        request: Request of the reference process.
        log: Standard error of the process.
        code: Exit code of the process; below 0 the signal that ended it.
    """
    if code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        reason = "its process was killed, as the kernel does where memory runs out."
    elif code < 0:
        reason = f"its process ended with {signal.Signals(-code).name}."
    else:
        reason = (log.strip().splitlines() or [f"its process ended with {code}."])[-1]
    return ParityError(
        f"The reference for {request['checkpoint']!r} does not run: {reason} Expected transformers to load the "
        "checkpoint in float32, 4 bytes for each parameter, and run it. Free memory if it was killed, or build "
        "with --no-validate and validate on a larger machine."
    )
