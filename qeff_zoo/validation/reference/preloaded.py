# SPDX-License-Identifier: Apache-2.0
"""References that need not import torch and transformers: each is forked from a process that did.

    python -m qeff_zoo.validation.reference.preloaded SOCKET

The process imports what the reference imports, and nothing else of ours. For each request it forks: the child is the
reference, in a process of its own, as `qeff_zoo.validation.reference.process` describes. It ends with its standard
input, and a child ends with its connection.
"""

import functools
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, NoReturn

_LARGEST = 1 << 18  # bytes of an environment


class Forked:
    """A reference that a server forked, with the attributes of `subprocess.Popen` that its client uses.

    Args:
        stdin: Standard input of the process.
        stdout: Standard output of the process.
        connection: Connection to it, over which it sends its exit code.
    """

    def __init__(self, stdin: IO[bytes], stdout: IO[bytes], connection: socket.socket) -> None:
        self.stdin, self.stdout, self._connection = stdin, stdout, connection

    def wait(self) -> int:
        """Wait for its end; return its exit code, or that of a killed process if it sent none."""
        try:
            code = self._connection.recv(16)
        except OSError:
            code = b""
        return int(code) if code else -signal.SIGKILL

    def kill(self) -> None:
        """End it, if it still runs."""
        for one in (self.stdin, self.stdout, self._connection):
            one.close()


class Server:
    """A process that has imported what references import; it ends with this one."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="qeff-preloaded-")
        self._where = str(Path(self._folder.name, "socket"))
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", __name__, self._where],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"},
        )

    @property
    def is_alive(self) -> bool:
        """Whether it can fork a reference."""
        return self._process.poll() is None

    def start(self, folder: Path, log: IO[bytes], environment: Mapping[str, str]) -> Forked:
        """Fork a reference.

        Args:
            folder: Working folder of the process.
            log: Destination of its standard error.
            environment: Environment of the process.
        """
        assert self._process.stdout is not None
        if not Path(self._where).exists():
            self._process.stdout.readline()  # it is ready, or gone
        (source, stdin), (stdout, output) = os.pipe(), os.pipe()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _LARGEST)
        connection.connect(self._where)
        message = json.dumps({"folder": str(folder), "environment": dict(environment)}).encode()
        socket.send_fds(connection, [message], [source, output, log.fileno()])
        os.close(source)
        os.close(output)
        return Forked(os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb"), connection)


@functools.cache
def _server() -> list[Server]:
    return []


def shared() -> Server:
    """Return the server of this process, which starts at the first call."""
    servers = _server()
    if not servers or not servers[-1].is_alive:
        servers[:] = [Server()]
    return servers[-1]


# --- the server ---------------------------------------------------------------------------------


def _serve(where: str) -> None:
    """Fork a reference for each connection until the standard input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the children are not waited for
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(where)
        listening.listen()
        os.write(1, b"ready\n")
        while True:
            ready, _, _ = select.select([sys.stdin.fileno(), listening.fileno()], [], [])
            if sys.stdin.fileno() in ready:
                return
            client, _ = listening.accept()
            message, files, *_ = socket.recv_fds(client, _LARGEST, 3)
            if os.fork() == 0:
                listening.close()
                _become(client, files, **json.loads(message))
            for file in files:
                os.close(file)
            client.close()


def _become(
    client: socket.socket, files: list[int], folder: str, environment: dict[str, str]
) -> NoReturn:
    """Be the reference, and end."""
    import torch

    from qeff_zoo.validation.reference import process

    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    if threads := environment.get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(threads))
    threading.Thread(target=_end_with, args=(client,), daemon=True).start()
    code = 1
    try:
        process.main(["answer.npz", "arrays.npz"])
        code = 0
    finally:
        if code:
            sys.excepthook(*sys.exc_info())
        sys.stdout.flush()
        sys.stderr.flush()
        client.send(str(code).encode())
        os._exit(code)


def _end_with(client: socket.socket) -> None:
    """End this process when its client is gone."""
    if not client.recv(1):
        os._exit(1)


if __name__ == "__main__":
    import transformers.generation
    import transformers.modeling_utils  # noqa: F401 -- most of what models import

    import qeff_zoo.validation.reference.process  # noqa: F401

    gc.freeze()  # a fork's collections visit its own objects alone, and copy no page
    _serve(sys.argv[1])
