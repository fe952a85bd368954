# SPDX-License-Identifier: Apache-2.0
"""OpenAI's endpoints of text generation: chat completions and completions."""

from collections.abc import Collection, Sequence
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from qeff_zoo.runtime import Engine, TextGenerationSession
from qeff_zoo.serving.chats import Chat
from qeff_zoo.serving.completion_choices import cancelling, submit, whole
from qeff_zoo.serving.errors import ApiError
from qeff_zoo.serving.media import MediaPool, Preparation
from qeff_zoo.serving.metrics import Metrics
from qeff_zoo.serving.model import Model
from qeff_zoo.serving.objects import Reply
from qeff_zoo.serving.price import Bounds
from qeff_zoo.serving.prompts import prepare_chat, prepare_completion
from qeff_zoo.serving.schemas import ChatRequest, CompletionRequest, listed
from qeff_zoo.serving.streaming import EventStream, events, unless_gone
from qeff_zoo.serving.tools import ChatFormats


def routes(
    api: str,
    engine: Engine,
    model: Model,
    metrics: Metrics,
    image_hosts: Collection[str],
    formats: ChatFormats,
) -> APIRouter:
    """Return the endpoints of text generation.

    Args:
        api: Prefix of their paths.
        engine: Engine that generates.
        model: Description of the model.
        metrics: Metrics of the server.
        image_hosts: Hosts from which images and videos are fetched for clients.
        formats: Formats of the model's chats.
    """
    router = APIRouter()
    session, bounds = engine.session, Bounds(choices=engine.share)
    pool = MediaPool(bounds.decoded_bytes)

    async def answer(
        request: Request,
        body: ChatRequest | CompletionRequest,
        preparation: Preparation[Chat],
        reply: Reply,
    ) -> Response:
        if body.stream_options and not body.stream:
            raise ApiError(
                400,
                "Parameter 'stream_options' is given, and 'stream' is not true; expected both or neither. Change one.",
                param="stream_options",
                code="invalid_value",
            )
        chat = await unless_gone(request, pool.prepare(preparation))
        handles = submit(engine, chat.requests)
        if body.stream:
            usage = bool(body.stream_options and body.stream_options.include_usage)
            chunks = events(reply, chat, handles, metrics, n=body.n, include_usage=usage)
            return EventStream(chunks, handles)
        with cancelling(handles):
            answers = await unless_gone(request, whole(handles, metrics))
        return JSONResponse(reply.whole(answers, [*map(chat.output, answers)], body.n))

    @router.post(f"{api}chat/completions")
    async def chat(request: Request, body: ChatRequest) -> Response:
        adapter = model.admit(body)
        reply = Reply("chat", body.model, model.fingerprint, session.tokenizer, body.logprobs)
        reply.prompt_logprobs = body.prompt_logprobs is not None
        preparation = prepare_chat(session, body, adapter, bounds, image_hosts, formats)
        return await answer(request, body, preparation, reply)

    @router.post(f"{api}completions")
    async def completions(request: Request, body: CompletionRequest) -> Response:
        adapter = model.admit(body)
        shown = body.logprobs is not None
        reply = Reply("completion", body.model, model.fingerprint, session.tokenizer, shown)
        reply.prompt_logprobs = body.prompt_logprobs is not None
        if body.echo:
            reply.echo = [*map(partial(_text, session), listed(body.prompt))]
        preparation = prepare_completion(session, body, adapter, bounds)
        return await answer(request, body, preparation, reply)

    return router


def _text(session: TextGenerationSession, prompt: str | Sequence[int]) -> str:
    """Return the text of a prompt, as it is echoed."""
    if isinstance(prompt, str):
        return prompt
    known = all(0 <= token < session.decoder.vocab_size for token in prompt)  # others are refused
    return session.tokenizer.decode(prompt) if session.tokenizer and known else ""
