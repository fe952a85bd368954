# SPDX-License-Identifier: Apache-2.0
"""The page at `/`: files of `static/`, served without a key; what the page sends has the key of its user."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from fastapi.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

_FOLDER = Path(__file__).with_name("static")
#: Files of the page with their media types, by their paths.
_FILES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "/": ("index.html", "text/html"),
        "/page/page.css": ("page.css", "text/css"),
        "/page/page.js": ("page.js", "text/javascript"),
        "/page/requests.js": ("requests.js", "text/javascript"),
        "/page/markdown.js": ("markdown.js", "text/javascript"),
    }
)
PAGE_PATHS = tuple(_FILES)
#: The page runs its own files alone, sends requests to its own server alone, and makes no HTML of text.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "media-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = MappingProxyType(
    {
        "Cache-Control": "no-cache",
        "Content-Security-Policy": _POLICY,
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
    }
)


class Page:
    """Middleware that serves the page.

    Args:
        app: App for all other paths.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._responses = {
            path: Response((_FOLDER / name).read_bytes(), media_type=kind, headers=_HEADERS)
            for path, (name, kind) in _FILES.items()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a file of the page, or pass a request on."""
        is_read = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        found = self._responses.get(scope["path"]) if is_read else None
        await (found or self._app)(scope, receive, send)
