# SPDX-License-Identifier: Apache-2.0
"""Anthropic's Messages API: `/v1/messages`, with tools, thinking and streams, and the count of a prompt's tokens."""

import json
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field, replace

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from qeff_zoo.runtime import Generation, Handle
from qeff_zoo.runtime.text.chat_output import Arguments, Call, Event, Output, Reasoning, Text
from qeff_zoo.serving.answers.chats import Chat
from qeff_zoo.serving.answers.objects import Object
from qeff_zoo.serving.answers.streaming import EventStream, server_sent
from qeff_zoo.serving.apis.anthropic.schemas import CountRequest, MessagesRequest
from qeff_zoo.serving.errors import ApiError, renaming
from qeff_zoo.serving.queues.media import Preparation
from qeff_zoo.serving.requests.chat_runs import ChatRuns
from qeff_zoo.serving.requests.schemas import ChatRequest

#: Parameters of a chat, by their names here.
_PARAMS = {
    "stop": "stop_sequences",
    "max_completion_tokens": "max_tokens",
    "reasoning_effort": "output_config",
    "response_format": "output_config",
    "chat_template_kwargs": "thinking",
}


@dataclass
class MessageBuilder:
    """Objects and stream events of one message.

    Args:
        model: Name of the model.
        prompt_tokens: Number of tokens of the prompt.
    """

    model: str
    prompt_tokens: int
    _blocks: list[type] = field(default_factory=list)
    _is_open: bool = False

    def body(self, content: Sequence[Object], stop: Object, usage: Object) -> Object:
        """Return the object of the message."""
        return {
            "id": f"msg_{uuid.uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [*content],
            **stop,
            "usage": usage,
        }

    def whole(self, generation: Generation, output: Output) -> Object:
        """Return the object of a finished message."""
        content: list[Object] = []
        if output.reasoning:
            content.append({"type": "thinking", "thinking": output.reasoning, "signature": ""})
        if output.text:
            content.append({"type": "text", "text": output.text})
        for call in output.calls:
            frame = {"type": "tool_use", "id": call.id, "name": call.name}
            content.append({**frame, "input": _object(call.arguments)})
        return self.body(content, _stop(generation, output), _usage(generation))

    # --- streams ---------------------------------------------------------------------------------

    def opening(self) -> Iterator[bytes]:
        """Yield the events at the start of a stream."""
        usage = {"input_tokens": self.prompt_tokens, "output_tokens": 0}
        stop = {"stop_reason": None, "stop_sequence": None}
        yield _event("message_start", message=self.body([], stop, usage))
        yield _event("ping")

    def grow(self, event: Event) -> Iterator[bytes]:
        """Yield the stream events of an event of the output."""
        kind = Call if isinstance(event, Arguments) else type(event)
        if not self._is_open or self._blocks[-1] is not kind or isinstance(event, Call):
            yield from self.close()
            self._blocks.append(kind)
            self._is_open = True
            yield _event("content_block_start", index=self._index, content_block=_block(event))
        if not isinstance(event, Call):
            yield _event("content_block_delta", index=self._index, delta=_delta(event))

    def close(self) -> Iterator[bytes]:
        """Yield the stream events at the end of the last block."""
        if not self._is_open:
            return
        self._is_open = False
        if self._blocks[-1] is Reasoning:
            delta = {"type": "signature_delta", "signature": ""}
            yield _event("content_block_delta", index=self._index, delta=delta)
        yield _event("content_block_stop", index=self._index)

    def closing(self, generation: Generation, output: Output) -> Iterator[bytes]:
        """Yield the events at the end of a stream."""
        yield from self.close()
        stop, usage = _stop(generation, output), _usage(generation)
        yield _event("message_delta", delta=stop, usage=usage)
        yield _event("message_stop")

    @property
    def _index(self) -> int:
        return len(self._blocks) - 1


def routes(api: str, runs: ChatRuns) -> APIRouter:
    """Return the endpoints of messages.

    Args:
        api: Prefix of their paths.
        runs: Chats of the model.
    """
    router = APIRouter()

    def prepared(body: CountRequest) -> Preparation[Chat]:
        chat = ChatRequest.model_validate(body.as_chat())
        preparation = runs.prepare(chat)
        body.model = chat.model
        return preparation

    def limited(preparation: Preparation[Chat], most: int) -> Preparation[Chat]:
        chat = yield from preparation
        short = [replace(one, limit=min(one.limit, most)) for one in chat.requests]
        return replace(chat, requests=short)

    async def stream(
        builder: MessageBuilder, chat: Chat, handles: Sequence[Handle]
    ) -> AsyncIterator[bytes]:
        events: list[Event] = []
        try:
            async for one in runs.stream(builder, chat, handles, events):
                yield one
        except ApiError as error:
            yield server_sent(error.body, "error")
            return
        (generation,) = (handle.result() for handle in handles)
        for one in builder.closing(generation, Output.of(events)):
            yield one

    @router.post(f"{api}messages")
    async def create(request: Request, body: MessagesRequest) -> Response:
        with renaming(_PARAMS):
            chat, handles = await runs.begin(request, limited(prepared(body), body.max_tokens))
        builder = MessageBuilder(body.model, handles[0].request.prompt_tokens)
        if body.stream:
            return EventStream(stream(builder, chat, handles), handles)
        (generation,) = await runs.finish(request, handles)
        return JSONResponse(builder.whole(generation, chat.output(generation)))

    @router.post(f"{api}messages/count_tokens")
    async def count(request: Request, body: CountRequest) -> Response:
        with renaming(_PARAMS):
            found = await runs.count(request, prepared(body))
        return JSONResponse({"input_tokens": found["input_tokens"]})

    return router


def _event(name: str, **fields: object) -> bytes:
    return server_sent({"type": name, **fields}, name)


def _block(event: Event) -> Object:
    """Return the empty block that an event begins."""
    if isinstance(event, Text):
        return {"type": "text", "text": ""}
    if isinstance(event, Reasoning):
        return {"type": "thinking", "thinking": "", "signature": ""}
    assert isinstance(event, Call)
    return {"type": "tool_use", "id": event.id, "name": event.name, "input": {}}


def _delta(event: Event) -> Object:
    if isinstance(event, Text):
        return {"type": "text_delta", "text": event.text}
    if isinstance(event, Reasoning):
        return {"type": "thinking_delta", "thinking": event.text}
    assert isinstance(event, Arguments)
    return {"type": "input_json_delta", "partial_json": event.text}


def _stop(generation: Generation, output: Output) -> Object:
    """Return the reason for the end of a message."""
    reason = "max_tokens" if generation.finish_reason == "length" else "end_turn"
    if output.calls and reason == "end_turn":
        reason = "tool_use"
    elif generation.stop_string is not None:
        reason = "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": generation.stop_string}


def _usage(generation: Generation) -> Object:
    """Count tokens; those of the prefix cache are not among the input tokens, as in Anthropic's API."""
    return {
        "input_tokens": generation.prompt_tokens - generation.reused_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": generation.reused_tokens,
        "output_tokens": len(generation.token_ids),
    }


def _object(arguments: str) -> Object:
    """Return the arguments of a call; empty if generation ended within them."""
    try:
        found = json.loads(arguments)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
