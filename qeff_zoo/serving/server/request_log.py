# SPDX-License-Identifier: Apache-2.0
"""Names of requests in the header `X-Request-Id`, and a log with one line for each request, without its content."""

import json
import re
import sys
import time
import uuid
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qeff_zoo.serving.monitoring import request_usage
from qeff_zoo.serving.monitoring.request_usage import RequestUsage
from qeff_zoo.serving.server.options import RequestLog
from qeff_zoo.terminal.sanitize import shortened

_NAME = re.compile(r"[\x21-\x7e]{1,128}")
_LEFT = 499  # status of a request whose client left before the response


class RequestNames:
    """Middleware that names each request, by its client's name or a new one, and logs it at its end.

    Args:
        app: The app that responds.
        log: Form of the lines on stderr; "none" for no lines.
        quiet_paths: Paths whose successful requests have no line.
    """

    def __init__(self, app: ASGIApp, log: RequestLog, quiet_paths: Collection[str] = ()) -> None:
        self._app, self._log, self._quiet = app, log, quiet_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        name = given if _NAME.fullmatch(given) else uuid.uuid4().hex
        begun, status = time.perf_counter(), _LEFT
        usage = request_usage.begin(name)

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = name
            await send(message)

        try:
            await self._app(scope, receive, named)
        finally:
            if self._log != "none" and not (status < 400 and scope["path"] in self._quiet):
                seconds = time.perf_counter() - begun
                sys.stderr.write(f"{self._line(scope, name, status, seconds, usage)}\n")

    def _line(
        self, scope: Scope, name: str, status: int, seconds: float, usage: RequestUsage
    ) -> str:
        client = scope.get("client") or ("", 0)
        fields: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "client": client[0],
            "method": scope["method"],
            "path": shortened(scope["path"]),
            "status": status,
            "seconds": round(seconds, 3),
            "request_id": name,
        }
        if self._log == "json":
            return json.dumps({**fields, **usage.fields()})
        fields |= {key: f"{key}={shortened(str(one))}" for key, one in usage.fields().items()}
        return " ".join(map(str, fields.values()))
