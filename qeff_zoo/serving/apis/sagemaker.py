# SPDX-License-Identifier: Apache-2.0
"""SageMaker's endpoint `/invocations`, as in vLLM: the fields of a body select another endpoint."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import Response
from starlette.types import Message, Receive, Scope, Send

from qeff_zoo.serving.errors import ApiError, brief

_ENCODERS = ("/v1/embeddings", "/classify", "/pooling")
#: Endpoints by a field of the body, of which the first that the model has is used.
_ENDPOINTS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "messages": ("/v1/chat/completions", *_ENCODERS),
        "prompt": ("/v1/completions",),
        "input": (*_ENCODERS, "/v1/responses"),
        "query": ("/rerank",),
        **dict.fromkeys(("queries", "text_1", "data_1"), ("/score",)),
    }
)


class _Forwarded(Response):
    """Response of another endpoint.

    Args:
        app: The app of both.
        path: Path of the endpoint.
        content: Body of the request.
    """

    def __init__(self, app: FastAPI, path: str, content: bytes) -> None:
        super().__init__()
        self._app, self._path, self._content = app, path, content

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        sent: list[Message] = [{"type": "http.request", "body": self._content, "more_body": False}]

        async def replayed() -> Message:
            return sent.pop() if sent else await receive()

        other = {**scope, "path": self._path, "raw_path": self._path.encode()}
        await self._app.router(other, replayed, send)


def routes(app: FastAPI, others: Sequence[APIRouter]) -> APIRouter:
    """Return the endpoint; none for a model without an endpoint that a body can select.

    Args:
        app: App of the model.
        others: Other endpoints.
    """
    router = APIRouter()
    known = {getattr(route, "path", "") for one in others for route in one.routes}
    paths = {
        name: path
        for name, several in _ENDPOINTS.items()
        if (path := next((one for one in several if one in known), None))
    }
    if not paths:
        return router

    @router.post("/invocations")
    async def invocations(request: Request, body: dict[str, Any]) -> Response:
        path = next((path for name, path in paths.items() if name in body), None)
        if path is None:
            raise ApiError(
                400,
                f"The body has the fields {brief([*body])}, which select no endpoint of this model; expected one of "
                f"{', '.join(paths)}. Add it, or use the path of an endpoint.",
                code="invalid_body",
            )
        return _Forwarded(app, path, await request.body())

    return router
