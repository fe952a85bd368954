# SPDX-License-Identifier: Apache-2.0
"""OpenAI's objects of generations: chats and completions, whole and in chunks, with usage and log-probabilities."""

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from types import MappingProxyType
from typing import Any, Literal

from qeff_zoo.runtime import Delta, Generation, TokenLogprobs
from qeff_zoo.runtime.chat_output import Call, Event, Output, Reasoning, Text
from qeff_zoo.runtime.tokenizer import Tokenizer

Object = dict[str, Any]
_FINISH_REASONS: Mapping[str | None, str | None] = MappingProxyType(
    {"eos": "stop", "stop": "stop", "length": "length", None: None}
)
_LEAST_LOGPROB = -9999.0  # JSON has no infinity, and OpenAI writes this
_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


@dataclass
class Reply:
    """Response objects of one request.

    Args:
        kind: Kind of the endpoint.
        model: Name of the model.
        fingerprint: Identity of the model: the same fingerprint and seed give the same text.
        tokenizer: Tokenizer for the texts of tokens; None for a package without one.
        logprobs: Whether the request includes log-probabilities.
        prompt_logprobs: Whether it includes those of the prompt, as in vLLM's API.
        token_ids: Whether it includes token ids, as in vLLM's API.
        echo: Texts of the prompts that precede their choices; empty for none.
    """

    kind: Literal["chat", "completion"]
    model: str
    fingerprint: str
    tokenizer: Tokenizer | None
    logprobs: bool
    prompt_logprobs: bool = False
    token_ids: bool = False
    echo: Sequence[str] = ()
    _frame: Object = field(init=False)
    #: Length of the text so far, and tokens without text so far, by choice.
    _lengths: dict[int, int] = field(init=False, default_factory=dict)
    _held: dict[int, list[TokenLogprobs]] = field(init=False, default_factory=dict)
    #: Token ids without a chunk so far, by choice.
    _held_ids: dict[int, list[int]] = field(init=False, default_factory=dict)
    #: Choices with a tool call.
    _calling: set[int] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        prefix = "chatcmpl" if self.kind == "chat" else "cmpl"
        self._frame = {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }

    def whole(self, answers: Sequence[Generation], outputs: Sequence[Output], n: int) -> Object:
        """Return the object of a complete response.

        Args:
            answers: Generations: `n` for each prompt.
            outputs: Parsed output of each.
            n: Number of choices per prompt.
        """
        name = "chat.completion" if self.kind == "chat" else "text_completion"
        both = zip(answers, outputs, strict=True)
        choices = [self._choice(number, n, *one) for number, one in enumerate(both)]
        whole = {**self._frame, "object": name, "choices": choices, "usage": usage(answers, n)}
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
        if self.kind == "completion":
            echo = self.echo[number // n] if self.echo else ""
            choice = {"index": number, "text": echo, "logprobs": None, "finish_reason": None}
            return self._chunk(choice) if echo else None
        delta = {"role": "assistant", "content": "", "refusal": None}
        return self._chunk(
            {"index": number, "delta": delta, "logprobs": None, "finish_reason": None}
        )

    def chunk(self, number: int, delta: Delta, events: Sequence[Event]) -> Object | None:
        """Return the chunk of a delta and the events that it completes; None if it has no content yet."""
        if any(isinstance(event, Call) for event in events):
            self._calling.add(number)
        ids = [*self._held_ids.pop(number, ()), *delta.token_ids]
        if not (events or delta.finish_reason):
            self._held_ids[number] = ids
            self._held.setdefault(number, []).extend(delta.logprobs)
            self._lengths[number] = self._lengths.get(number, 0) + len(delta.text)
            return None
        text = {"delta": _delta(events)} if self.kind == "chat" else {"text": delta.text}
        beside = self._beside(number, delta, delta.logprobs, calls=number in self._calling)
        more = {"token_ids": ids} if self.token_ids else {}
        return self._chunk({"index": number, **text, **beside, **more})

    def closing(self, answers: Sequence[Generation], n: int) -> Object:
        """Return the last chunk, which has the usage."""
        return {**self._chunk(), "usage": usage(answers, n)}

    def _chunk(self, *choices: Object) -> Object:
        name = "chat.completion.chunk" if self.kind == "chat" else "text_completion"
        return {**self._frame, "object": name, "choices": [*choices]}

    def _choice(self, number: int, n: int, answer: Generation, output: Output) -> Object:
        calls = bool(output.calls)
        beside = self._beside(number, answer, answer.logprobs or (), calls=calls)
        if self.token_ids:
            beside["token_ids"] = [*answer.token_ids]
        if self.kind == "chat":
            return {"index": number, "message": _message(output), **beside}
        if self.token_ids:
            beside["prompt_token_ids"] = [*answer.prompt_token_ids]
        echo = self.echo[number // n] if self.echo else ""
        if self.echo and beside["logprobs"]:
            beside["logprobs"] = self._echoed(answer, len(echo), beside["logprobs"])
        if self.prompt_logprobs:
            beside["prompt_logprobs"] = self._of_prompt(answer)
        return {"index": number, "text": echo + answer.text, **beside}

    def _echoed(self, answer: Generation, length: int, generated: Object) -> Object:
        """Return the log-probabilities of a choice after those of its prompt, the first of which is null."""
        known = answer.prompt_logprobs or []
        prompt = self._completion_logprobs([TokenLogprobs(token_id=0, logprob=0, top=()), *known])
        prompt["tokens"] = [self._text(token) for token in answer.prompt_token_ids]
        prompt["token_logprobs"][0] = prompt["top_logprobs"][0] = None
        ends = accumulate(map(len, prompt["tokens"]), initial=0)
        prompt["text_offset"] = [min(end, length) for end in ends][:-1]
        generated["text_offset"] = [length + offset for offset in generated["text_offset"]]
        return {name: [*prompt[name], *generated[name]] for name in generated}

    def _of_prompt(self, answer: Generation) -> list[Object | None]:
        """Return the log-probabilities of a prompt as in vLLM's API, by token id; null for the first token."""

        def entry(token: int, logprob: float, rank: int) -> Object:
            value = {"logprob": _finite(logprob), "rank": rank, "decoded_token": self._text(token)}
            return {str(token): value}

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
        said: Delta | Generation,
        logprobs: Sequence[TokenLogprobs],
        *,
        calls: bool,
    ) -> Object:
        """Return the fields beside the text of a choice: log-probabilities of the tokens that begin in the text.

        They exclude EOS tokens and the text after a stop string.
        """
        length = self._lengths.get(number, 0) + len(said.text)
        known = [*self._held.get(number, ()), *logprobs]
        shown = [one for one in known if one.offset < length or self.tokenizer is None]
        self._lengths[number], self._held[number] = length, known[len(shown) :]
        found = None
        if self.logprobs and self.kind == "chat":
            found = {"content": [self._chat_logprob(one) for one in shown], "refusal": None}
        elif self.logprobs:
            found = self._completion_logprobs(shown)
        reason = _FINISH_REASONS[said.finish_reason]
        reason = "tool_calls" if calls and reason == "stop" else reason
        return {"logprobs": found, "finish_reason": reason}

    def _chat_logprob(self, token: TokenLogprobs) -> Object:
        top = [self._entry(*one) for one in token.top]
        return {**self._entry(token.token_id, token.logprob), "top_logprobs": top}

    def _entry(self, token_id: int, logprob: float) -> Object:
        text = self._text(token_id)
        # A token may be a part of a character, which has no text.
        data = None if _INCOMPLETE in text else [*text.encode()]
        return {"token": text, "logprob": _finite(logprob), "bytes": data}

    def _completion_logprobs(self, logprobs: Sequence[TokenLogprobs]) -> Object:
        pairs = [(*one.top, (one.token_id, one.logprob)) for one in logprobs]
        return {
            "tokens": [self._text(one.token_id) for one in logprobs],
            "token_logprobs": [_finite(one.logprob) for one in logprobs],
            "top_logprobs": [{self._text(token): _finite(value) for token, value in one} for one in pairs],
            "text_offset": [one.offset for one in logprobs],
        }  # fmt: skip

    def _text(self, token_id: int) -> str:
        return self.tokenizer.piece(token_id) if self.tokenizer else f"token_id:{token_id}"


def _message(output: Output) -> Object:
    """Return a message of the assistant. Reasoning has its names in vLLM, and in DeepSeek's API and llama.cpp."""
    content = output.text if output.text or not output.calls else None
    found: Object = {"role": "assistant", "content": content, "refusal": None}
    if output.reasoning:
        found |= {"reasoning": output.reasoning, "reasoning_content": output.reasoning}
    if output.calls:
        found["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in output.calls
        ]
    return found


def _delta(events: Sequence[Event]) -> Object:
    """Return the delta of a message."""
    found: Object = {}
    calls: dict[int, Object] = {}
    for event in events:
        if isinstance(event, Text):
            found["content"] = found.get("content", "") + event.text
        elif isinstance(event, Reasoning):
            for name in ("reasoning", "reasoning_content"):
                found[name] = found.get(name, "") + event.text
        elif isinstance(event, Call):
            function = {"name": event.name, "arguments": ""}
            calls[event.index] = {"id": event.id, "type": "function", "function": function}
        else:
            call = calls.setdefault(event.index, {"function": {"arguments": ""}})
            call["function"]["arguments"] += event.text
    if calls:
        found["tool_calls"] = [{"index": index, **call} for index, call in calls.items()]
    return found


def usage(answers: Sequence[Generation], n: int) -> Object:
    """Count tokens: a prompt once, regardless of its number of choices."""
    prompts = answers[::n]
    counts = usage_of(
        sum(one.prompt_tokens for one in prompts), sum(len(one.token_ids) for one in answers)
    )
    cached = sum(one.reused_tokens for one in prompts)
    return {**counts, "prompt_tokens_details": {"cached_tokens": cached}}


def usage_of(prompt_tokens: int, completion_tokens: int) -> Object:
    """Return the object of a usage."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST_LOGPROB)
