# SPDX-License-Identifier: Apache-2.0
"""The endpoints: an app of one model for any ASGI server."""

from collections.abc import Collection

from fastapi import APIRouter, FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp

from qeff_zoo.errors import ServingError
from qeff_zoo.runtime import Engine, Session
from qeff_zoo.serving.browsers import AllowedHosts, AllowedOrigins, Hosts
from qeff_zoo.serving.embeddings import EmbeddingQueue
from qeff_zoo.serving.matching import PictureQueue
from qeff_zoo.serving.metrics import CONTENT_TYPE, Metrics
from qeff_zoo.serving.middleware import ApiKey, BodyLimit, Framing, ResponseCount
from qeff_zoo.serving.model import Model
from qeff_zoo.serving.services import API, Offer, Service
from qeff_zoo.serving.tools import ChatFormats
from qeff_zoo.serving.transcriptions import SpeechQueue
from qeff_zoo.serving.waiting import Bodies
from qeff_zoo.tasks import find

from . import adapters, errors

#: Paths that are counted by name.
PATHS = (
    *(f"{API}{name}" for name in ("chat/completions", "completions", "embeddings", "models")),
    *(f"{API}audio/{name}" for name in ("transcriptions", "translations")),
    "/health",
    "/metrics",
)
MAX_BODY_BYTES = 8 << 20
#: The limit of OpenAI's API: 13 minutes of a WAV file, hours of an MP3 file; photographs in base64.
MAX_MEDIA_BYTES = 25 << 20
#: Number of bodies of the largest size that a server holds at a time.
MAX_BODIES = 16


def service_of(session: Session) -> Service:
    """Return the service of a session's task.

    Raises:
        ServingError: OpenAI's API does not cover the task.
    """
    serve = find(session.task).commands.serve
    if serve is None:
        raise ServingError(
            f"Package {str(session.folder)!r} is for task {session.task!r}, which OpenAI's API does not cover; "
            "expected one that generates text, embeds texts or images, or transcribes. Use `qeff-zoo run`."
        )
    service: Service = serve()()
    return service


def create_app(
    backend: Engine | EmbeddingQueue | PictureQueue | SpeechQueue,
    *,
    name: str,
    fingerprint: str,
    api_key: str | None = None,
    image_hosts: Collection[str] = (),
    adapter_sources: adapters.Sources | None = None,
    hosts: Hosts | None = None,
    origins: Collection[str] = (),
    formats: ChatFormats | None = None,
    max_body_bytes: int | None = None,
) -> ASGIApp:
    """Return the app of a model.

    Args:
        backend: Backend of the endpoints; the caller closes it.
        name: Name of the model.
        fingerprint: Fingerprint of the model, as `system_fingerprint`.
        api_key: Key that all paths below /v1 require; None for no key.
        image_hosts: Hosts from which images and videos are fetched for clients, each `HOST` or `HOST:PORT`.
        adapter_sources: Folders and repositories that clients may load adapters from; None for no such endpoints.
        hosts: Names of the server in a `Host` header; None for any.
        origins: Origins of other web pages that may send requests.
        formats: Formats of the model's chats; None for those of its chat templates.
        max_body_bytes: Maximum size of a request's body; None for the default of the model.
    """
    app = FastAPI(openapi_url=None, redirect_slashes=False)
    metrics = Metrics(backend.stats)
    errors.install(app)
    session = backend.session
    service = service_of(session)
    offer = Offer(
        name=name,
        fingerprint=fingerprint,
        metrics=metrics,
        image_hosts=image_hosts,
        adapter_sources=adapter_sources,
        formats=formats or ChatFormats(),
    )
    model, routers = service.mount(backend, offer)
    for router in routers:
        app.include_router(router)
    app.include_router(_models(model))
    app.include_router(_operations(metrics))
    usual = MAX_MEDIA_BYTES if service.takes_files(session) else MAX_BODY_BYTES
    most = usual if max_body_bytes is None else max_body_bytes
    limited = BodyLimit(app, most, Bodies(MAX_BODIES * most))
    guarded: ASGIApp = limited if api_key is None else ApiKey(limited, api_key, API)
    guarded = AllowedOrigins(guarded, origins)
    guarded = guarded if hosts is None else AllowedHosts(guarded, hosts)
    return ResponseCount(Framing(guarded), metrics, PATHS)


def _models(model: Model) -> APIRouter:
    """Return the endpoints that list the model and its adapters."""
    router = APIRouter()

    @router.get(f"{API}models")
    async def models() -> Response:
        every = [None, *(model.adapters or ())]
        return JSONResponse({"object": "list", "data": [model.described(one) for one in every]})

    @router.get(f"{API}models/{{name:path}}")
    async def one(name: str) -> Response:
        return JSONResponse(model.described(model.check(name)))

    return router


def _operations(metrics: Metrics) -> APIRouter:
    """Return the endpoints for the operator of the server."""
    router = APIRouter()

    @router.api_route("/health", methods=["GET", "HEAD"])
    async def health() -> Response:
        return JSONResponse({"status": "ok"})

    @router.api_route("/metrics", methods=["GET", "HEAD"])
    async def figures() -> Response:
        return PlainTextResponse(metrics.text(), media_type=CONTENT_TYPE)

    return router
