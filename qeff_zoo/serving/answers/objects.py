# SPDX-License-Identifier: Apache-2.0
"""OpenAI's objects of generations: chats and completions, whole and in chunks, with usage and log-probabilities."""

import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from types import MappingProxyType
from typing import Any, Literal

from qeff_zoo.runtime import Delta, Generation, TokenLogprobs
from qeff_zoo.runtime.text.chat_output import (
    Arguments,
    Call,
    Event,
    Output,
    Reasoning,
    Text,
    ToolCall,
)
from qeff_zoo.serving.answers.chats import Chat
from qeff_zoo.serving.answers.custom_tools import text_of
from qeff_zoo.serving.answers.logprobs import LogprobObjects, finite

Object = dict[str, Any]
_FINISH_REASONS: Mapping[str | None, str | None] = MappingProxyType(
    {"eos": "stop", "stop": "stop", "length": "length", None: None}
)


@dataclass
class Reply:
    """Response objects of one request.

    Args:
        kind: Kind of the endpoint.
        model: Name of the model.
        fingerprint: Identity of the model: the same fingerprint and seed give the same text.
        shown: Objects of log-probabilities.
        logprobs: Whether the request includes log-probabilities.
        prompt_logprobs: Whether it includes those of the prompt, as in vLLM's API.
        token_ids: Whether it includes token ids, as in vLLM's API.
        echo: Texts that precede the choices of each prompt: the prompt, or a chat's last message; empty for none.
        custom_tools: Names of the custom tools of a chat, whose calls have a text.
        stop_token_ids: Tokens that end generation besides the model's EOS tokens, which are a reason as in vLLM's API.
    """

    kind: Literal["chat", "completion"]
    model: str
    fingerprint: str
    shown: LogprobObjects
    logprobs: bool
    prompt_logprobs: bool = False
    token_ids: bool = False
    echo: Sequence[str] = ()
    custom_tools: Collection[str] = ()
    stop_token_ids: Collection[int] = ()
    _frame: Object = field(init=False)
    #: Length of the text so far, and tokens without text so far, by choice.
    _lengths: dict[int, int] = field(init=False, default_factory=dict)
    _held: dict[int, list[TokenLogprobs]] = field(init=False, default_factory=dict)
    #: Token ids without a chunk so far, by choice.
    _held_ids: dict[int, list[int]] = field(init=False, default_factory=dict)
    #: Choices with a tool call.
    _calling: set[int] = field(init=False, default_factory=set)
    #: Arguments so far of calls of custom tools, by choice and index.
    _arguments: dict[int, dict[int, str]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        prefix = "chatcmpl" if self.kind == "chat" else "cmpl"
        self._frame = {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }

    def whole(self, chat: Chat, answers: Sequence[Generation], n: int) -> Object:
        """Return the object of a complete response.

        Args:
            chat: The prepared chat or completion.
            answers: Generations: `n` for each prompt.
            n: Number of choices per prompt.
        """
        name = "chat.completion" if self.kind == "chat" else "text_completion"
        choices = [
            self._choice(number, n, answer, chat.output(answer))
            for number, answer in enumerate(answers)
        ]
        usage = self._usage(chat, answers, n)
        whole = {**self._frame, "object": name, "choices": choices, "usage": usage}
        if self.kind == "chat" and self.prompt_logprobs:
            whole["prompt_logprobs"] = self._of_prompt(answers[0])
        if self.kind == "chat" and self.token_ids:
            whole["prompt_token_ids"] = [*answers[0].prompt_token_ids]
        return whole

    def opening(self, number: int, n: int) -> Object | None:
        """Return the first chunk of a choice, with its role or the echoed prompt; None if it has neither.

        Args:
            number: Number of the choice.
            n: Number of choices per prompt.
        """
        echo = self.echo[number // n] if self.echo else ""
        if self.kind == "completion":
            choice = {"index": number, "text": echo, "logprobs": None, "finish_reason": None}
            return self._chunk(choice) if echo else None
        delta = {"role": "assistant", "content": echo, "refusal": None}
        return self._chunk(
            {"index": number, "delta": delta, "logprobs": None, "finish_reason": None}
        )

    def chunk(self, number: int, delta: Delta, events: Sequence[Event]) -> Object | None:
        """Return the chunk of a delta and the events that it completes; None if it has no content yet."""
        if any(isinstance(event, Call) for event in events):
            self._calling.add(number)
        if self.custom_tools:
            events = [*self._with_texts(number, events, ends=bool(delta.finish_reason))]
        ids = [*self._held_ids.pop(number, ()), *delta.token_ids]
        if not (events or delta.finish_reason):
            self._held_ids[number] = ids
            self._held.setdefault(number, []).extend(delta.logprobs)
            self._lengths[number] = self._lengths.get(number, 0) + len(delta.text)
            return None
        text = (
            {"delta": _delta(events, self._arguments.get(number, ()))}
            if self.kind == "chat"
            else {"text": delta.text}
        )
        beside = self._beside(number, delta, delta.logprobs, calls=number in self._calling)
        more = {"token_ids": ids} if self.token_ids else {}
        return self._chunk({"index": number, **text, **beside, **more})

    def _with_texts(self, number: int, events: Sequence[Event], *, ends: bool) -> Iterator[Event]:
        """Yield events of a choice; those with the text of a custom tool's call at its end, as it is in its arguments.

        Args:
            number: Number of the choice.
            events: New events.
            ends: Whether they are the last ones.
        """
        known = self._arguments.setdefault(number, {})
        for event in events:
            if isinstance(event, Arguments) and event.index in known:
                known[event.index] += event.text
                continue
            if isinstance(event, Call):
                yield from self._texts(number)
                if event.name in self.custom_tools:
                    known[event.index] = ""
            yield event
        if ends:
            yield from self._texts(number)

    def _texts(self, number: int) -> Iterator[Event]:
        """Yield the text of the last call of a choice, if it is one of a custom tool that has not ended."""
        known = self._arguments[number]
        for index, arguments in known.items():
            if arguments:
                known[index] = ""
                yield Arguments(index, text_of(arguments))

    def closing(self, chat: Chat, answers: Sequence[Generation], n: int) -> Object:
        """Return the last chunk, which has the usage; for the arguments see `whole`."""
        return {**self._chunk(), "usage": self._usage(chat, answers, n)}

    def _usage(self, chat: Chat, answers: Sequence[Generation], n: int) -> Object:
        """Count tokens: a prompt once, regardless of its number of choices."""
        prompts = answers[::n]
        found = usage_of(
            sum(one.prompt_tokens for one in prompts), sum(len(one.token_ids) for one in answers)
        )
        cached = sum(one.reused_tokens for one in prompts)
        found["prompt_tokens_details"] = {"cached_tokens": cached}
        if self.kind == "chat":
            thought = sum(chat.reasoning_tokens(one, self.shown.tokenizer) for one in answers)
            found["completion_tokens_details"] = {"reasoning_tokens": thought}
        return found

    def _chunk(self, *choices: Object) -> Object:
        name = "chat.completion.chunk" if self.kind == "chat" else "text_completion"
        return {**self._frame, "object": name, "choices": [*choices]}

    def _choice(self, number: int, n: int, answer: Generation, output: Output) -> Object:
        calls = bool(output.calls)
        beside = self._beside(number, answer, answer.logprobs or (), calls=calls)
        if self.token_ids:
            beside["token_ids"] = [*answer.token_ids]
        echo = self.echo[number // n] if self.echo else ""
        if self.kind == "chat":
            return {"index": number, "message": _message(output, echo, self.custom_tools), **beside}
        if self.token_ids:
            beside["prompt_token_ids"] = [*answer.prompt_token_ids]
        if self.echo and beside["logprobs"]:
            beside["logprobs"] = self._echoed(answer, len(echo), beside["logprobs"])
        if self.prompt_logprobs:
            beside["prompt_logprobs"] = self._of_prompt(answer)
        return {"index": number, "text": echo + answer.text, **beside}

    def _echoed(self, answer: Generation, length: int, generated: Object) -> Object:
        """Return the log-probabilities of a choice after those of its prompt, the first of which is null."""
        known = answer.prompt_logprobs or []
        first = TokenLogprobs(token_id=answer.prompt_token_ids[0], logprob=0, top=())
        prompt = self.shown.of_completion([first, *known])
        prompt["token_logprobs"][0] = prompt["top_logprobs"][0] = None
        texts = map(self.shown.text, answer.prompt_token_ids)
        ends = accumulate(map(len, texts), initial=0)
        prompt["text_offset"] = [min(end, length) for end in ends][:-1]
        generated["text_offset"] = [length + offset for offset in generated["text_offset"]]
        return {name: [*prompt[name], *generated[name]] for name in generated}

    def _of_prompt(self, answer: Generation) -> list[Object | None]:
        """Return the log-probabilities of a prompt as in vLLM's API, by token id; null for the first token."""

        def entry(token: int, logprob: float, rank: int) -> Object:
            text = self.shown.text(token)
            return {str(token): {"logprob": finite(logprob), "rank": rank, "decoded_token": text}}

        found: list[Object | None] = [None]
        for one in answer.prompt_logprobs or ():
            known = entry(one.token_id, one.logprob, one.rank)
            for rank, (token, value) in enumerate(one.top, 1):
                known = {**entry(token, value, rank), **known}
            found.append(known)
        return found

    def _beside(
        self,
        number: int,
        output: Delta | Generation,
        logprobs: Sequence[TokenLogprobs],
        *,
        calls: bool,
    ) -> Object:
        """Return the fields beside the text of a choice: log-probabilities of the tokens that begin in the text.

        They exclude EOS tokens and the text after a stop string.
        """
        length = self._lengths.get(number, 0) + len(output.text)
        known = [*self._held.get(number, ()), *logprobs]
        shown = [one for one in known if one.offset < length or self.shown.tokenizer is None]
        self._lengths[number], self._held[number] = length, known[len(shown) :]
        found = None
        if self.logprobs and self.kind == "chat":
            found = {"content": [*map(self.shown.of_chat, shown)], "refusal": None}
        elif self.logprobs:
            found = self.shown.of_completion(shown)
        reason = _FINISH_REASONS[output.finish_reason]
        reason = "tool_calls" if calls and reason == "stop" else reason
        stopped: str | int | None = output.stop_string
        if output.finish_reason == "eos" and output.token_ids[-1] in self.stop_token_ids:
            stopped = output.token_ids[-1]
        more = {"stop_reason": stopped} if reason else {}
        return {"logprobs": found, "finish_reason": reason, **more}


def _message(output: Output, echo: str, custom_tools: Collection[str]) -> Object:
    """Return a message of the assistant. Reasoning has its names in vLLM, and in DeepSeek's API and llama.cpp."""
    text = echo + output.text
    content = text if text or not output.calls else None
    found: Object = {"role": "assistant", "content": content, "refusal": None}
    if output.reasoning:
        found |= {"reasoning": output.reasoning, "reasoning_content": output.reasoning}
    if output.calls:
        found["tool_calls"] = [
            {"id": call.id, **_called(call, is_custom=call.name in custom_tools)}
            for call in output.calls
        ]
    return found


def _called(call: ToolCall, *, is_custom: bool) -> Object:
    """Return the tool of a call, and what it is called with."""
    if is_custom:
        text = text_of(call.arguments)
        return {"type": "custom", "custom": {"name": call.name, "input": text}}
    return {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _delta(events: Sequence[Event], custom: Collection[int]) -> Object:
    """Return the delta of a message.

    Args:
        events: New events.
        custom: Indices of the calls of custom tools.
    """
    found: Object = {}
    calls: dict[int, Object] = {}
    for event in events:
        if isinstance(event, Text):
            found["content"] = found.get("content", "") + event.text
        elif isinstance(event, Reasoning):
            for name in ("reasoning", "reasoning_content"):
                found[name] = found.get(name, "") + event.text
        elif isinstance(event, Call):
            kind, content = _fields(event.index, custom)
            tool = {"name": event.name, content: ""}
            calls[event.index] = {"id": event.id, "type": kind, kind: tool}
        else:
            kind, content = _fields(event.index, custom)
            call = calls.setdefault(event.index, {kind: {content: ""}})
            call[kind][content] += event.text
    if calls:
        found["tool_calls"] = [{"index": index, **call} for index, call in calls.items()]
    return found


def _fields(index: int, custom: Collection[int]) -> tuple[str, str]:
    """Return the kind of a call's tool, and the name of what it is called with."""
    return ("custom", "input") if index in custom else ("function", "arguments")


def usage_of(prompt_tokens: int, completion_tokens: int) -> Object:
    """Return the object of a usage."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
