# SPDX-License-Identifier: Apache-2.0
"""Objects and stream events of `/v1/responses`: the events of a model's output become items."""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qeff_zoo.runtime import Generation, TokenLogprobs
from qeff_zoo.runtime.text.chat_output import Arguments, Call, Event, Output, Reasoning, Text
from qeff_zoo.serving.answers.custom_tools import text_of
from qeff_zoo.serving.answers.logprobs import LogprobObjects
from qeff_zoo.serving.answers.objects import Object
from qeff_zoo.serving.answers.streaming import server_sent
from qeff_zoo.serving.apis.openai.responses.schemas import ResponsesRequest
from qeff_zoo.serving.apis.openai.responses.tools import Origin


@dataclass
class ResponseBuilder:
    """Objects and stream events of one response.

    Args:
        request: Body of the request.
        reasoning_tokens: Function that returns the number of tokens of a generation's reasoning.
        logprobs: Objects of log-probabilities.
    """

    request: ResponsesRequest
    reasoning_tokens: Callable[[Generation], int]
    logprobs: LogprobObjects
    id: str = field(default_factory=lambda: f"resp_{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    #: Tokens with log-probabilities whose text is in no item yet.
    tokens: list[TokenLogprobs] = field(default_factory=list)
    _sequence: int = 0
    #: Items so far, the last of which may be incomplete, and the index of each call's item.
    _items: list[Object] = field(default_factory=list)
    _calls: dict[int, int] = field(default_factory=dict)
    #: Arguments of calls of custom tools so far, by the index of their items.
    _arguments: dict[int, str] = field(default_factory=dict)

    def body(self, status: str, output: Sequence[Object] = (), **more: Any) -> Object:
        """Return the object of the response."""
        request = self.request
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": request.background,
            "conversation": {"id": request.conversation_id} if request.conversation_id else None,
            "error": None,
            "incomplete_details": None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "model": request.model,
            "output": [*output],
            "parallel_tool_calls": request.parallel_tool_calls,
            "previous_response_id": request.previous_response_id,
            "reasoning": {"effort": request.effort, "summary": None},
            "store": request.store,
            "temperature": request.temperature,
            "text": request.text.model_dump(by_alias=True, exclude_none=True),
            "tool_choice": request.shown_choice,
            "tools": [one.model_dump() for one in request.tools],
            "top_logprobs": request.top_logprobs,
            "top_p": request.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": None,
            "metadata": request.metadata,
            **more,
        }

    def whole(self, generation: Generation, output: Output) -> Object:
        """Return the object of a finished response."""
        begin = max(0, generation.text.rfind(output.text))
        end = begin + len(output.text)
        for event in _events_of(output):
            if isinstance(event, Text):
                known = generation.logprobs or ()
                self.tokens[:] = [one for one in known if begin <= one.offset < end]
            self._begin(event)
            self._append(event)
        for place in range(len(self._items)):
            self._complete(place)
        return self.finished(generation)

    def finished(self, generation: Generation) -> Object:
        """Return the object of a finished response with its usage."""
        items = self._items
        cut = generation.finish_reason == "length"
        if cut and items:
            items[-1]["status"] = "incomplete"
        new = len(generation.token_ids)
        usage = {
            "input_tokens": generation.prompt_tokens,
            "input_tokens_details": {"cached_tokens": generation.reused_tokens},
            "output_tokens": new,
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens(generation)},
            "total_tokens": generation.prompt_tokens + new,
        }
        details = {"reason": "max_output_tokens"} if cut else None
        status = "incomplete" if cut else "completed"
        return self.body(status, items, usage=usage, incomplete_details=details)

    # --- streams ---------------------------------------------------------------------------------

    def opening(self) -> Iterator[bytes]:
        """Yield the events at the start of a stream."""
        queued = ("queued", "queued") if self.request.background else ("in_progress",)
        for name, status in zip(("created", "queued"), queued, strict=False):
            yield self.event(f"response.{name}", response=self.body(status))
        yield self.event("response.in_progress", response=self.body("in_progress"))

    def event(self, name: str, /, **fields: Any) -> bytes:
        """Return an event with the next sequence number."""
        content = {"type": name, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return server_sent(content, name)

    def grow(self, event: Event) -> Iterator[bytes]:
        """Yield the stream events of an event of the output."""
        if not self._continues(event):
            yield from self.close()
            item = self._begin(event)
            place = len(self._items) - 1
            shown = {**item, "content": []} if "content" in item else dict(item)
            yield self.event("response.output_item.added", output_index=place, item=shown)
            if item["type"] == "message":
                part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
                yield self.event(
                    "response.content_part.added", **self._place(place), content_index=0, part=part
                )
        delta = self._append(event)
        if delta is not None:
            name, place, new = delta
            fields = {} if isinstance(event, Arguments) else {"content_index": 0}
            more: Object = {"logprobs": new} if isinstance(event, Text) else {}
            yield self.event(name, **self._place(place), **fields, delta=event.text, **more)  # type: ignore[union-attr]

    def close(self) -> Iterator[bytes]:
        """Yield the stream events at the end of the last item."""
        if not self._items or self._items[-1].get("status") != "in_progress":
            return
        place, item = len(self._items) - 1, self._items[-1]
        self._complete(place)
        here = self._place(place)
        if item["type"] == "custom_tool_call":
            text = item["input"]
            yield self.event("response.custom_tool_call_input.delta", **here, delta=text)
            yield self.event("response.custom_tool_call_input.done", **here, input=text)
        elif item["type"] == "function_call":
            done = {"arguments": item["arguments"], "name": item["name"]}
            yield self.event("response.function_call_arguments.done", **here, **done)
        elif item["type"] == "reasoning":
            text = item["content"][0]["text"]
            yield self.event("response.reasoning_text.done", **here, content_index=0, text=text)
        else:
            (part,) = item["content"]
            yield self.event(
                "response.output_text.done",
                **here,
                content_index=0,
                text=part["text"],
                logprobs=part["logprobs"],
            )
            yield self.event("response.content_part.done", **here, content_index=0, part=part)
        yield self.event("response.output_item.done", output_index=place, item=item)

    def _complete(self, place: int) -> None:
        """Mark an item as completed; the text of a custom tool's call is in its whole arguments."""
        item = self._items[place]
        item["status"] = "completed"
        if item["type"] == "custom_tool_call":
            item["input"] = text_of(self._arguments.get(place, ""))

    def _place(self, place: int) -> Object:
        return {"item_id": self._items[place]["id"], "output_index": place}

    def _continues(self, event: Event) -> bool:
        """Return whether an event continues the last item."""
        if isinstance(event, Arguments):
            return True
        if isinstance(event, Call) or not self._items:
            return False
        kind = "message" if isinstance(event, Text) else "reasoning"
        last = self._items[-1]
        return bool(last["type"] == kind and last["status"] == "in_progress")

    def _begin(self, event: Event) -> Object:
        """Append the item that an event begins, unless it continues the last one; return the last item."""
        if not self._continues(event):
            self._items.append(_item(event, self.request.origins))
        if isinstance(event, Call):
            self._calls[event.index] = len(self._items) - 1
        return self._items[-1]

    def _append(self, event: Event) -> tuple[str, int, list[Object]] | None:
        """Append an event to its item; return the stream event's name, the item's index, and its new tokens."""
        new = [self.logprobs.of_chat(one) for one in self.tokens]
        self.tokens.clear()
        if isinstance(event, Call):
            return None
        if isinstance(event, Arguments):
            place = self._calls[event.index]
            if self._items[place]["type"] == "custom_tool_call":
                self._arguments[place] = self._arguments.get(place, "") + event.text
                return None
            self._items[place]["arguments"] += event.text
            return "response.function_call_arguments.delta", place, []
        place = len(self._items) - 1
        part = self._items[place]["content"][0]
        part["text"] += event.text
        if isinstance(event, Reasoning):
            return "response.reasoning_text.delta", place, []
        part["logprobs"] += new
        return "response.output_text.delta", place, new


def _item(event: Event, origins: Mapping[str, Origin]) -> Object:
    """Return the empty item that an event begins, which depends on the tool for a call."""
    name = uuid.uuid4().hex
    if isinstance(event, Call):
        frame: Object = {"id": f"fc_{name}", "status": "in_progress"}
        if origin := origins.get(event.name):
            return {**frame, **origin.item(event.id)}
        call = {"call_id": event.id, "name": event.name, "arguments": ""}
        return {**frame, "type": "function_call", **call}
    if isinstance(event, Reasoning):
        content = [{"type": "reasoning_text", "text": ""}]
        frame = {"id": f"rs_{name}", "type": "reasoning", "summary": []}
        return {**frame, "status": "in_progress", "content": content}
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    frame = {"id": f"msg_{name}", "type": "message", "role": "assistant"}
    return {**frame, "status": "in_progress", "content": [part]}


def _events_of(output: Output) -> list[Event]:
    """Return the events of a whole output."""
    events: list[Event] = []
    if output.reasoning:
        events.append(Reasoning(output.reasoning))
    if output.text or not output.calls:
        events.append(Text(output.text))
    for index, call in enumerate(output.calls):
        events += [Call(index, call.id, call.name), Arguments(index, call.arguments)]
    return events
