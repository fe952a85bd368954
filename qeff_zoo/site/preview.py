# SPDX-License-Identifier: Apache-2.0
"""Web server of a site for this machine alone, to look at it before it is published."""

from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from qeff_zoo.errors import ServingError

_HOST = "127.0.0.1"


class _Handler(SimpleHTTPRequestHandler):
    """Files of a folder; pages also without their suffix, as many web servers have them."""

    def translate_path(self, path: str) -> str:
        translated = super().translate_path(path)
        page = f"{translated}.html"
        return page if not Path(translated).exists() and Path(page).is_file() else translated

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def serve(folder: Path, port: int, announce: Callable[[str], None]) -> None:
    """Serve a folder until it is interrupted.

    Args:
        folder: Folder of the site.
        port: Port of the loopback address; 0 for any free one.
        announce: Function of the URL, called when the server listens.

    Raises:
        ServingError: The port cannot be used.
    """
    handler = partial(_Handler, directory=str(folder))
    try:
        server = ThreadingHTTPServer((_HOST, port), handler)
    except (OSError, OverflowError) as error:
        raise ServingError(
            f"Cannot listen on port {port} of {_HOST}: {error}. Expected a free port. Choose another one with --port, "
            "or 0 for any free one."
        ) from error
    with server:
        announce(f"http://{_HOST}:{server.server_address[1]}/")
        server.serve_forever()
