# SPDX-License-Identifier: Apache-2.0
"""A plain web server on the loopback, as anybody runs one: no etags, no ranges, no tokens."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class _Handler(SimpleHTTPRequestHandler):
    seen: list[dict[str, str]]

    def do_GET(self) -> None:
        self.seen.append(dict(self.headers))
        super().do_GET()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Serve a folder; give its URL, and the headers of each request."""
    recorded: list[dict[str, str]] = []
    handler = type("Bound", (_Handler,), {"seen": recorded})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients leave when they have seen enough
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", recorded
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
