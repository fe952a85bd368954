# SPDX-License-Identifier: Apache-2.0
"""Middleware before the endpoints: counts of responses, and checks of API key and body."""

import asyncio
import json
import math
import re
import secrets
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

import numpy as np
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qeff_zoo.errors import BusyError
from qeff_zoo.serving.apis import hub
from qeff_zoo.serving.errors import ApiError, queue_full, too_large
from qeff_zoo.serving.monitoring.metrics import Metrics
from qeff_zoo.serving.queues.accounts import Client, enter
from qeff_zoo.serving.queues.waiting import Bodies

_SCHEME = "bearer "
_MAX_CONTAINERS = 65_536  # lists and objects of a body: Python takes seconds for millions of them
_MAX_MEMBERS = 131_072  # of all objects of a body
_MAX_DEPTH = 100  # of lists and objects within each other; schemas of functions have less than 30
#: Escapes of UTF-16's halves of characters; and any escape, with a half that stands alone as group 1.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F]|(u[dD][89a-fA-F]..)|.)", re.DOTALL
)
#: Numbers that may be infinite in 64 bits.
_LARGE = re.compile(rb"(?<![0-9.])[0-9.]++(?:[eE]\+?[0-9]{3,}+|(?<=[0-9.]{309}))")
_LOOKS = 5  # turns of the event loop in which a connection that the client closed is lost
_SHORT = 1 << 16  # bytes of a body that is checked on the event loop; a thread checks longer ones


class ApiKey:
    """Middleware that requires an API key before any of the body is read.

    Args:
        app: The guarded app.
        keys: Keys, one of which is in `Authorization: Bearer KEY`, or in `X-Api-Key` as in Anthropic's API.
        open_paths: Paths that do not require it.
    """

    def __init__(self, app: ASGIApp, keys: Collection[str], open_paths: Collection[str]) -> None:
        self._app, self._keys, self._open = app, [key.encode() for key in keys], open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "http" and scope["path"] not in self._open:
            headers = Headers(scope=scope)
            given = headers.get("authorization", "")
            is_bearer = given[: len(_SCHEME)].lower() == _SCHEME
            shown = given[len(_SCHEME) :].strip() if is_bearer else headers.get("x-api-key", "")
            # Comparisons in constant time, which reveal no part of a key.
            found = [secrets.compare_digest(shown.encode("latin-1"), key) for key in self._keys]
            if not any(found):
                refusal = ApiError(
                    401,
                    "The API key is missing or wrong; expected the header `Authorization: Bearer KEY` with the key "
                    "that this server was started with. Give it.",
                    code="invalid_api_key",
                )
                await refusal.response(scope["path"])(scope, receive, send)
                return
            enter(Client.of_key(self._keys[found.index(True)]))
        await self._app(scope, receive, send)


class BodyLimit:
    """Middleware that receives a whole body within limits, and passes it on if the client is still connected.

    Args:
        app: App that reads the body.
        most: Maximum size in bytes.
        bodies: Memory of the bodies of all requests.
    """

    def __init__(self, app: ASGIApp, most: int, bodies: Bodies) -> None:
        self._app, self._most, self._bodies = app, most, bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it: immediately if its declared length exceeds the limit."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with self._bodies.one() as grow:
            try:
                body = await self._received(scope, receive, grow)
            except ApiError as refusal:
                await refusal.response(scope["path"])(scope, receive, send)
                return
            if body is None:
                return
            whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
            left = asyncio.ensure_future(_disconnect(receive))

            async def replayed() -> Message:
                return whole.pop() if whole else await asyncio.shield(left)

            try:
                for _ in range(_LOOKS):
                    await asyncio.sleep(0)
                if not left.done():
                    await self._app(scope, replayed, send)
            finally:
                left.cancel()

    async def _received(
        self, scope: Scope, receive: Receive, grow: Callable[[int], None]
    ) -> bytes | None:
        """Return a body; None if the client disconnects before its end."""
        headers = Headers(scope=scope)
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._most:
            raise too_large(f"{self._most:,} bytes")
        body, more = bytearray(), True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            piece = message.get("body", b"")
            if len(body) + len(piece) > self._most:
                raise too_large(f"{self._most:,} bytes")
            body += piece
            try:
                grow(len(piece))
            except BusyError as error:
                raise queue_full(error) from error
            more = message.get("more_body", False)
        # A form has a limited number of fields, and a file.
        if is_form(headers) or hub.is_raw(scope["path"], headers):
            return bytes(body)
        if len(body) > _SHORT:
            return await asyncio.to_thread(_checked_json, bytes(body))
        return _checked_json(bytes(body))


