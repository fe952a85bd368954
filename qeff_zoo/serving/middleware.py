# SPDX-License-Identifier: Apache-2.0
"""What happens to every request before its endpoint: it is counted, and its framing, key and body are checked."""

import re
import secrets
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qeff_zoo.serving.errors import ApiError, too_large
from qeff_zoo.serving.metrics import Metrics

_SCHEME = "bearer "
_MAX_CONTAINERS = 200_000  # lists and objects of a body: Python takes seconds for millions of them
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)  # also one without an end


class Framing:
    """Refuses requests whose end a proxy may see elsewhere: they say in two ways how long they are.

    Args:
        app: What it guards.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it and end its connection."""
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            if "content-length" in headers and "transfer-encoding" in headers:
                refusal = ApiError(
                    400,
                    "The request has the headers Content-Length and Transfer-Encoding; expected one of them. Leave one "
                    "out.",
                    code="invalid_body",
                ).response
                refusal.headers["Connection"] = "close"
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


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
    """Takes a whole body, and no more than fits.

    Args:
        app: What reads it.
        most: Bytes.
    """

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app, self._most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it: at once where it says how long it is."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = too_large(f"{self._most:,} bytes").response
        length = Headers(scope=scope).get("content-length", "")
        if length.isdecimal() and int(length) > self._most:
            await refusal(scope, receive, send)
            return
        # A form has fields, of which there is a limit, and a file.
        kind = Headers(scope=scope).get("content-type", "")
        is_json = not kind.lower().startswith("multipart/form-data")
        body, more = bytearray(), True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self._most:
                await refusal(scope, receive, send)
                return
        if is_json and _is_manifold(body):
            most = f"{_MAX_CONTAINERS:,} lists and objects"
            await too_large(most).response(scope, receive, send)
            return
        whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replayed() -> Message:
            return whole.pop() if whole else await receive()

        await self._app(scope, replayed, send)


def _is_manifold(body: bytearray) -> bool:
    """Tell whether JSON has more lists and objects than a request can mean."""

    def count(text: bytes | bytearray) -> int:
        return text.count(b"[") + text.count(b"{")

    return count(body) > _MAX_CONTAINERS and count(_STRING.sub(b"", body)) > _MAX_CONTAINERS


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
