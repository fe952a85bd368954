# SPDX-License-Identifier: Apache-2.0
"""Several models in one server: each is loaded on its first request, within a memory budget, and unloaded when idle.

A request's `model` selects one. The least recently used models without requests make room for another one; if all have
requests, the request waits.
"""

import asyncio
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import parse_qs

from anyio import CancelScope
from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from pydantic_core import from_json
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qeff_zoo.errors import ServingError, ZooError
from qeff_zoo.serving import errors
from qeff_zoo.serving.apis import hub
from qeff_zoo.serving.apis.ollama import endpoints as ollama
from qeff_zoo.serving.apis.openai.responses import store as responses
from qeff_zoo.serving.apis.openai.responses.store import ResponseStore
from qeff_zoo.serving.apis.vllm import adapters
from qeff_zoo.serving.errors import ApiError, brief, shutting_down, too_large
from qeff_zoo.serving.monitoring.metrics import Metrics
from qeff_zoo.serving.queues.threads import in_thread
from qeff_zoo.serving.requests.model import Model, plain
from qeff_zoo.serving.server.app import MAX_MEDIA_BYTES, known_paths, operations
from qeff_zoo.serving.server.interpreter import settle
from qeff_zoo.serving.server.middleware import is_form
from qeff_zoo.serving.server.services import API
from qeff_zoo.terminal.printing import human_size

_log = logging.getLogger(__name__)
_OWN_PATHS = (
    *("/health", "/ping", "/metrics", "/version", "/v1/models", "/v1/conversations"),
    *ollama.OWN_PATHS,
    *adapters.paths(API),  # which no server of several models has
)
_MODEL = "/v1/models/"
#: Field of a form; all repetitions are bounded, since the content of a file may look like fields.
_FIELD = re.compile(rb'name="model"\r\n(?:[^\r\n]{1,256}\r\n){0,4}\r\n([^\r\n]{0,512})\r\n')
#: Seconds that a request may wait for room while new requests of other models keep those in memory.
PATIENCE = 10.0
#: Seconds after a failure to load a model until the next attempt, which would unload others again.
_RETRY = 30.0
_GONE = 499  # status for a client that has left


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """Model in memory.

    Args:
        app: Endpoints of the model.
        model: Description of the model.
        metrics: Metrics of the model.
        max_body_bytes: Maximum size of a request's body.
    """

    app: ASGIApp
    model: Model
    metrics: Metrics
    max_body_bytes: int = MAX_MEDIA_BYTES


@dataclass(eq=False, kw_only=True)
class Member:
    """Model of a server.

    Args:
        name: Name of the model in requests.
        nbytes: Memory of the model.
        load: Function that returns a context manager that loads the model; called in a thread.
    """

    name: str
    nbytes: int
    load: Callable[[], AbstractContextManager[Loaded]]
    loaded: Loaded | None = field(default=None, init=False)
    #: Number of requests, and of those that use the model.
    requests: int = field(default=0, init=False)
    users: int = field(default=0, init=False)
    #: Whether a thread loads or unloads the model.
    busy: bool = field(default=False, init=False)
    last_used: float = field(default=0.0, init=False)
    loaded_since: float = field(default=0.0, init=False)
    #: Error of the last attempt to load the model, and the time of the next attempt.
    failure: str = field(default="", init=False)
    failed_until: float = field(default=0.0, init=False)
    stack: ExitStack = field(default_factory=ExitStack, init=False)

    @property
    def held(self) -> int:
        """Memory that the model takes now, or will take when its loading ends."""
        return self.nbytes if self.loaded or self.busy else 0


