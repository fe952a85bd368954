# SPDX-License-Identifier: Apache-2.0
"""Processes that compile for HTP and simulate it, see `qeff_zoo.targets.qnn_htp.worker`."""

import os
import re
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.program import Array

_COMMAND = (sys.executable, "-m", "qeff_zoo.targets.qnn_htp.worker")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LAST = 2000  # characters of what a process said that a message shows
_PATIENCE = 5  # seconds for a process to end by itself


def compile(arguments: Sequence[str]) -> str | None:
    """Compile in a process of its own.

    Args:
        arguments: Of the worker's command `compile`.

    Returns:
        What it said, if it failed; else None.
    """
    done = subprocess.run(
        [*_COMMAND, "compile", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return None
    said = _COLOURS.sub("", done.stderr + done.stdout).strip()
    return f"{said}\nIt ended with {done.returncode}."


class Simulator:
    """A compiled graph, open in a process of its own, which ends with this object.

    Args:
        graph: Path of the graph that reads the compiled file.
        soc_model: Qualcomm's number of the system on a chip.
        threads: Of the process; None for one per core.

    Raises:
        GenerationError: The process did not open it.
    """

    def __init__(self, graph: Path, soc_model: int, threads: int | None = None) -> None:
        self._graph = graph
        self._said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        ours, theirs = socket.socketpair()
        environment = {**os.environ, **({"OMP_NUM_THREADS": str(threads)} if threads else {})}
        with theirs:
            self._process = subprocess.Popen(
                [*_COMMAND, "run", str(graph), str(soc_model), str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=self._said,
                env=environment,
            )
        self._connection = Connection(ours.detach())
        self._close = weakref.finalize(self, _end, self._connection, self._process)
        self._receive("open")

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Run the graph: all of its inputs by name, then all of its outputs."""
        try:
            self._connection.send(dict(inputs))
        except OSError as error:
            raise self._gone("run") from error
        return cast("Mapping[str, Array]", self._receive("run"))

    def _receive(self, what: str) -> Any:
        try:
            return self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._gone(what) from error

    def _gone(self, what: str) -> GenerationError:
        self._close()
        self._said.seek(0)
        said = _COLOURS.sub("", self._said.read()).strip()[-_LAST:]
        return GenerationError(
            f"The HTP simulator could not {what} {str(self._graph)!r}: its process ended with "
            f"{self._process.returncode}. Expected a package as it was built, and the onnxruntime-qnn that it needs. "
            f"Run `qeff-zoo inspect PACKAGE --verify`; then build it again. It said: {said or 'nothing'}"
        )


def _end(connection: Connection, process: "subprocess.Popen[bytes]") -> None:
    connection.close()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
