# SPDX-License-Identifier: Apache-2.0
"""What happens to every request before its endpoint: its response is counted, its key and its size are checked."""

import secrets
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qeff_zoo.serving.errors import ApiError, too_large
from qeff_zoo.serving.metrics import Metrics

_SCHEME = "bearer "


class ApiKey:
    """Lets only those through who have the key, before anything of theirs is read.

    Args:
        app: What it guards.
        key: As in `Authorization: Bearer KEY`.
        prefix: Of the paths that need it.
    """

    def __init__(self, app: ASGIApp, key: str, prefix: str) -> None:
        self._app, self._key, self._prefix = app, key.encode(), prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "http" and scope["path"].startswith(self._prefix):
            given = Headers(scope=scope).get("authorization", "")
            is_bearer = given[: len(_SCHEME)].lower() == _SCHEME
            given_key = given[len(_SCHEME) :].strip().encode("latin-1")
            # In a time that does not tell how much of the key was right.
            if not (secrets.compare_digest(given_key, self._key) and is_bearer):
                refusal = ApiError(
                    401,
                    "The API key is missing or wrong; expected the header `Authorization: Bearer KEY` with the key "
                    "that this server was started with. Give it.",
                    code="invalid_api_key",
                )
                await refusal.response(scope, receive, send)
                return
        await self._app(scope, receive, send)


class BodyLimit:
    """Takes no more of a body than fits.

    Args:
        app: What reads it.
        most: Bytes.
    """

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app, self._most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it: at once where it says how long it is."""
        length = Headers(scope=scope).get("content-length", "") if scope["type"] == "http" else ""
        if length.isdecimal() and int(length) > self._most:
            await too_large().response(scope, receive, send)
            return
        taken = 0

        async def limited() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._most:
                raise HTTPException(413)  # FastAPI takes any other for a body that it cannot parse
            return message

        await self._app(scope, limited, send)


class ResponseCount:
    """Counts responses.

    Args:
        app: What makes them.
        metrics: Where they are counted.
        paths: That are counted by name; all others are one.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: Collection[str]) -> None:
        self._app, self._metrics, self._paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in self._paths else "other"

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.count(path, message["status"])
            await send(message)

        await self._app(scope, receive, counted)
