# SPDX-License-Identifier: Apache-2.0
"""The endpoints: an app of one model that any ASGI server runs."""

import asyncio
import time
from dataclasses import dataclass, field

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp

from qeff_zoo.errors import BusyError, GenerationError
from qeff_zoo.runtime import Engine
from qeff_zoo.runtime import Request as RuntimeRequest
from qeff_zoo.serving import errors
from qeff_zoo.serving.choices import cancelling, submit, whole
from qeff_zoo.serving.embeddings import EmbeddingQueue, embedding_list
from qeff_zoo.serving.errors import ApiError
from qeff_zoo.serving.metrics import CONTENT_TYPE, Metrics
from qeff_zoo.serving.middleware import ApiKey, BodyLimit, ResponseCount
from qeff_zoo.serving.objects import Reply
from qeff_zoo.serving.prompts import chat_requests, completion_requests
from qeff_zoo.serving.schemas import ChatRequest, CompletionRequest, EmbeddingRequest, listed
from qeff_zoo.serving.streaming import EventStream, events, unless_gone

API = "/v1/"
#: That are counted by name.
PATHS = (
    *(f"{API}{name}" for name in ("chat/completions", "completions", "embeddings", "models")),
    "/health",
    "/metrics",
)
MAX_BODY_BYTES = 8 << 20


@dataclass(frozen=True, kw_only=True)
class Model:
    """What a server says of its model.

    Args:
        name: Clients ask for it by this.
        fingerprint: Names what computes the answers: a build key.
        max_tokens: Of a prompt and its answer, or of a text.
        created: Seconds since 1970.
    """

    name: str
    fingerprint: str
    max_tokens: int
    created: int = field(default_factory=lambda: int(time.time()))

    def check(self, name: str) -> None:
        """Refuse a request for another model.

        Raises:
            ApiError: It is another one.
        """
        if name != self.name:
            raise ApiError(
                404,
                f"There is no model {errors.brief(name)}; expected {self.name!r}, the only one here. Ask for it.",
                param="model",
                code="model_not_found",
            )


def create_app(
    backend: Engine | EmbeddingQueue,
    *,
    name: str,
    fingerprint: str,
    api_key: str | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> ASGIApp:
    """Return the app of a model.

    Args:
        backend: What answers; closed by whoever opened it.
        name: The model's.
        fingerprint: Of the model, as `system_fingerprint`.
        api_key: Without it nothing below /v1 is answered; None for no key.
        max_body_bytes: Of a request.
    """
    app = FastAPI(openapi_url=None, redirect_slashes=False)
    metrics = Metrics(backend.stats)
    errors.install(app)
    if isinstance(backend, Engine):
        longest = backend.session.decoder.sizes.ctx_len
        model = Model(name=name, fingerprint=fingerprint, max_tokens=longest)
        app.include_router(_generation(backend, model, metrics))
    else:
        longest = backend.session.max_length
        model = Model(name=name, fingerprint=fingerprint, max_tokens=longest)
        app.include_router(_embedding(backend, model))
    app.include_router(_models(model))
    app.include_router(_operations(metrics))
    limited = BodyLimit(app, max_body_bytes)
    guarded = limited if api_key is None else ApiKey(limited, api_key, API)
    return ResponseCount(guarded, metrics, PATHS)


def _generation(engine: Engine, model: Model, metrics: Metrics) -> APIRouter:
    """Return the endpoints of text generation."""
    router = APIRouter()
    session = engine.session

    async def answer(
        request: Request,
        body: ChatRequest | CompletionRequest,
        asked: list[RuntimeRequest],
        reply: Reply,
    ) -> Response:
        if len(asked) > engine.capacity:
            raise ApiError(
                400,
                f"The request has {len(asked):,} choices; expected at most {engine.capacity:,}. Ask for fewer.",
                param="n",
                code="invalid_value",
            )
        handles = submit(engine, asked)
        if body.stream:
            usage = body.stream_options.include_usage
            chunks = events(reply, handles, metrics, n=body.n, include_usage=usage)
            return EventStream(chunks, handles)
        with cancelling(handles):
            answers = await unless_gone(request, whole(handles, metrics))
        return JSONResponse(reply.whole(answers, body.n))

    @router.post(f"{API}chat/completions")
    async def chat(request: Request, body: ChatRequest) -> Response:
        model.check(body.model)
        asked = await asyncio.to_thread(chat_requests, session, body)
        reply = Reply("chat", model.name, model.fingerprint, session.tokenizer, body.logprobs)
        return await answer(request, body, asked, reply)

    @router.post(f"{API}completions")
    async def completions(request: Request, body: CompletionRequest) -> Response:
        model.check(body.model)
        asked = await asyncio.to_thread(completion_requests, session, body)
        shown = body.logprobs is not None
        reply = Reply("completion", model.name, model.fingerprint, session.tokenizer, shown)
        return await answer(request, body, asked, reply)

    return router


def _embedding(queue: EmbeddingQueue, model: Model) -> APIRouter:
    """Return the endpoint of embeddings."""
    router = APIRouter()

    @router.post(f"{API}embeddings")
    async def embeddings(request: Request, body: EmbeddingRequest) -> Response:
        model.check(body.model)
        try:
            found = await unless_gone(request, queue.embed(listed(body.input)))
        except BusyError as error:
            raise ApiError(429, str(error), code="queue_full") from error
        except GenerationError as error:
            raise ApiError(400, str(error), param="input", code="invalid_value") from error
        return JSONResponse(embedding_list(body, *found))

    return router


def _models(model: Model) -> APIRouter:
    """Return the endpoints that say which model is here."""
    router = APIRouter()
    described = {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "qeff-zoo",
        "max_model_len": model.max_tokens,
    }

    @router.get(f"{API}models")
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": [described]})

    @router.get(f"{API}models/{{name:path}}")
    async def one(name: str) -> Response:
        model.check(name)
        return JSONResponse(described)

    return router


def _operations(metrics: Metrics) -> APIRouter:
    """Return the endpoints for who runs the server."""
    router = APIRouter()

    @router.get("/health")
    async def health() -> Response:
        return JSONResponse({"status": "ok"})

    @router.get("/metrics")
    async def figures() -> Response:
        return PlainTextResponse(metrics.text(), media_type=CONTENT_TYPE)

    return router
