# SPDX-License-Identifier: Apache-2.0
"""A prepared chat: requests of the runtime, and typed events of their outputs, for any endpoint.

An endpoint converts its body to a `ChatRequest`, prepares it (`prompts.prepare_chat`), submits its requests, and
converts events (`chat_events`) or whole outputs (`Chat.output`) to its own objects.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from qeff_zoo.runtime import Delta, Generation, Handle, Request
from qeff_zoo.runtime.text.chat_output import Event, Output, OutputParser, Reasoning, parsed
from qeff_zoo.runtime.text.tokenizer import Tokenizer
from qeff_zoo.serving.answers.completion_choices import grow
from qeff_zoo.serving.monitoring.metrics import Metrics


@dataclass(frozen=True, kw_only=True)
class Chat:
    """Prepared chat or completion.

    Args:
        requests: A request for each choice.
        parser: Function that returns the parser of a choice's output; None for plain text.
        shows_reasoning: Whether the client wants the reasoning.
    """

    requests: Sequence[Request]
    parser: Callable[[], OutputParser] | None = None
    shows_reasoning: bool = True

    def output(self, generation: Generation) -> Output:
        """Return the output of a generation."""
        return Output.of(self._shown(events_of(self.parser, generation.text)))

    def reasoning_tokens(self, generation: Generation, tokenizer: Tokenizer | None) -> int:
        """Return the number of tokens of a generation's reasoning, also if the client does not want it."""
        if self.parser is None or tokenizer is None:
            return 0
        thought = Output.of(events_of(self.parser, generation.text)).reasoning
        count = len(tokenizer.encode(thought, special_tokens=False)) if thought else 0
        return min(len(generation.token_ids), count)

    def _shown(self, events: Sequence[Event]) -> list[Event]:
        shown = self.shows_reasoning
        return [event for event in events if shown or not isinstance(event, Reasoning)]


def events_of(parser: Callable[[], OutputParser] | None, text: str) -> list[Event]:
    """Return the events of a whole text."""
    return parsed(parser() if parser else None, text, ended=True)


async def chat_events(
    chat: Chat, handles: Sequence[Handle], metrics: Metrics
) -> AsyncIterator[tuple[int, Delta, list[Event]]]:
    """Yield the deltas of the choices, each with the number of its choice and the events that it completes.

    Raises:
        ApiError: The same errors as `grow`.
    """
    parsers = [chat.parser() if chat.parser else None for _ in handles]
    async for number, delta in grow(handles, metrics):
        events = parsed(parsers[number], delta.text, ended=delta.finish_reason is not None)
        yield number, delta, chat._shown(events)