def is_form(headers: Headers) -> bool:
    """Return whether a body is a form by its headers; any other body is JSON, with limits of its own."""
    return headers.get("content-type", "").lower().startswith("multipart/form-data")


async def _disconnect(receive: Receive) -> Message:
    """Wait until a client disconnects, or its response is complete."""
    while (message := await receive())["type"] != "http.disconnect":
        pass
    return message


def _checked_json(body: bytes) -> bytes:
    """Return JSON in UTF-8; refuse what is larger, deeper or of other characters than any valid request, unparsed.

    Raises:
        ApiError: It has too many lists, objects and members of those, they are nested too deeply, a text is not
            Unicode, or a number is not finite.
    """
    encoding = json.detect_encoding(body)
    try:
        text = body.decode(encoding)
    except UnicodeDecodeError as error:
        raise ApiError(
            400,
            f"The body is not Unicode in {encoding}: {error.reason} at byte {error.start:,}; expected JSON in UTF-8. "
            "Correct it.",
            code="invalid_json",
        ) from error
    body = body if encoding == "utf-8" else text.encode()
    del text
    codes = _outside_of_texts(body)
    opened, closed = ((codes == ord(one)) | (codes == ord(other)) for one, other in ("[{", "]}"))
    steps = (opened.astype(np.int8) - closed)[opened | closed]
    if np.cumsum(steps, dtype=np.int32).max(initial=0) > _MAX_DEPTH:
        raise too_large(f"{_MAX_DEPTH} lists and objects within each other")
    if np.count_nonzero(opened) > _MAX_CONTAINERS:
        raise too_large(f"{_MAX_CONTAINERS:,} lists and objects")
    if np.count_nonzero(codes == ord(":")) > _MAX_MEMBERS:
        raise too_large(f"{_MAX_MEMBERS:,} members of objects")
    numbers = codes.tobytes()
    if b"N" in numbers or b"I" in numbers or any(map(_is_infinite, _LARGE.finditer(numbers))):
        raise ApiError(
            400,
            "The body has NaN, Infinity, or a number beyond 1e308; expected finite numbers. Correct it.",
            code="invalid_json",
        )
    _check_escapes(body)
    return body


def _is_infinite(number: re.Match[bytes]) -> bool:
    with suppress(ValueError):  # no number at all, which the reader of JSON refuses
        return not number[0].isdigit() and math.isinf(float(number[0]))
    return False


def _outside_of_texts(body: bytes) -> Any:
    """Return the characters of JSON that are in no text, in a time that does not depend on the number of texts."""
    plain = body.replace(rb"\\", b"  ").replace(
        rb"\"", b"  "
    )  # from left to right, as escapes are read
    codes = np.frombuffer(plain, np.uint8)
    quotes = codes == ord('"')
    return codes[~(np.bitwise_xor.accumulate(quotes) | quotes)]


def _check_escapes(body: bytes) -> None:
    """Refuse escapes of half a character.

    Raises:
        ApiError: There is one.
    """
    if b"\\" not in body or not _SURROGATE.search(body):
        return
    if half := next((one for one in _ESCAPE.finditer(body) if one[1]), None):
        raise ApiError(
            400,
            f"The body has half a character, {half[0].decode(errors='replace')!r}; expected Unicode, in "
            "which \\ud800 to \\udfff come in pairs. Correct the text.",
            code="invalid_json",
        )


class ResponseCount:
    """Middleware that counts responses.

    Args:
        app: The app that responds.
        metrics: Metrics of the server.
        paths: Paths that are counted by name; all others are counted together.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: Collection[str]) -> None:
        self._app, self._metrics, self._paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        if hub.model_of(path) is not None:
            path = hub.COUNTED
        path = path if path in self._paths else "other"

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.count(path, message["status"])
            await send(message)

        await self._app(scope, receive, counted)
