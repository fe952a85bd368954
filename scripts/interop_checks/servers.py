# SPDX-License-Identifier: Apache-2.0
"""Servers in threads of this process, one for each test, whose packages stay open."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from interop_checks.packages import package
from qeff_zoo import serving
from qeff_zoo.runtime import TextGenerationSession, open_session
from qeff_zoo.runtime.chat_template import ChatTemplate
from qeff_zoo.serving.app import create_app, service_of
from qeff_zoo.serving.browsers import Hosts
from qeff_zoo.serving.server import Server, url_of

_STARTED = 60.0
#: Maximum number of generated tokens, whatever a test sets: a small model seldom ends by itself.
_LONGEST = 256


class Backends:
    """Open packages of the checks.

    Args:
        cache_folder: Folder of the checkpoints.
    """

    def __init__(self, cache_folder: Path) -> None:
        self._cache, self._stack = cache_folder, ExitStack()
        self._open: dict[str, Any] = {}

    def get(self, name: str) -> Any:
        """Return the backend of a package, opened at first use.

        Args:
            name: Name of the package.
        """
        if name not in self._open:
            session: Any = open_session(package(name, self._cache), threads=1)
            if isinstance(session, TextGenerationSession):
                _shorten(session)
            options = serving.ServerOptions(name=name, fingerprint="")
            self._open[name] = self._stack.enter_context(service_of(session).open(session, options))
        return self._open[name]

    def close(self) -> None:
        """Close all."""
        self._stack.close()

    @contextmanager
    def running(
        self,
        package_name: str,
        *,
        template: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        **options: Any,
    ) -> Iterator[str]:
        """Run a server in a thread; yield its base URL.

        Args:
            package_name: Name of the package.
            template: Chat template; None for the package's.
            host: Address.
            port: Port number; 0 for any.
            options: Arguments of `create_app`, without `hosts`.
        """
        backend = self.get(package_name)
        if template is not None:
            special = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
            backend.session.chat_template = ChatTemplate(template, special)
        with _bound(host, port) as listener:
            app = create_app(backend, hosts=Hosts.of(host), **options)
            ready = threading.Event()
            server = Server(app, lambda: None, 0, lambda _: ready.set())
            thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
            thread.start()
            assert ready.wait(_STARTED)
            try:
                yield url_of(listener)
            finally:
                server.should_exit = True
                thread.join(_STARTED)


def _shorten(session: TextGenerationSession) -> None:
    limit = session._limit

    def shorter(*tokens: Any, **options: Any) -> int:
        return min(_LONGEST, limit(*tokens, **options))

    session._limit = shorter  # type: ignore[method-assign]


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    with serving.bind(host, port) as listener:
        yield listener
