# SPDX-License-Identifier: Apache-2.0
"""OpenAI's endpoints of text generation: chat completions and completions."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from qeff_zoo.runtime import TextGenerationSession
from qeff_zoo.serving.answers.chats import Chat
from qeff_zoo.serving.answers.large import json_answer
from qeff_zoo.serving.answers.logprobs import LogprobObjects
from qeff_zoo.serving.answers.objects import Reply
from qeff_zoo.serving.answers.streaming import EventStream, events
from qeff_zoo.serving.errors import ApiError
from qeff_zoo.serving.queues.media import Preparation
from qeff_zoo.serving.requests.chat_runs import ChatRuns
from qeff_zoo.serving.requests.prompts import prepare_completion
from qeff_zoo.serving.requests.schemas import ChatRequest, CompletionRequest, StreamOptions, listed


def routes(api: str, runs: ChatRuns) -> APIRouter:
    """Return the endpoints of text generation.

    Args:
        api: Prefix of their paths.
        runs: Chats of the model.
    """
    router = APIRouter()
    session, model = runs.engine.session, runs.model

    def begun(
        kind: Literal["chat", "completion"], body: ChatRequest | CompletionRequest, logprobs: bool
    ) -> Reply:
        shown = LogprobObjects(session.tokenizer, body.return_tokens_as_token_ids)
        reply = Reply(kind, body.model, model.fingerprint, shown, logprobs)
        reply.prompt_logprobs = body.prompt_logprobs is not None
        reply.token_ids = body.return_token_ids
        reply.stop_token_ids = {*body.stop_token_ids} - {*session.eos_token_ids}
        return reply

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
        chat, handles = await runs.begin(request, preparation)
        if body.stream:
            options = body.stream_options or StreamOptions()
            chunks = events(
                reply,
                chat,
                handles,
                runs.metrics,
                n=body.n,
                include_usage=options.include_usage,
                continuous=options.continuous_usage_stats,
            )
            return EventStream(chunks, handles)
        answers = await runs.finish(request, handles)
        whole = await asyncio.to_thread(reply.whole, chat, answers, body.n)
        return await json_answer(whole)

    @router.post(f"{api}chat/completions")
    async def chat(request: Request, body: ChatRequest) -> Response:
        preparation = runs.prepare(body)
        reply = begun("chat", body, body.logprobs)
        reply.custom_tools = body.custom_tools
        if body.echo:
            last = body.messages[-1]
            reply.echo = [last.text if last.role == "assistant" else ""]
        return await answer(request, body, preparation, reply)

    @router.post(f"{api}chat/completions/input_tokens")
    async def count(request: Request, body: ChatRequest) -> Response:
        return JSONResponse(await runs.count(request, runs.prepare(body)))

    @router.post(f"{api}completions")
    async def completions(request: Request, body: CompletionRequest) -> Response:
        adapter = model.admit(body)
        reply = begun("completion", body, body.logprobs is not None)
        if body.echo:
            reply.echo = [*map(partial(_text, session), listed(body.prompt))]
        preparation = prepare_completion(session, body, adapter, runs.bounds, runs.formats)
        return await answer(request, body, preparation, reply)

    return router


def _text(session: TextGenerationSession, prompt: str | Sequence[int]) -> str:
    """Return the text of a prompt, as it is echoed."""
    if isinstance(prompt, str):
        return prompt
    known = all(0 <= token < session.decoder.vocab_size for token in prompt)  # others are refused
    return session.tokenizer.decode(prompt) if session.tokenizer and known else ""
