# SPDX-License-Identifier: Apache-2.0
"""ollama's API: `/api/chat`, `/api/generate` and `/api/embed`, with streams of JSON lines, and the list of models."""

import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute

from qeff_zoo.runtime import Generation, Handle
from qeff_zoo.runtime.chat_output import Arguments, Event, Output, Reasoning, Text
from qeff_zoo.runtime.chat_output.events import ToolCall
from qeff_zoo.serving.chat_runs import ChatRuns
from qeff_zoo.serving.chats import Chat
from qeff_zoo.serving.embeddings import shortened
from qeff_zoo.serving.encoder_queue import EncoderQueue
from qeff_zoo.serving.errors import ApiError, invalid_body, renaming
from qeff_zoo.serving.media import Preparation
from qeff_zoo.serving.model import Model
from qeff_zoo.serving.objects import Object
from qeff_zoo.serving.ollama_schemas import ChatBody, EmbedBody, GenerateBody, ShowBody
from qeff_zoo.serving.prompts import prepare_completion
from qeff_zoo.serving.schemas import ChatRequest, CompletionRequest, EmbeddingRequest, listed
from qeff_zoo.serving.scores import encoded, require_few
from qeff_zoo.serving.streaming import EventStream
from qeff_zoo.versions import installed

API = "/api/"
#: Paths that describe the models of a server.
OWN_PATHS = tuple(f"{API}{name}" for name in ("tags", "show", "version", "ps"))
PATHS = (*(f"{API}{name}" for name in ("chat", "generate", "embed")), *OWN_PATHS)


