# SPDX-License-Identifier: Apache-2.0
"""Proxy between a client and a server that keeps requests and replies."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

_TIMEOUT = 120
_HOP = ("host", "connection", "transfer-encoding", "content-length", "accept-encoding")


@dataclass(frozen=True)
class Exchange:
    """A request and its reply.

    Args:
        path: Path of the request.
        body: Body of the request as JSON; None without one.
        status: Status of the reply.
        pieces: Pieces of the reply's body so far.
    """

    path: str
    body: Any
    status: int
    pieces: list[bytes] = field(default_factory=list)

    @property
    def reply(self) -> str:
        """Body of the reply so far."""
        return b"".join(self.pieces).decode()


@contextmanager
def recording(url: str) -> Iterator[tuple[str, list[Exchange]]]:
    """Run a proxy in a thread; yield its base URL, and the list of exchanges that it fills.

    Args:
        url: Base URL of the server.
    """
    exchanges: list[Exchange] = []
    target = urlsplit(url)

    class Handler(BaseHTTPRequestHandler):
        """Handler that passes a request on."""

        def log_message(self, *_: object) -> None:
            """Log nothing."""

        def _pass_on(self) -> None:
            content = self.rfile.read(int(self.headers.get("content-length") or 0))
            given = {
                name: header for name, header in self.headers.items() if name.lower() not in _HOP
            }
            server = http.client.HTTPConnection(str(target.netloc), timeout=_TIMEOUT)
            server.request(self.command, self.path, content or None, given)
            response = server.getresponse()
            exchange = Exchange(self.path, json.loads(content or "null"), response.status)
            exchanges.append(exchange)
            self.send_response(response.status)
            for name, one in response.getheaders():
                if name.lower() not in _HOP:
                    self.send_header(name, one)
            self.end_headers()
            try:
                while piece := response.read1(1 << 16):
                    exchange.pieces.append(piece)
                    self.wfile.write(piece)
                    self.wfile.flush()
            except (BrokenPipeError, ConnectionResetError):
                pass  # the client left
            finally:
                server.close()

        do_GET = do_HEAD = do_POST = _pass_on  # noqa: N815 -- names of the library

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{proxy.server_port}", exchanges
        finally:
            proxy.shutdown()
