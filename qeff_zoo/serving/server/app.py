# SPDX-License-Identifier: Apache-2.0
"""The endpoints: an app of one model for any ASGI server."""

from collections.abc import Callable, Collection
from functools import cache
from typing import TYPE_CHECKING

from fastapi import APIRouter, FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp

from qeff_zoo.contract import NAMES, find
from qeff_zoo.errors import ServingError
from qeff_zoo.runtime import Engine
from qeff_zoo.serving import errors
from qeff_zoo.serving.apis import hub, sagemaker
from qeff_zoo.serving.apis.ollama import endpoints as ollama
from qeff_zoo.serving.apis.vllm import adapters, tokens
from qeff_zoo.serving.monitoring.metrics import CONTENT_TYPE, Metrics
from qeff_zoo.serving.queues.accounts import Addresses
from qeff_zoo.serving.queues.waiting import Bodies
from qeff_zoo.serving.requests.leniency import Leniency, Lenient
from qeff_zoo.serving.requests.model import Model
from qeff_zoo.serving.requests.tools import ChatFormats
from qeff_zoo.serving.server.browsers import AllowedHosts, AllowedOrigins, Hosts
from qeff_zoo.serving.server.middleware import ApiKey, BodyLimit, ResponseCount
from qeff_zoo.serving.server.options import RequestLog
from qeff_zoo.serving.server.outbox import Outbox
from qeff_zoo.serving.server.page import PAGE_PATHS, Page
from qeff_zoo.serving.server.request_log import RequestNames
from qeff_zoo.serving.server.services import API, Backend, Offer, Service
from qeff_zoo.sessions import Session
from qeff_zoo.versions import installed

if TYPE_CHECKING:
    from qeff_zoo.serving.monitoring.traces import Traces

#: Paths of endpoints, besides those of a task.
_PATHS = (
    *(f"{API}{name}" for name in ("chat/completions", "completions", "models")),
    *(f"{API}{name}" for name in ("responses", "conversations", "messages")),
    *(f"{API}{name}/input_tokens" for name in ("chat/completions", "responses")),
    f"{API}messages/count_tokens",
    *adapters.paths(API),
    *(
        "/tokenize",
        "/apply-template",
        "/detokenize",
        f"{API}tokenize",
        f"{API}detokenize",
        "/tokenizer_info",
        "/infill",
        "/invocations",
        "/version",
        "/openapi.json",
    ),
    *ollama.PATHS,
    hub.COUNTED,
    "/health",
    "/ping",
    "/metrics",
    *PAGE_PATHS,
)
#: Paths that require no key.
OPEN_PATHS = ("/health", "/ping", "/metrics")
MAX_BODY_BYTES = 8 << 20
#: The limit of OpenAI's API: 13 minutes of a WAV file, hours of an MP3 file; photographs in base64.
MAX_MEDIA_BYTES = 25 << 20
#: Number of bodies of the largest size that a server holds at a time.
MAX_BODIES = 16


@cache
def known_paths() -> frozenset[str]:
    """Return the paths of endpoints, those of every task included; other paths are counted together."""
    of_tasks = (path for name in NAMES for path in find(name).commands.serve_paths)
    return frozenset((*_PATHS, *of_tasks))


def service_of(session: Session) -> Service:
    """Return the service of a session's task.

    Raises:
        ServingError: OpenAI's API does not cover the task.
    """
    serve = find(session.task).commands.serve
    if serve is None:
        raise ServingError(
            f"Package {str(session.folder)!r} is for task {session.task!r}, which OpenAI's API does not cover; "
            "expected one that generates text, encodes texts or images, estimates depth, detects objects, or "
            "transcribes. Use `qeff-zoo run`."
        )
    service: Service = serve()()
    return service


def body_bytes_of(session: Session) -> int:
    """Return the maximum size of a request's body for a session, which depends on whether it has files."""
    return MAX_MEDIA_BYTES if service_of(session).takes_files(session) else MAX_BODY_BYTES


def ctx_len_of(backend: Backend) -> int | None:
    """Return the length of the context of a backend; None if it generates no text."""
    return backend.session.decoder.sizes.ctx_len if isinstance(backend, Engine) else None


