# SPDX-License-Identifier: Apache-2.0
"""ollama's API: chats and generated texts, with streams of JSON lines, and the list of models."""

import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from qeff_zoo.runtime import Generation, Handle, TokenLogprobs
from qeff_zoo.runtime.text.chat_output import Event, Output, Reasoning, Text
from qeff_zoo.runtime.text.chat_output.events import ToolCall
from qeff_zoo.serving.answers.chats import Chat, chat_events
from qeff_zoo.serving.answers.logprobs import LogprobObjects
from qeff_zoo.serving.answers.objects import Object
from qeff_zoo.serving.answers.streaming import EventStream
from qeff_zoo.serving.apis.ollama.schemas import (
    ChatBody,
    GenerateBody,
    ShowBody,
    chat_of,
    completion_of,
)
from qeff_zoo.serving.errors import ApiError, renaming
from qeff_zoo.serving.queues.media import Preparation
from qeff_zoo.serving.requests.chat_runs import ChatRuns
from qeff_zoo.serving.requests.model import plain
from qeff_zoo.serving.requests.prompts import prepare_completion
from qeff_zoo.serving.requests.schemas import ChatRequest, CompletionRequest
from qeff_zoo.versions import installed

#: Paths that describe the models of a server.
OWN_PATHS = ("/api/tags", "/api/show", "/api/version", "/api/ps")
PATHS = ("/api/chat", "/api/generate", "/api/embed", "/api/embeddings", *OWN_PATHS)