class _Route(APIRoute):
    """Route whose errors have ollama's form: `{"error": message}`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                refusal = invalid_body(error.errors())
            except ApiError as error:
                refusal = error
            return JSONResponse({"error": refusal.message}, refusal.status)

        return handled


@dataclass
class _Builder:
    """Objects and stream lines of one chat, or of one generated text.

    Args:
        model: Name of the model.
        is_chat: Whether the text is in a message.
    """

    model: str
    is_chat: bool
    _begun: int = field(default_factory=time.perf_counter_ns)
    _first: int = 0
    _call: list[Event] = field(default_factory=list)

    def opening(self) -> Iterator[bytes]:
        """Yield nothing: a stream begins with the first text."""
        yield from ()

    def grow(self, event: Event) -> Iterator[bytes]:
        """Yield the line of an event; a call has its line when it is complete."""
        self._first = self._first or time.perf_counter_ns()
        if not isinstance(event, Arguments):
            yield from self.close()
        if isinstance(event, Text | Reasoning):
            yield _line(self.body(Output.of([event])))
        else:
            self._call.append(event)

    def close(self) -> Iterator[bytes]:
        """Yield the line of the last call."""
        if self._call:
            yield _line(self.body(Output.of(self._call)))
        self._call = []

    def body(self, output: Output, **ended: Any) -> Object:
        """Return the object of an output, or of a part of it."""
        thinking = {"thinking": output.reasoning} if output.reasoning else {}
        content: Object = {"response": output.text, **thinking}
        if self.is_chat:
            calls = {"tool_calls": [*map(_call, output.calls)]} if output.calls else {}
            content = {
                "message": {"role": "assistant", "content": output.text, **thinking, **calls}
            }
        frame = {"model": self.model, "created_at": datetime.now(UTC).isoformat()}
        return {**frame, **content, "done": bool(ended), **ended}

    def whole(self, output: Output, generation: Generation) -> Object:
        """Return the object at the end of a generation, with its counts and nanoseconds."""
        now = time.perf_counter_ns()
        first = self._first or now
        return self.body(
            output,
            done_reason="length" if generation.finish_reason == "length" else "stop",
            total_duration=now - self._begun,
            load_duration=0,
            prompt_eval_count=generation.prompt_tokens,
            prompt_eval_duration=first - self._begun,
            eval_count=len(generation.token_ids),
            eval_duration=now - first,
        )


def routes(runs: ChatRuns) -> APIRouter:
    """Return the endpoints of chats and of generated texts.

    Args:
        runs: Chats of the model.
    """
    router = APIRouter(route_class=_Route)
    session = runs.engine.session
    has_chats = session.chat_template is not None or session.describes_images

    def prepare(body: ChatBody | GenerateBody) -> Preparation[Chat]:
        if isinstance(body, ChatBody) or (has_chats and not body.raw):
            return runs.prepare(ChatRequest.model_validate(body.as_chat()))
        completion = CompletionRequest.model_validate(body.as_completion())
        return prepare_completion(session, completion, runs.model.admit(completion), runs.bounds)

    async def lines(
        builder: _Builder, chat: Chat, handles: Sequence[Handle]
    ) -> AsyncIterator[bytes]:
        try:
            async for one in runs.stream(builder, chat, handles, []):
                yield one
        except ApiError as error:
            yield _line({"error": error.message})
            return
        for one in builder.close():
            yield one
        yield _line(builder.whole(Output(), handles[0].result()))

    async def answer(request: Request, body: ChatBody | GenerateBody) -> Response:
        runs.model.admit(body)
        builder = _Builder(body.model, isinstance(body, ChatBody))
        if not (body.messages if isinstance(body, ChatBody) else body.prompt or body.images):
            return JSONResponse(builder.body(Output(), done_reason="load"))
        with renaming({}):
            chat, handles = await runs.begin(request, prepare(body))
        if body.stream:
            return EventStream(lines(builder, chat, handles), handles, "application/x-ndjson")
        (generation,) = await runs.finish(request, handles)
        return JSONResponse(builder.whole(chat.output(generation), generation))

    @router.post(f"{API}chat")
    async def chat(request: Request, body: ChatBody) -> Response:
        return await answer(request, body)

    @router.post(f"{API}generate")
    async def generate(request: Request, body: GenerateBody) -> Response:
        return await answer(request, body)

    return router


def embedding(queue: EncoderQueue, model: Model) -> APIRouter:
    """Return the endpoint of embeddings, each of length 1.

    Args:
        queue: Queue of the requests.
        model: Description of the model.
    """
    router = APIRouter(route_class=_Route)

    @router.post(f"{API}embed")
    async def embed(request: Request, body: EmbedBody) -> Response:
        model.admit(body)
        begun = time.perf_counter_ns()
        texts = require_few(listed(body.input), "input")
        options = EmbeddingRequest(
            input=body.input, dimensions=None, truncate="END" if body.truncate else "NONE"
        )
        read, outputs = await encoded(request, queue, texts, options, "input")
        vectors = np.stack(outputs)
        return JSONResponse(
            {
                "model": body.model,
                "embeddings": shortened(vectors, body.dimensions or vectors.shape[1]).tolist(),
                "total_duration": time.perf_counter_ns() - begun,
                "load_duration": 0,
                "prompt_eval_count": sum(len(text.ids) for text in read),
            }
        )

    return router


def catalog(described: Callable[[], Sequence[Object]]) -> APIRouter:
    """Return the endpoints that describe the models.

    Args:
        described: Function that returns the objects of `/v1/models`.
    """
    router = APIRouter(route_class=_Route)

    def known(*, loaded: bool) -> Response:
        models = [
            one
            for one in described()
            if not loaded or one.get("status", {}).get("value") != "unloaded"
        ]
        return JSONResponse({"models": [_listed(one) for one in models]})

    @router.get(f"{API}tags")
    async def tags() -> Response:
        return known(loaded=False)

    @router.get(f"{API}ps")
    async def running() -> Response:
        return known(loaded=True)

    @router.get(f"{API}version")
    async def version() -> Response:
        return JSONResponse({"version": installed("qeff-zoo")})

    @router.post(f"{API}show")
    async def show(body: ShowBody) -> Response:
        found = next((one for one in described() if one["id"] == body.model), None)
        if found is None:
            raise ApiError(404, f"There is no model {body.model[:80]!r}. Ask for one of {API}tags.")
        window = found.get("max_model_len")
        return JSONResponse(
            {
                **_listed(found),
                "capabilities": found.get("capabilities", []),
                "model_info": {"general.architecture": "qeff-zoo"}
                | ({"qeff-zoo.context_length": window} if window else {}),
            }
        )

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


def _call(call: ToolCall) -> Object:
    try:
        arguments = json.loads(call.arguments)
    except ValueError:  # generation ended within them
        arguments = {}
    return {"function": {"name": call.name, "arguments": arguments}}


def _line(content: Object) -> bytes:
    return json.dumps(content, ensure_ascii=False).encode() + b"\n"
