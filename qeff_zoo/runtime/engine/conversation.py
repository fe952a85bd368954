# SPDX-License-Identifier: Apache-2.0
"""Conversation with a chat model: its turns are kept, and each message is sent with all turns before it."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from qeff_zoo.errors import GenerationError
from qeff_zoo.media.steps import finished
from qeff_zoo.runtime.engine.answers import Request
from qeff_zoo.runtime.engine.engine import Engine, Handle
from qeff_zoo.runtime.engine.text_generation import Generation
from qeff_zoo.runtime.text.chat_output import (
    ChatFormat,
    Event,
    Output,
    OutputParser,
    parsed,
    prompt_end,
)
from qeff_zoo.runtime.text.chat_template import USUAL_CHAT, ChatOptions, ChatTemplate, Message

#: Kinds of files in a message, and the arguments of a request for them.
FILES = {"image": "images", "audio": "audio"}


@dataclass(frozen=True, kw_only=True)
class File:
    """Image or recording of a message.

    Args:
        kind: Type of a part of a message, a key of `FILES`.
        name: Path or URL.
        content: Path, or the content of a URL.
    """

    kind: str
    name: str
    content: str | bytes


@dataclass(eq=False, kw_only=True)
class Turn:
    """Message of the user, and the answer to it.

    Args:
        text: Text of the message.
        files: Images and recordings, which come before the text.
        output: Answer; None before there is one.
    """

    text: str
    files: Sequence[File] = ()
    output: Output | None = None

    @property
    def messages(self) -> list[Message]:
        """The message and, if there is one, the answer, for a chat template."""
        parts: list[Message] = [{"type": file.kind, "path": file.name} for file in self.files]
        content = [*parts, {"type": "text", "text": self.text}] if parts else self.text
        question: Message = {"role": "user", "content": content}
        if self.output is None:
            return [question]
        answer = {"role": "assistant", "content": self.output.text}
        reasoning = self.output.reasoning
        return [question, {**answer, "reasoning_content": reasoning} if reasoning else answer]


class Conversation:
    """Conversation with the model of an engine.

    Args:
        engine: Engine of the model.
        options: Options of the chat template.
        system: System prompt; empty for none.
        **choices: Options of `TextGenerationSession.request`.

    Raises:
        GenerationError: If the package has no chat template.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        options: ChatOptions = USUAL_CHAT,
        system: str = "",
        **choices: Any,
    ) -> None:
        self._engine, self.session = engine, engine.session
        self._template = require_template(self.session.chat_template, options, system)
        self._options = options
        #: Options of further requests.
        self.choices = choices
        self._format = ChatFormat.of(self._template.source(options))
        #: System prompt; empty for none.
        self.system = system
        #: Turns with an answer, the oldest first.
        self.turns: list[Turn] = []
        #: Last message that was sent, even if it has no answer.
        self.last: Turn | None = None
        #: Last generation.
        self.generation: Generation | None = None

    @property
    def messages(self) -> list[Message]:
        """All messages, beginning with the system prompt."""
        return self._messages(self.turns)

    def instruct(self, system: str) -> None:
        """Set the system prompt of further messages; empty for none.

        Raises:
            GenerationError: If the chat template rejects system prompts.
        """
        require_template(self._template, self._options, system)
        self.system = system

    def load(self, messages: Sequence[Message]) -> None:
        """Replace the conversation by another one, whose files are read when the next message is sent.

        Args:
            messages: Messages as `messages` returns them: those of the user with their answers, after a system prompt
                if there is one.

        Raises:
            GenerationError: If the messages are others, or if the chat template rejects system prompts.
        """
        system, rest = "", [*messages]
        if rest and rest[0].get("role") == "system":
            system = _text_of(rest.pop(0))
        if [one.get("role") for one in rest] != ["user", "assistant"] * (len(rest) // 2):
            roles = ", ".join(str(message.get("role")) for message in messages) or "none"
            raise GenerationError(
                f"The conversation has messages of the roles {roles}; expected user and assistant in turns, after at "
                "most one of system. Correct the file."
            )
        turns = [_turn_of(*pair) for pair in zip(rest[::2], rest[1::2], strict=True)]
        self.instruct(system)
        self.turns, self.last = turns, turns[-1] if turns else None

    def check(self, file: File) -> None:
        """Read and encode an image or recording; the session caches what is encoded.

        Raises:
            GenerationError: If the model reads no such files.
            MediaError: If the file cannot be read.
        """
        argument = FILES[file.kind]
        if argument not in self.session.takes:
            read = " and ".join(["text", *self.session.takes])
            raise GenerationError(
                f"The model reads no {argument}, and {file.name!r} is given; expected {read}. Leave it out."
            )
        session: Any = self.session
        for steps in session.encoding(argument, [file.content]):
            finished(steps)

    def send(self, turn: Turn) -> Generator[Event, None, None]:
        """Send a message, and yield the events of the answer. The last turn is sent again without its answer.

        Leaving the iteration early ends the answer, which keeps its text so far.

        Args:
            turn: The message.

        Raises:
            ContextLengthError: If the conversation is too long for the context.
            GenerationError: If the message is invalid.
            MediaError: If a file cannot be read.
        """
        self.last = turn
        again = self.turns and self.turns[-1] is turn
        before = self.turns[:-1] if again else self.turns
        request, parser = self._request([*before, Turn(text=turn.text, files=turn.files)])
        handle = self._engine.submit(request)
        events: list[Event] = []
        try:
            for event in _events(handle, parser):
                events.append(event)
                yield event
        except (GeneratorExit, KeyboardInterrupt):
            handle.cancel()
            raise
        finally:
            with suppress(GenerationError):  # raised by the iteration
                self.generation = handle.result()
                if events or self.generation.finish_reason != "cancelled":
                    turn.output = Output.of(events)
                    self.turns = [*before, turn]

    def _messages(self, turns: Sequence[Turn]) -> list[Message]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *(message for turn in turns for message in turn.messages)]

    def _request(self, turns: Sequence[Turn]) -> tuple[Request, OutputParser | None]:
        """Return the request of a conversation whose last turn has no answer, and the parser of its output."""
        session = self.session
        tokens = session.encode_chat(self._messages(turns), self._options)
        files = [file for turn in turns for file in turn.files]
        given: dict[str, Any] = {
            argument: [file.content for file in files if file.kind == kind]
            for kind, argument in FILES.items()
        }
        given = {argument: contents for argument, contents in given.items() if contents}
        request = session.request(tokens, **self.choices, **given)
        tokenizer = session.tokenizer
        assert tokenizer is not None  # it has encoded the messages
        parser = self._format.parser(prompt_end(tokenizer, tokens))
        if parser is not None:
            request = replace(request, shown=self._format.shown(tokenizer))
        return request, parser


