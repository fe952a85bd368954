# SPDX-License-Identifier: Apache-2.0
"""Processes that compile for HTP and simulate it, see `qeff_zoo.targets.qnn_htp.worker`."""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, cast

from qeff_zoo.errors import CompileError, GenerationError
from qeff_zoo.runtime.program import Array
from qeff_zoo.targets import engines

_COMMAND = (sys.executable, "-m", "qeff_zoo.targets.qnn_htp.worker")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LISTED = re.compile(r"Unsupported nodes in QNN EP: (.*)")
_REFUSED = re.compile(r"{ name: ([^,]*), type: (\w+) }")
_SHOWN = 5  # refused operators that a message lists
_LAST = 2000  # characters of what a process said that a message shows
_PATIENCE = 5  # seconds for a process to end by itself


def compile(arguments: Sequence[str]) -> None:
    """Compile in a process of its own.

    Args:
        arguments: Arguments of the worker's command `compile`.

    Raises:
        CompileError: The compiler refused ops of the graph, or failed.
    """
    done = subprocess.run(
        [*_COMMAND, "compile", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return
    stderr = _COLOURS.sub("", done.stderr)
    refused = dict(_REFUSED.findall("".join(_LISTED.findall(stderr))))
    if refused:
        modules = json.loads(done.stdout.splitlines()[0])
        counts = Counter((kind, modules.get(name, "")) for name, kind in refused.items())
        listed = [f"{kind} in {module or 'no module'!r}" for kind, module in counts]
        more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
        raise CompileError(
            f"HTP's compiler refuses {len(refused)} of the operators: {', '.join(listed[:_SHOWN])}{more}. Expected "
            "such as run on HTP. Build the model for another --target, or put the operator differently in "
            "qeff_zoo/targets/qnn_htp/rewrites.py."
        )
    how, advice = engines.end(done.returncode, stderr, Path(arguments[0]))
    raise CompileError(
        f"HTP's compiler {how}. Expected a compiled graph. {advice} Or build the model for another --target. It said: "
        f"{stderr.strip()[-_LAST:] or 'nothing'}"
    )


class Simulator:
    """A compiled graph, open in a process of its own, which ends with this object.

    Args:
        graph: Path of the graph that reads the compiled file.
        soc_model: Qualcomm's number of the system on a chip.
        threads: Threads of the process; None for one per core.

    Raises:
        GenerationError: The process did not open it.
    """

    def __init__(self, graph: Path, soc_model: int, threads: int | None = None) -> None:
        self._graph = graph
        self._stderr = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        ours, remote = socket.socketpair()
        environment = {**os.environ, **({"OMP_NUM_THREADS": str(threads)} if threads else {})}
        with remote:
            self._process = subprocess.Popen(
                [*_COMMAND, "run", str(graph), str(soc_model), str(remote.fileno())],
                pass_fds=(remote.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=self._stderr,
                stderr=self._stderr,
                env=environment,
            )
        self._connection = Connection(ours.detach())
        self._close = weakref.finalize(self, _end, self._connection, self._process, self._stderr)
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
        _stop(self._connection, self._process)
        self._stderr.seek(0)
        stderr = _COLOURS.sub("", self._stderr.read()).strip()[-_LAST:]
        self._close()
        return GenerationError(
            f"The HTP simulator could not {what} {str(self._graph)!r}: its process ended with "
            f"{self._process.returncode}. Expected a package as it was built, and the onnxruntime-qnn that it needs. "
            f"Run `qeff-zoo inspect PACKAGE --verify`; then build it again. It said: {stderr or 'nothing'}"
        )


def _end(connection: Connection, process: "subprocess.Popen[bytes]", stderr: IO[str]) -> None:
    _stop(connection, process)
    stderr.close()


def _stop(connection: Connection, process: "subprocess.Popen[bytes]") -> None:
    """End a process: close its input, then kill it if it still runs."""
    connection.close()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