class JsonBodies:
    """Middleware that declares every body of this API as JSON, as ollama does: its clients and `curl -d` may not.

    Args:
        app: App behind the checks of `Origin`, without which a web page could send any undeclared body.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] == "http" and scope["path"] in PATHS:
            headers = [one for one in scope["headers"] if one[0] != b"content-type"]
            scope = {**scope, "headers": [*headers, (b"content-type", b"application/json")]}
        await self._app(scope, receive, send)


def routes(runs: ChatRuns) -> APIRouter:
    """Return the endpoints of chats and of generated texts.

    Args:
        runs: Chats of the model.
    """
    router = APIRouter()
    session = runs.engine.session
    has_chats = session.chat_template is not None or session.describes_images

    def prepare(body: ChatBody | GenerateBody) -> Preparation[Chat]:
        if isinstance(body, ChatBody) or (has_chats and not (body.raw or body.suffix)):
            return runs.prepare(ChatRequest.model_validate(chat_of(body)))
        completion = CompletionRequest.model_validate(completion_of(body))
        adapter = runs.model.admit(completion)
        return prepare_completion(session, completion, adapter, runs.bounds, runs.formats)

    def logprobs(tokens: Sequence[TokenLogprobs], length: int) -> Object:
        """Return the log-probabilities of the tokens of a text, whose characters so far are `length`."""
        shown = LogprobObjects(session.tokenizer)
        found = [shown.of_chat(token) for token in tokens if token.offset < length]
        return {"logprobs": found} if found else {}

    async def lines(
        body: ChatBody | GenerateBody, chat: Chat, handles: Sequence[Handle], begun: int
    ) -> AsyncIterator[bytes]:
        events: list[Event] = []
        tokens: list[TokenLogprobs] = []
        first = length = 0
        try:
            async for _, delta, found in chat_events(chat, handles, runs.metrics):
                first = first or time.perf_counter_ns()
                events += found
                tokens += delta.logprobs
                length += len(delta.text)
                if any(isinstance(event, Text | Reasoning) for event in found):
                    part = content_of(body, replace(Output.of(found), calls=()))
                    yield _line(part | logprobs(tokens, length))
                    tokens.clear()
        except ApiError as error:
            yield _line({"error": error.message})
            return
        if calls := Output.of(events).calls:
            yield _line(content_of(body, Output(calls=calls)) | logprobs(tokens, length))
        yield _line(content_of(body, Output()) | _ended(handles[0].result(), begun, first))

    async def answer(request: Request, body: ChatBody | GenerateBody) -> Response:
        runs.model.admit(body)
        begun = time.perf_counter_ns()
        if not body.messages:
            return JSONResponse(content_of(body, Output()) | {"done": True, "done_reason": "load"})
        with renaming({}):
            chat, handles = await runs.begin(request, prepare(body))
        if body.stream:
            return EventStream(lines(body, chat, handles, begun), handles, "application/x-ndjson")
        (generation,) = await runs.finish(request, handles)
        output = content_of(body, chat.output(generation))
        output |= logprobs(generation.logprobs or (), len(generation.text))
        return JSONResponse(output | _ended(generation, begun, begun))

    @router.post("/api/chat")
    async def chat(request: Request, body: ChatBody) -> Response:
        return await answer(request, body)

    @router.post("/api/generate")
    async def generate(request: Request, body: GenerateBody) -> Response:
        return await answer(request, body)

    return router


def content_of(body: ChatBody | GenerateBody, output: Output) -> Object:
    """Return the object of an output, or of a part of it."""
    content: Object = {"thinking": output.reasoning} if output.reasoning else {}
    if isinstance(body, GenerateBody):
        content["response"] = output.text
    else:
        if output.calls:
            content["tool_calls"] = [*map(_call, output.calls)]
        content = {"message": {"role": "assistant", "content": output.text, **content}}
    created = datetime.now(UTC).isoformat()
    return {"model": body.model, "created_at": created, **content, "done": False}


def _ended(generation: Generation, begun: int, first: int) -> Object:
    """Return the fields at the end of a generation.

    Args:
        generation: The generation.
        begun: Nanoseconds of the clock at the start of the request.
        first: Nanoseconds of the clock at the first token.
    """
    now = time.perf_counter_ns()
    return {
        "done": True,
        "done_reason": "length" if generation.finish_reason == "length" else "stop",
        "total_duration": now - begun,
        "load_duration": 0,
        "prompt_eval_count": generation.prompt_tokens,
        "prompt_eval_duration": first - begun,
        "eval_count": len(generation.token_ids),
        "eval_duration": now - first,
    }


def _call(call: ToolCall) -> Object:
    try:
        arguments = json.loads(call.arguments)
    except ValueError:  # generation ended within them
        arguments = {}
    return {"id": call.id, "function": {"name": call.name, "arguments": arguments}}


def _line(content: Object) -> bytes:
    return json.dumps(content, ensure_ascii=False).encode() + b"\n"


def catalog(
    described: Callable[[], Sequence[Object]], template_of: Callable[[str], str]
) -> APIRouter:
    """Return the endpoints that describe the models.

    Args:
        described: Function that returns the objects of `/v1/models`.
        template_of: Function that returns the source of a loaded model's chat template.
    """
    router = APIRouter()

    @router.get("/api/tags")
    async def tags() -> Object:
        return {"models": [*map(_listed, described())]}

    @router.get("/api/ps")
    async def running() -> Object:
        status = {"value": "loaded"}  # of the only model
        loaded = [one for one in described() if one.get("status", status) == status]
        return {"models": [*map(_listed, loaded)]}

    @router.get("/api/version")
    async def version() -> Object:
        return {"version": installed("qeff-zoo")}

    @router.post("/api/show")
    async def show(body: ShowBody) -> Object:
        listed = {one["id"]: one for one in described()}
        found = listed.get(body.model) or listed.get(plain(body.model))
        if found is None:
            raise ApiError(404, f"There is no model {body.model[:80]!r}. Ask for one of /api/tags.")
        info = {"general.architecture": "qeff-zoo"}
        if window := found.get("max_model_len"):
            info["qeff-zoo.context_length"] = window
        capabilities = found.get("capabilities", [])
        template = (
            template_of(found["id"]) if capabilities else ""
        )  # those of an unloaded one are unknown
        more = {"capabilities": capabilities, "model_info": info, "template": template}
        return _listed(found) | more

    return router


def _listed(model: Object) -> Object:
    name = model["id"]
    details = {"parent_model": model.get("parent", ""), "format": "qeff-zoo", "family": ""}
    return {
        "name": name,
        "model": name,
        "modified_at": datetime.fromtimestamp(model["created"], UTC).isoformat(),
        "size": 0,
        "digest": hashlib.sha256(name.encode()).hexdigest(),
        "details": {**details, "families": [], "parameter_size": "", "quantization_level": ""},
    }