def _turn_of(question: Message, answer: Message) -> Turn:
    """Return the turn of a message and its answer."""
    content = question.get("content")
    parts = content if isinstance(content, list) else []
    files = [
        File(kind=part["type"], name=part["path"], content=part["path"])
        for part in parts
        if part.get("type") in FILES and isinstance(part.get("path"), str)
    ]
    reasoning = answer.get("reasoning_content", "")
    output = Output(text=_text_of(answer), reasoning=str(reasoning))
    return Turn(text=_text_of(question), files=files, output=output)


def _text_of(message: Message) -> str:
    """Return the text of a message.

    Raises:
        GenerationError: If it has none.
    """
    content = message.get("content")
    if isinstance(content, list):
        texts = [part.get("text") for part in content if part.get("type") == "text"]
        content = "".join(map(str, texts)) if texts else None
    if not isinstance(content, str):
        raise GenerationError(
            f"A message of the conversation has the content {content!r}; expected a text. Correct the file."
        )
    return content


def _events(handle: Handle, parser: OutputParser | None) -> Iterator[Event]:
    """Yield the events of a generation."""
    for delta in handle:
        yield from parsed(parser, delta.text, ended=delta.finish_reason is not None)


def require_template(
    template: ChatTemplate | None, options: ChatOptions, system: str = ""
) -> ChatTemplate:
    """Return the chat template of a conversation.

    Args:
        template: Chat template of the package, if it has one.
        options: Options of the template.
        system: System prompt; empty for none.

    Raises:
        GenerationError: If there is none, if the options select none, or if it rejects system prompts.
    """
    if template is None:
        raise GenerationError(
            "The package has no chat template; expected one from its checkpoint. Use `qeff-zoo run` with a prompt: a "
            "base model continues it."
        )
    template.source(options)
    if system:
        user: Mapping[str, str] = {"role": "user", "content": "?"}
        template.render([{"role": "system", "content": system}, user], options)
    return template