def create_app(
    backend: Backend,
    *,
    name: str,
    fingerprint: str,
    aliases: tuple[str, ...] = (),
    api_keys: Collection[str] = (),
    image_hosts: Collection[str] = (),
    adapter_sources: adapters.Sources | None = None,
    hosts: Hosts | None = None,
    origins: Collection[str] = (),
    formats: ChatFormats | None = None,
    max_body_bytes: int | None = None,
    request_log: RequestLog = "none",
    page: bool = True,
    strict_parameters: bool = False,
    shares_prefixes: bool = False,
    quiet_paths: Collection[str] = (),
    traces: "Traces | None" = None,
) -> ASGIApp:
    """Return the app of a model.

    Args:
        backend: Backend of the endpoints; the caller closes it.
        name: Name of the model.
        fingerprint: Fingerprint of the model, as `system_fingerprint`.
        aliases: Further names of the model.
        api_keys: Keys, one of which all paths but `OPEN_PATHS` require; none for no key.
        image_hosts: Hosts from which images and videos are fetched for clients, each `HOST` or `HOST:PORT`.
        adapter_sources: Folders and repositories that clients may load adapters from; None for no such endpoints.
        hosts: Names of the server in a `Host` header; None for any.
        origins: Origins of other web pages that may send requests.
        formats: Formats of the model's chats; None for those of its chat templates.
        max_body_bytes: Maximum size of a request's body; None for the default of the model.
        request_log: Form of the lines on stderr, one for each request; "none" for no lines.
        page: Whether the server has a page for people.
        strict_parameters: Whether parameters and tools that change nothing are refused.
        shares_prefixes: Whether clients with different keys share the prefix cache.
        quiet_paths: Paths whose successful requests have no line in the log.
        traces: Traces of the requests; None for none.
    """
    metrics = Metrics(backend.stats, name, ctx_len_of(backend), traces)
    offer = Offer(
        name=name,
        aliases=aliases,
        fingerprint=fingerprint,
        metrics=metrics,
        image_hosts=image_hosts,
        adapter_sources=adapter_sources,
        formats=formats or ChatFormats(),
        strict_parameters=strict_parameters,
        shares_prefixes=shares_prefixes,
    )
    app = guarded(
        endpoints(backend, offer)[0],
        body_bytes_of(backend.session) if max_body_bytes is None else max_body_bytes,
        api_keys=api_keys,
        hosts=hosts,
        origins=origins,
        request_log=request_log,
        page=page,
        quiet_paths=quiet_paths,
        traces=traces,
    )
    return ResponseCount(app, metrics, known_paths())


def endpoints(backend: Backend, offer: Offer) -> tuple[FastAPI, Model]:
    """Return the endpoints of a model, without the checks of a server, and its description.

    Args:
        backend: Backend of the endpoints; the caller closes it.
        offer: Name of the model, and the permissions of clients.
    """
    app = FastAPI(
        title="qeff-zoo",
        version=installed("qeff-zoo") or "0",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    errors.install(app)
    app.add_middleware(
        Lenient, leniency=Leniency(offer.metrics.count_ignored, offer.strict_parameters)
    )
    session = backend.session
    model, routers = service_of(session).mount(backend, offer)
    for router in routers:
        app.include_router(router)
    app.include_router(_models(model))
    app.include_router(ollama.catalog(model.listed, lambda _: model.template))
    if hasattr(session, "tokenizer"):
        app.include_router(tokens.routes(API, session, model))
    app.include_router(sagemaker.routes(app, routers))
    app.include_router(operations(offer.metrics.text))
    return app, model


def guarded(
    app: ASGIApp,
    max_body_bytes: int,
    *,
    api_keys: Collection[str],
    hosts: Hosts | None,
    origins: Collection[str],
    request_log: RequestLog,
    page: bool,
    quiet_paths: Collection[str] = (),
    traces: "Traces | None" = None,
) -> ASGIApp:
    """Return an app behind the checks of a server; for the arguments see `create_app`."""
    app = BodyLimit(app, max_body_bytes, Bodies(MAX_BODIES * max_body_bytes))
    app = Outbox(ollama.JsonBodies(app))
    app = ApiKey(app, api_keys, OPEN_PATHS) if api_keys else app
    app = Page(app) if page else app
    app = AllowedOrigins(app, origins)
    app = app if hosts is None else AllowedHosts(app, hosts)
    app = Addresses(app)
    app = traces.continued(app) if traces else app
    return RequestNames(app, request_log, quiet_paths)


def _models(model: Model) -> APIRouter:
    """Return the endpoints that list the model and its adapters."""
    router = APIRouter()

    @router.get(f"{API}models")
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": model.listed()})

    @router.get(f"{API}models/{{name:path}}")
    async def one(name: str) -> Response:
        return JSONResponse(model.described(model.check(name)))

    return router


def operations(metrics: Callable[[], bytes]) -> APIRouter:
    """Return the endpoints for the operator of the server.

    Args:
        metrics: Function that returns the metrics in Prometheus' text format.
    """
    router = APIRouter()

    @router.get("/health")
    @router.get("/ping")  # SageMaker's
    @router.head("/health", include_in_schema=False)
    async def health() -> Response:
        return JSONResponse({"status": "ok"})

    @router.get("/version")
    async def version() -> Response:
        return JSONResponse({"version": installed("qeff-zoo")})

    @router.get("/metrics")
    @router.head("/metrics", include_in_schema=False)
    async def figures() -> Response:
        return PlainTextResponse(metrics(), media_type=CONTENT_TYPE)

    return router
