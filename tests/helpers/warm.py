# SPDX-License-Identifier: Apache-2.0
"""A Python that has imported torch and transformers already: what it runs is a process of its own, forked from it.

A process that imports them takes three seconds of CPU time, and the tests start hundreds. This module is also the
server that forks; `warm_client` takes the place of Python.
"""

import atexit
import functools
import gc
import marshal
import os
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from sharing import made_once
from warm_client import LARGEST

_IMPORTS = (
    "torch",
    "torch.onnx._internal.exporter._core",
    "transformers.masking_utils",
    "transformers.models.llama.modeling_llama",
    "transformers.conversion_mapping",
    "transformers.image_processing_backends",
    "transformers.models.auto.feature_extraction_auto",
    "transformers.models.auto.image_processing_auto",
    "transformers.models.auto.processing_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.auto.video_processing_auto",
    "transformers.models.encoder_decoder.configuration_encoder_decoder",
    "transformers.tokenization_utils_sentencepiece",
    "transformers.video_processing_utils",
    "qeff_zoo.tasks.encoders.reference",
    "qeff_zoo.tasks.multimodal.image_text_to_text",
    "qeff_zoo.tasks.text_generation.reference",
    "qeff_zoo.tasks.text_generation.task",
    "qeff_zoo.validation.reference.process",
    "onnx",
    "onnxruntime",
    "onnxscript.function_libs.torch_lib.ops",
    "tabulate",
)


#: Ends when every process that imported this module, or was forked from one that did, has ended.
_SESSION = os.pipe()


class Warm:
    """Stands in for `sys` where Pythons are started with `-m`, `-c` or a file.

    All processes of a session have one server. The first that needs it starts it.
    """

    @functools.cached_property
    def executable(self) -> str:
        """What to call in place of `sys.executable`."""
        return made_once(
            Path(os.environ["QEFF_ZOO_TEST_CACHE"], "warm-python"), self._start
        ).read_text()

    def _start(self, path: Path) -> None:
        """Start the server, and write the name of its client into a file."""
        folder = Path(tempfile.mkdtemp(prefix="warm-python-"))  # names of sockets are short
        client = folder / "python"
        program = str(Path(__file__).with_name("warm_client.py"))
        start = [sys.executable, "-S", "-E", program, str(folder)]
        client.write_text(f'#!/bin/sh\nexec {shlex.join(start)} "$@"\n')
        client.chmod(0o755)
        self._server = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, str(folder)],
            stdin=_SESSION[0], stdout=subprocess.PIPE,
            env={**os.environ, "TRANSFORMERS_VERBOSITY": "error"},
        )  # fmt: skip
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == b"ready\n"
        path.write_text(str(client))


PYTHON = Warm()


class _Server:
    """Forks for each connection; a connection that ends before its program kills the program."""

    def __init__(self, where: str) -> None:
        self._clients = dict[int, socket.socket]()
        self._selector = selectors.DefaultSelector()
        self._ended, self._wakes = socket.socketpair()
        for one in (self._ended, self._wakes):
            one.setblocking(False)
        signal.set_wakeup_fd(self._wakes.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.bind(where)
        self._listening.listen()
        for source in (sys.stdin, self._ended, self._listening):
            self._selector.register(source, selectors.EVENT_READ)

    def serve(self) -> None:
        """Serve until the session ends, and the standard input with it."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is sys.stdin:
                    return
                if key.fileobj is self._listening:
                    self._start()
                elif key.fileobj is self._ended:
                    self._ended.recv(LARGEST)
                else:
                    self._selector.unregister(key.fileobj)
                    with suppress(ProcessLookupError):
                        os.kill(key.data, signal.SIGKILL)
            self._reap()

    def _start(self) -> None:
        client, _ = self._listening.accept()
        request, files, *_ = socket.recv_fds(client, LARGEST, 3)
        child = os.fork()
        if not child:
            for number, file in enumerate(files):
                os.dup2(file, number)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for one in (self._listening, self._selector, client, *self._clients.values()):
                one.close()
            for file in files:
                os.close(file)
            _become(**marshal.loads(request))
        for file in files:
            os.close(file)
        self._clients[child] = client
        self._selector.register(client, selectors.EVENT_READ, child)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                client = self._clients.pop(found[0])
                with suppress(OSError):
                    client.send(str(os.waitstatus_to_exitcode(found[1])).encode())
                with suppress(KeyError):
                    self._selector.unregister(client)
                client.close()


def read_environment() -> None:
    """Let huggingface_hub read its environment again: each process of tests has a Hub and a home."""
    import importlib

    from huggingface_hub import constants, hf_api

    importlib.reload(constants)
    hf_api.api.endpoint = constants.ENDPOINT


def _become(argv: list[str], environment: dict[str, str], folder: str, executable: str) -> NoReturn:
    """Run a program as Python does, and end."""
    import runpy
    import threading
    import traceback
    import warnings

    import torch

    os.environ.clear()
    os.environ.update(environment)
    read_environment()
    os.chdir(folder)
    sys.executable = executable
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    while argv[0] in ("-u", "-W"):  # what is written is flushed when the program ends
        if argv[0] == "-W":
            warnings.simplefilter(argv[1])  # type: ignore[arg-type]
        argv = argv[1 if argv[0] == "-u" else 2 :]
    kind, *rest = argv
    code: Any = 0
    try:
        sys.argv, sys.path[0] = rest if kind == "-m" else argv, folder
        if kind == "-m":
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        elif kind == "-c":
            sys.argv = ["-c", *rest[1:]]
            exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.path[0] = str(Path(kind).parent)
            runpy.run_path(kind, run_name="__main__")
    except SystemExit as end:
        code = end.code or 0
        if not isinstance(code, int):
            sys.stderr.write(f"{code}\n")
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    for name in _IMPORTS:
        __import__(name)
    # How weights of checkpoints are renamed, which transformers works out for the first that it reads or writes.
    sys.modules["transformers.conversion_mapping"].get_checkpoint_conversion_mapping("")
    gc.freeze()  # no program looks through what was imported here
    for one in [*weakref.finalize._registry]:
        one.atexit = False  # nor does it take apart before its end what ends with it
    _folder = Path(sys.argv[1])
    _listening = _Server(str(_folder / "socket"))
    os.write(1, b"ready\n")
    _listening.serve()
    shutil.rmtree(_folder)
