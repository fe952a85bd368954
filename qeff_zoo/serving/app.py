# SPDX-License-Identifier: Apache-2.0
"""The endpoints: an app of one model that any ASGI server runs."""

import asyncio
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp

from qeff_zoo.errors import BusyError, ServingError
from qeff_zoo.runtime import Engine
from qeff_zoo.runtime import Request as RuntimeRequest
from qeff_zoo.runtime.adapters import Adapters
from qeff_zoo.runtime.image_to_text import ImageToTextSession
from qeff_zoo.runtime.media_text import MediaTextSession
from qeff_zoo.serving.browsers import AllowedHosts, AllowedOrigins, Hosts
from qeff_zoo.serving.completion_choices import cancelling, submit, whole
from qeff_zoo.serving.embeddings import EmbeddingQueue, embedding_list
from qeff_zoo.serving.errors import ApiError, queue_full
from qeff_zoo.serving.matching import PictureQueue
from qeff_zoo.serving.media import MediaPool, Preparation
from qeff_zoo.serving.metrics import CONTENT_TYPE, Metrics
from qeff_zoo.serving.middleware import ApiKey, BodyLimit, Framing, ResponseCount
from qeff_zoo.serving.objects import Reply
from qeff_zoo.serving.price import Bounds
from qeff_zoo.serving.prompts import blaming, prepare_chat, prepare_completion
from qeff_zoo.serving.schemas import ChatRequest, CompletionRequest, EmbeddingRequest, listed
from qeff_zoo.serving.streaming import EventStream, events, unless_gone
from qeff_zoo.serving.transcriptions import SpeechQueue
from qeff_zoo.serving.waiting import Bodies

from . import adapters, errors, matching, transcriptions

API = "/v1/"
#: That are counted by name.
PATHS = (
    *(f"{API}{name}" for name in ("chat/completions", "completions", "embeddings", "models")),
    *(f"{API}audio/{name}" for name in ("transcriptions", "translations")),
    "/health",
    "/metrics",
)
MAX_BODY_BYTES = 8 << 20
#: As OpenAI's: 13 minutes of a WAV file, hours of an MP3 file; photographs in base64.
MAX_MEDIA_BYTES = 25 << 20
#: Bodies of the largest size that a server holds at a time.
MAX_BODIES = 16
MAX_INPUTS = 2048  # texts to embed, as OpenAI's


@dataclass(frozen=True, kw_only=True)
class Model:
    """What a server says of its model.

    Args:
        name: Clients ask for it by this.
        fingerprint: Names what computes the answers: a build key.
        max_tokens: Of a prompt and its answer, or of a text that is read whole; 0 of a model that reads recordings of
            any length.
        created: Seconds since 1970.
        adapters: That clients may ask for as they ask for the model; None where it takes none.
    """

    name: str
    fingerprint: str
    max_tokens: int
    created: int = field(default_factory=lambda: int(time.time()))
    adapters: Adapters | None = None

    def check(self, name: str) -> str | None:
        """Refuse a request for another model.

        Returns:
            The adapter that it asks for; None for the model as it is.

        Raises:
            ApiError: It is another one.
        """
        if name == self.name:
            return None
        if self.adapters is not None and name in self.adapters:
            return name
        others = ", ".join(map(repr, self.adapters or ()))
        expected = f"{self.name!r} or {others}" if others else f"{self.name!r}, the only one here"
        raise ApiError(
            404,
            f"There is no model {errors.brief(name)}; expected {expected}. Ask for it.",
            param="model",
            code="model_not_found",
        )

    def described(self, adapter: str | None = None) -> dict[str, object]:
        """Return the object that says what it is, or what one of its adapters is."""
        return {
            "id": adapter or self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "qeff-zoo",
            **({"max_model_len": self.max_tokens} if self.max_tokens else {}),
            **({"parent": self.name} if adapter else {}),
        }


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
    max_body_bytes: int | None = None,
) -> ASGIApp:
    """Return the app of a model.

    Args:
        backend: What answers; closed by whoever opened it.
        name: The model's.
        fingerprint: Of the model, as `system_fingerprint`.
        api_key: Without it nothing below /v1 is answered; None for no key.
        image_hosts: From which pictures and videos are fetched for clients, each `HOST` or `HOST:PORT`.
        adapter_sources: The folders and repositories that clients may load adapters from; None for no such endpoints.
        hosts: Names of the server in a `Host` header; None for any.
        origins: Origins of other web pages that may send requests.
        max_body_bytes: Of a request; None for what suits the model.
    """
    app = FastAPI(openapi_url=None, redirect_slashes=False)
    metrics = Metrics(backend.stats)
    errors.install(app)
    if isinstance(backend, Engine):
        sizes = backend.session.decoder.sizes
        longest = sizes.encoder_ctx_len or sizes.ctx_len
        taken = backend.session.adapters if backend.session.adapters.are_taken else None
        if adapter_sources is not None and taken is None:
            raise ServingError(
                f"Package {str(backend.session.folder)!r} takes no adapters, and --allow-adapters is given; expected "
                "a package that was built with --max-loras. Leave the flag out, or build the model with that."
            )
        model = Model(name=name, fingerprint=fingerprint, max_tokens=longest, adapters=taken)
        app.include_router(_generation(backend, model, metrics, image_hosts))
        if taken is not None and adapter_sources is not None:
            app.include_router(adapters.routes(API, name, taken, adapter_sources))
    elif isinstance(backend, SpeechQueue):
        model = Model(name=name, fingerprint=fingerprint, max_tokens=0)
        app.include_router(transcriptions.routes(API, backend, model.check))
    elif isinstance(backend, PictureQueue):
        longest = getattr(backend.session, "max_length", 0)
        model = Model(name=name, fingerprint=fingerprint, max_tokens=longest)
        app.include_router(matching.routes(API, backend, model.check, image_hosts))
    else:
        longest = backend.session.max_length
        model = Model(name=name, fingerprint=fingerprint, max_tokens=longest)
        app.include_router(_embedding(backend, model))
    app.include_router(_models(model))
    app.include_router(_operations(metrics))
    session = backend.session
    takes_files = isinstance(backend, SpeechQueue | PictureQueue)
    takes_files |= isinstance(session, MediaTextSession | ImageToTextSession)
    usual = MAX_MEDIA_BYTES if takes_files else MAX_BODY_BYTES
    most = usual if max_body_bytes is None else max_body_bytes
    limited = BodyLimit(app, most, Bodies(MAX_BODIES * most))
    guarded: ASGIApp = limited if api_key is None else ApiKey(limited, api_key, API)
    guarded = AllowedOrigins(guarded, origins)
    guarded = guarded if hosts is None else AllowedHosts(guarded, hosts)
    return ResponseCount(Framing(guarded), metrics, PATHS)


