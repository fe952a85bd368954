# SPDX-License-Identifier: Apache-2.0
"""The page at `/`: files of `static/`, served without a key; what the page sends has the key of its user."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from fastapi.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

_FOLDER = Path(__file__).parents[1] / "static"
#: Media types of the page's files by their suffixes.
_TYPES: Mapping[str, str] = MappingProxyType(
    {
        ".html": "text/html",
        ".css": "text/css",
        ".js": "text/javascript",
        ".mjs": "text/javascript",
        ".woff2": "font/woff2",
    }
)
#: Files of the page by their paths. `vendor/` holds files of others.
_FILES: Mapping[str, Path] = MappingProxyType(
    {
        "/": _FOLDER / "index.html",
        **{
            f"/page/{path.relative_to(_FOLDER).as_posix()}": path
            for path in sorted(_FOLDER.rglob("*"))
            if path.suffix in _TYPES and path.name != "index.html"
        },
    }
)
PAGE_PATHS = tuple(_FILES)
#: The page runs its own files alone, sends requests to its own server alone, and makes no HTML of text.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; connect-src 'self'; img-src data:; "
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
            path: Response(file.read_bytes(), media_type=_TYPES[file.suffix], headers=_HEADERS)
            for path, file in _FILES.items()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a file of the page, or pass a request on."""
        is_read = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        found = self._responses.get(scope["path"]) if is_read else None
        await (found or self._app)(scope, receive, send)