class Fleet:
    """App of several models.

    Args:
        members: The models, of different names.
        budget: Memory of all loaded models in bytes; None for no limit.
        idle_seconds: Seconds without requests after which a model is unloaded; None for never.
        store: Kept responses of all models.

    Raises:
        ServingError: Two models have one name, or a model exceeds the budget alone.
    """

    def __init__(
        self,
        members: Sequence[Member],
        *,
        budget: int | None = None,
        idle_seconds: float | None = None,
        store: ResponseStore | None = None,
    ) -> None:
        self._members = {member.name: member for member in members}
        if len(self._members) < len(members):
            names = [member.name for member in members]
            twice = next(name for name in names if names.count(name) > 1)
            raise ServingError(
                f"Two packages have the model name {twice!r}; expected different names. Name one of them: NAME=PACKAGE."
            )
        for member in members:
            check_budget(member.name, member.nbytes, budget)
        self._budget, self._idle = budget, idle_seconds
        self._threads = ThreadPoolExecutor(thread_name_prefix="qeff-zoo models")
        self._changed, self._closed = asyncio.Condition(), False
        #: Models whose requests wait for room, the first one first, with the times since when they do.
        self._waiting: dict[str, float] = {}
        self._own = _own_endpoints(self._members, store or ResponseStore())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to its model, which is loaded first if necessary."""
        path = scope["path"]
        is_known = path in known_paths() or hub.model_of(path) is not None
        if path in _OWN_PATHS or not is_known:  # an unknown path loads no model
            await self._own(scope, receive, send)
            return
        message = await receive()  # whole, from `BodyLimit`
        sent, body = [message], message.get("body", b"")

        async def replayed() -> Message:
            return sent.pop() if sent else await receive()

        try:
            member = self._find(_model_of(scope, body))
        except ApiError as refusal:
            await refusal.response(scope["path"])(scope, receive, send)
            return
        try:
            async with self._using(member, receive) as loaded:
                if len(body) > loaded.max_body_bytes:
                    large = too_large(f"{loaded.max_body_bytes:,} bytes for this model")
                    await large.response(scope["path"])(scope, receive, send)
                else:
                    await loaded.app(scope, replayed, send)
        except ApiError as error:  # before the model was loaded
            if error.status != _GONE:
                await error.response(scope["path"])(scope, receive, send)

    def close(self) -> None:
        """Unload all models, also those that are being loaded; their running requests are cancelled."""
        self._closed = True
        self._threads.shutdown()
        for member in self._members.values():
            member.stack.close()

    def _find(self, name: str) -> Member:
        named = self._members.get(name) or self._members.get(plain(name))
        member = named or next(
            (one for one in self._members.values() if one.loaded and _has(one.loaded.model, name)),
            None,
        )
        if member is None:
            raise _unknown(name, self._members)
        return member

    @asynccontextmanager
    async def _using(self, member: Member, receive: Receive) -> AsyncIterator[Loaded]:
        """Hold a model in memory.

        Raises:
            ApiError: The model cannot be loaded, or the client left before there was room for it.
        """
        member.requests += 1
        left = asyncio.ensure_future(receive())
        left.add_done_callback(lambda _: asyncio.ensure_future(self._wake()))
        try:
            loaded = await self._load(member, left)
            try:
                yield loaded
            finally:
                member.users -= 1
        finally:
            left.cancel()
            member.requests -= 1
            member.last_used = time.monotonic()
            if not member.requests:
                self._waiting.pop(member.name, None)
            await self._wake()
            if self._idle is not None and not member.users:
                loop = asyncio.get_running_loop()
                loop.call_later(self._idle, lambda: loop.create_task(self._unload_idle(member)))

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _load(self, member: Member, left: asyncio.Future[Message]) -> Loaded:
        """Return a model in memory with one more user, loading it when there is room, unless its client left."""
        async with self._changed:
            while member.loaded is None or member.busy or member is self._yielding():
                first = self._starving()
                if left.done():
                    raise ApiError(_GONE, "The client has disconnected.")
                if self._closed:
                    raise shutting_down()
                if time.monotonic() < member.failed_until:
                    raise _not_loaded(member)
                if member.busy or member.loaded or first not in (None, member):
                    await self._changed.wait()
                elif self._has_room(member):
                    self._waiting.pop(member.name, None)
                    await self._change(member, partial(_enter, member))
                elif (other := self._least_recent()) is not None:
                    await self._change(other, partial(_leave, other))
                else:
                    self._waiting.setdefault(member.name, time.monotonic())
                    await self._changed.wait()
            member.users += 1
            return member.loaded

    def _starving(self) -> Member | None:
        """Return the model whose requests have waited for room for too long; None if there is none."""
        first = next(iter(self._waiting.items()), None)
        if first is None or time.monotonic() - first[1] < PATIENCE:
            return None
        return self._members[first[0]]

    def _yielding(self) -> Member | None:
        """Return the model whose new requests wait, so that it can be unloaded for a model that has waited too long."""
        if self._starving() is None:
            return None
        loaded = [one for one in self._members.values() if one.loaded]
        return min(loaded, key=lambda one: one.loaded_since, default=None)

    async def _change(self, member: Member, work: Callable[[], None]) -> None:
        """Load or unload a model in a thread, to its end even if the request is cancelled; others go on meanwhile."""
        member.busy = True
        self._changed.release()
        try:
            await in_thread(self._threads, work)
        finally:
            with CancelScope(shield=True):  # the caller releases the lock
                await self._changed.acquire()
            member.busy = False
            self._changed.notify_all()

    def _has_room(self, member: Member) -> bool:
        held = sum(one.held for one in self._members.values())
        return self._budget is None or held + member.nbytes <= self._budget

    def _least_recent(self) -> Member | None:
        """Return the model to unload for another one; None if all have requests."""
        idle = [one for one in self._members.values() if one.loaded and not (one.users or one.busy)]
        return min(idle, key=lambda one: one.last_used, default=None)

    async def _unload_idle(self, member: Member) -> None:
        assert self._idle is not None
        async with self._changed:
            is_idle = member.loaded and not (member.users or member.busy)
            if is_idle and time.monotonic() - member.last_used >= self._idle:
                await self._change(member, partial(_leave, member))


def check_budget(name: str, nbytes: int, budget: int | None) -> None:
    """Check that a model fits into the memory budget.

    Args:
        name: Name of the model.
        nbytes: Memory of the model.
        budget: Memory in bytes; None for no limit.

    Raises:
        ServingError: The model exceeds it.
    """
    if budget is not None and nbytes > budget:
        raise ServingError(
            f"Model {name!r} takes {human_size(nbytes)}, and the memory budget is {human_size(budget)}; expected room "
            "for each model alone. Raise --memory-budget, or leave the model out."
        )


def _unknown(name: str, members: Mapping[str, Member]) -> ApiError:
    known = ", ".join(map(repr, members))
    return ApiError(
        404 if name else 400,
        f"There is no model {brief(name)}; expected one of {known}. Name one in the field 'model', or as ?model= "
        "of a request without a body.",
        param="model",
        code="model_not_found",
    )


def _not_loaded(member: Member) -> ApiError:
    """Return the error of a model that cannot be loaded, without paths of this machine; the log has them."""
    return ApiError(
        500,
        f"Model {member.name!r} cannot be loaded: {member.failure}, as the log of the server explains; expected a "
        "package that can. Ask another model, or have whoever runs the server repair it.",
        param="model",
        code="model_not_loaded",
    )


def _enter(member: Member) -> None:
    try:
        member.loaded = member.stack.enter_context(member.load())
    except Exception as error:  # of any library that reads packages
        member.failure = type(error).__name__
        member.failed_until = time.monotonic() + _RETRY
        foreign = not isinstance(error, ZooError)
        _log.error("Model %r could not be loaded: %s", member.name, error, exc_info=foreign)
    else:
        member.failure, member.failed_until = "", 0.0
    member.loaded_since = time.monotonic()
    settle()


def _leave(member: Member) -> None:
    member.loaded = None
    member.stack.close()
    settle()


def _has(model: Model, name: str) -> bool:
    try:
        model.check(name)
    except ApiError:
        return False
    return bool(name)


def _model_of(scope: Scope, body: bytes) -> str:
    """Return the model of a path, of a body, JSON or a form, or of the query of a request without one; else empty."""
    path: str = scope["path"]
    if (model := hub.model_of(path)) is not None:
        return model
    if not body:
        query: bytes = scope["query_string"]
        return parse_qs(query.decode("latin-1")).get("model", [""])[0]
    if is_form(Headers(scope=scope)):
        match = _FIELD.search(body)
        return match[1].decode(errors="replace") if match else ""
    try:
        content = from_json(body)
    except ValueError:
        try:  # slower, but reads UTF-16 and a byte-order mark, as the endpoints do
            content = json.loads(body)
        except (ValueError, RecursionError):
            return ""
    named = content.get("model") if isinstance(content, dict) else ""
    return named if isinstance(named, str) else ""


def _own_endpoints(members: Mapping[str, Member], store: ResponseStore) -> FastAPI:
    """Return the endpoints of the server itself."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    errors.install(app)

    def metrics() -> bytes:
        loaded = {name: one.loaded.metrics for name, one in members.items() if one.loaded}
        return generate_latest(_Merged(loaded))

    app.include_router(operations(metrics))

    def described() -> list[dict[str, Any]]:
        return [entry for member in members.values() for entry in _described(member)]

    def template_of(name: str) -> str:
        loaded = next(
            one.loaded for one in members.values() if one.loaded and _has(one.loaded.model, name)
        )
        return loaded.model.template

    app.include_router(ollama.catalog(described, template_of))
    app.include_router(responses.routes(API, store))

    @app.get("/v1/models")
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": described()})

    @app.get(f"{_MODEL}{{name:path}}")
    async def model(name: str) -> Response:
        found = next((entry for entry in described() if entry["id"] == name), None)
        if found is None:
            raise _unknown(name, members)
        return JSONResponse(found)

    return app


def _described(member: Member) -> list[dict[str, Any]]:
    """Return the API's objects of a model and its adapters, with its status as at llama-server."""
    if member.loaded is None:
        frame = {"id": member.name, "object": "model", "created": 0, "owned_by": "qeff-zoo"}
        failed = {"failed": True} if member.failure else {}
        return [{**frame, "status": {"value": "unloaded", **failed}}]
    return [{**one, "status": {"value": "loaded"}} for one in member.loaded.model.listed()]


class _Merged(Collector):
    """Metrics of several models, with the label `model_name`."""

    def __init__(self, metrics: Mapping[str, Metrics]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        merged: dict[str, Metric] = {}
        for name, metrics in self._metrics.items():
            for one in metrics.collect():
                whole = merged.setdefault(one.name, Metric(one.name, one.documentation, one.type))
                whole.samples += [
                    sample._replace(labels={**sample.labels, "model_name": name})
                    for sample in one.samples
                ]
        yield from merged.values()