def _generation(
    engine: Engine, model: Model, metrics: Metrics, image_hosts: Collection[str]
) -> APIRouter:
    """Return the endpoints of text generation."""
    router = APIRouter()
    session, bounds = engine.session, Bounds(choices=engine.share)
    pool = MediaPool(bounds.decoded_bytes)

    async def answer(
        request: Request,
        body: ChatRequest | CompletionRequest,
        preparation: Preparation[list[RuntimeRequest]],
        reply: Reply,
    ) -> Response:
        if body.stream_options and not body.stream:
            raise ApiError(
                400,
                "Parameter 'stream_options' is given, and 'stream' is not true; expected both or neither. Change one.",
                param="stream_options",
                code="invalid_value",
            )
        handles = submit(engine, await unless_gone(request, pool.prepare(preparation)))
        if body.stream:
            usage = bool(body.stream_options and body.stream_options.include_usage)
            chunks = events(reply, handles, metrics, n=body.n, include_usage=usage)
            return EventStream(chunks, handles)
        with cancelling(handles):
            answers = await unless_gone(request, whole(handles, metrics))
        return JSONResponse(reply.whole(answers, body.n))

    @router.post(f"{API}chat/completions")
    async def chat(request: Request, body: ChatRequest) -> Response:
        adapter = model.check(body.model)
        reply = Reply("chat", body.model, model.fingerprint, session.tokenizer, body.logprobs)
        preparation = prepare_chat(session, body, adapter, bounds, image_hosts)
        return await answer(request, body, preparation, reply)

    @router.post(f"{API}completions")
    async def completions(request: Request, body: CompletionRequest) -> Response:
        adapter = model.check(body.model)
        shown = body.logprobs is not None
        reply = Reply("completion", body.model, model.fingerprint, session.tokenizer, shown)
        preparation = prepare_completion(session, body, adapter, bounds)
        return await answer(request, body, preparation, reply)

    return router


def _embedding(queue: EmbeddingQueue, model: Model) -> APIRouter:
    """Return the endpoint of embeddings."""
    router = APIRouter()

    @router.post(f"{API}embeddings")
    async def embeddings(request: Request, body: EmbeddingRequest) -> Response:
        model.check(body.model)
        texts = listed(body.input)
        if len(texts) > MAX_INPUTS:
            raise ApiError(
                400,
                f"The request has {len(texts):,} inputs; expected at most {MAX_INPUTS:,}. Send the others apart.",
                param="input",
                code="invalid_value",
            )
        try:
            with blaming("input"):
                found = await unless_gone(request, queue.embed(texts, cut=body.truncate != "NONE"))
        except BusyError as error:
            raise queue_full(error) from error
        content = await asyncio.to_thread(embedding_list, body, *found)
        return Response(content, media_type="application/json")

    return router


def _models(model: Model) -> APIRouter:
    """Return the endpoints that say which model is here."""
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
    """Return the endpoints for who runs the server."""
    router = APIRouter()

    @router.api_route("/health", methods=["GET", "HEAD"])
    async def health() -> Response:
        return JSONResponse({"status": "ok"})

    @router.api_route("/metrics", methods=["GET", "HEAD"])
    async def figures() -> Response:
        return PlainTextResponse(metrics.text(), media_type=CONTENT_TYPE)

    return router
