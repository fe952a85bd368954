# SPDX-License-Identifier: Apache-2.0
"""Command `chat`: a conversation with a package in the terminal, or a message in each line of stdin."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from qeff_zoo.cli.applicable import refuse_inapplicable, task_of
from qeff_zoo.cli.generation_options import (
    add_acceptance,
    add_adapter,
    add_prefix_cache,
    add_sampling,
    add_template,
    generation_choices,
    load_adapter,
)
from qeff_zoo.cli.inputs import usable_package
from qeff_zoo.cli.options import add_draft, add_package, add_threads, command
from qeff_zoo.disk.regular import read_text
from qeff_zoo.errors import ContextLengthError, GenerationError, ZooError
from qeff_zoo.terminal.printing import print_dimmed, print_generated
from qeff_zoo.terminal.sanitize import as_is

if TYPE_CHECKING:
    from qeff_zoo.contract import Task
    from qeff_zoo.runtime.engine.conversation import Conversation, File, Turn

_PROMPT = ">>> "
#: Commands within a chat: name, argument, and description. An argument in brackets is optional.
CHAT_COMMANDS = (
    ("/help", "", "list the commands"),
    ("/image", "FILE", "add an image to the next message: a path or a URL"),
    ("/audio", "FILE", "add a recording to the next message"),
    ("/file", "FILE", "add the text of a file to the next message"),
    ("/system", "[TEXT]", "set the system prompt; without TEXT, remove it"),
    ("/retry", "", "send the last message again, for another answer"),
    ("/clear", "[N]", "drop all turns, or the N oldest ones"),
    (
        "/set",
        "[NAME [X]]",
        "set a sampling parameter; without X its default, without NAME list all",
    ),
    ("/save", "FILE", "write the conversation to a new JSON file"),
    ("/load", "FILE", "replace the conversation by that of such a file"),
    ("/exit", "", "end the chat"),
)

#: Parameters that /set sets, with the types of their values.
PARAMETERS: Mapping[str, type] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                *("temperature", "top_p", "min_p"),
                *("repetition_penalty", "presence_penalty", "frequency_penalty"),
            ),
            float,
        ),
        **dict.fromkeys(("top_k", "seed", "generation_len"), int),
    }
)


def chat_command(arguments: argparse.Namespace) -> None:
    """Hold a conversation with a package until /exit or the end of stdin."""
    from qeff_zoo.runtime import ChatOptions, Engine
    from qeff_zoo.runtime.engine.conversation import Conversation, require_template
    from qeff_zoo.runtime.text.chat_template import ChatTemplate
    from qeff_zoo.sessions import open_session
    from qeff_zoo.tasks.text_generation.verbs import configure, sampling_of, template_options

    package = usable_package(arguments.package)
    task = task_of(package)
    _require_chat(task)
    options = refuse_inapplicable("chat", task, arguments)
    template = ChatOptions(**template_options(arguments))
    require_template(ChatTemplate.find(package.path), template, arguments.system)
    chosen = generation_choices(arguments) if "prefix_cache_bytes" in options else {}
    session: Any = open_session(package, threads=arguments.threads, **chosen)
    configure(session, arguments)
    adapter = arguments.adapter and load_adapter(session, arguments.adapter, "--adapter")
    with Engine(session) as engine:
        conversation = Conversation(
            engine,
            options=template,
            system=arguments.system,
            generation_len=arguments.generation_len,
            sampling=sampling_of(session, arguments),
            stop=arguments.stop,
            adapter=adapter,
        )
        Chat(conversation, as_json=arguments.json).run()


def _require_chat(task: "Task") -> None:
    from qeff_zoo.contract import NAMES, find

    if not task.commands.options("chat"):
        names = [name for name in NAMES if find(name).commands.options("chat")]
        raise GenerationError(
            f"A package for {task.name} holds no conversation; expected one for {' or '.join(names)}. Use `qeff-zoo "
            "run`, or another package."
        )


class Chat:
    """A conversation by lines: messages, and commands that begin with a slash.

    In a terminal, an error or Ctrl-C ends an answer; elsewhere it ends the chat.

    Args:
        conversation: The conversation.
        as_json: Whether each answer is a line with a JSON object.
    """

    def __init__(self, conversation: "Conversation", *, as_json: bool = False) -> None:
        self.conversation, self._as_json = conversation, as_json
        self._interactive = sys.stdin.isatty() and sys.stdout.isatty()
        self._files: list[File] = []  # of the next message
        self._texts: list[str] = []
        self._ended = False

    def run(self) -> None:
        """Read and handle lines until the end."""
        read = _prompting() if self._interactive else _next_line
        if self._interactive:
            size = self.conversation.session.decoder.sizes.ctx_len
            _note(
                f"Context: {size:,} tokens. /help lists the commands, Ctrl-C stops an answer, Ctrl-D ends the chat."
            )
        while not self._ended:
            try:
                self.handle(read())
            except EOFError:
                break
            except KeyboardInterrupt:
                if not self._interactive:
                    raise
                print()
            except ZooError as error:
                if not self._interactive:
                    raise
                _note(str(error))

    def handle(self, line: str) -> None:
        """Handle a message or a command. Two slashes begin a message with one.

        Raises:
            ZooError: If the message or the command is invalid.
        """
        line = line.strip()
        if line.startswith("/") and not line.startswith("//"):
            self._command(line)
        elif line:
            from qeff_zoo.runtime.engine.conversation import Turn

            text = line[1:] if line.startswith("//") else line
            whole = "\n\n".join([*self._texts, text])
            self._answer(Turn(text=whole, files=tuple(self._files)))

    def _command(self, line: str) -> None:
        name, _, argument = line.partition(" ")
        argument = argument.strip()
        known = {command: expected for command, expected, _ in CHAT_COMMANDS}
        if name not in known:
            raise GenerationError(
                f"There is no command {name!r}; expected {', '.join(known)}. Begin a message that starts with a slash "
                "with two of them."
            )
        expected = known[name]
        lacks = bool(expected) and not argument and not expected.startswith("[")
        if lacks or (argument and not expected):
            raise GenerationError(
                f"{name} has the argument {argument!r}; expected {expected or 'none'}. Correct it."
            )
        handlers: dict[str, Callable[[], None]] = {
            "/help": self._help,
            "/image": partial(self._attach, "image", argument),
            "/audio": partial(self._attach, "audio", argument),
            "/file": partial(self._add_text, argument),
            "/system": lambda: self.conversation.instruct(argument),
            "/retry": self._retry,
            "/clear": partial(self._clear, argument),
            "/set": partial(self._set, argument),
            "/save": partial(self._save, argument),
            "/load": partial(self._load, argument),
            "/exit": self._exit,
        }
        handlers[name]()

    def _answer(self, turn: "Turn") -> None:
        """Send a message, and print the answer as it is generated."""
        from qeff_zoo.runtime.text.chat_output import Reasoning, Text

        self._files, self._texts = [], []
        begun = None  # time of the first event
        try:
            with closing(self.conversation.send(turn)) as events:
                thinks = False
                for event in events:
                    begun = begun or time.monotonic()
                    if self._as_json:
                        continue
                    if isinstance(event, Reasoning):
                        print_dimmed(event.text)
                    elif isinstance(event, Text):
                        print_dimmed("\n\n" * thinks)
                        print_generated(event.text, end="")
                    thinks = isinstance(event, Reasoning)
        except ContextLengthError as error:
            raise ContextLengthError(
                f"The message was not sent: {error} /clear N drops the N oldest of "
                f"{len(self.conversation.turns)} turns; then /retry sends it."
            ) from error
        self._finish(time.monotonic() - begun if begun else 0.0)

    def _finish(self, seconds: float) -> None:
        """End the printed answer; note its speed in a terminal, and why it ended, if not by itself.

        Args:
            seconds: Time since its first token.
        """
        from qeff_zoo.tasks.text_generation.verbs import as_json

        generation, output = self.conversation.generation, self.conversation.turns[-1].output
        assert generation is not None
        assert output is not None
        if self._as_json:
            parts = {"text": output.text, "reasoning": output.reasoning}
            print(json.dumps({**as_json(generation), **parts}, ensure_ascii=False), flush=True)
        else:
            print_generated("")
        count = len(generation.token_ids)
        if self._interactive and count > 1 and seconds:
            _note(f"{count} tokens, {(count - 1) / seconds:.1f} a second")
        if generation.finish_reason == "length":
            size = self.conversation.session.decoder.sizes.ctx_len
            full = generation.prompt_tokens + len(generation.token_ids) >= size
            _note(
                f"The answer ends here: the context of {size:,} tokens is full. /clear N drops the N oldest turns."
                if full
                else "The answer ends here, after --generation-len tokens."
            )

    # --- commands --------------------------------------------------------------------------------

    def _help(self) -> None:
        takes = self.conversation.session.takes
        absent = {"/image": "images" not in takes, "/audio": "audio" not in takes}
        for name, argument, text in CHAT_COMMANDS:
            if not absent.get(name):
                print(f"{f'{name} {argument}':<16} {text}", file=sys.stderr)

    def _attach(self, kind: str, name: str) -> None:
        from qeff_zoo.media.fetching import fetch_media, is_url
        from qeff_zoo.runtime.engine.conversation import File

        content = fetch_media(name) if kind == "image" and is_url(name) else name
        file = File(kind=kind, name=name, content=content)
        self.conversation.check(file)
        self._files.append(file)

    def _add_text(self, name: str) -> None:
        try:
            text = read_text(name)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
            raise GenerationError(
                f"Cannot read {name!r}: {reason}. Expected a file of text. Name another."
            ) from error
        self._texts.append(f"{Path(name).name}:\n\n{text.rstrip()}")

    def _retry(self) -> None:
        if self.conversation.last is None:
            raise GenerationError(
                "/retry has no message to send; expected one before it. Send one."
            )
        self._answer(self.conversation.last)

    def _clear(self, count: str) -> None:
        if count and not count.isdecimal():
            raise GenerationError(
                f"/clear has the argument {count!r}; expected a number of turns. Correct it."
            )
        del self.conversation.turns[: int(count) if count else None]
        if not count:
            self._files, self._texts = [], []

    def _save(self, name: str) -> None:
        text = json.dumps({"messages": self.conversation.messages}, indent=2, ensure_ascii=False)
        try:
            with Path(name).open("x", encoding="utf-8") as file:
                file.write(f"{text}\n")
        except OSError as error:
            raise GenerationError(
                f"Cannot write {name!r}: {error.strerror}. Expected a new file in a folder that exists. Name another."
            ) from error

    def _set(self, argument: str) -> None:
        from qeff_zoo.runtime import Sampling

        choices = self.conversation.choices
        sampling = choices["sampling"]
        before = {name: getattr(sampling, name) for name in sampling.given}
        before["generation_len"] = choices["generation_len"]
        name, _, value = argument.partition(" ")
        name = name.replace("-", "_")
        if not name:
            for key in PARAMETERS:
                _note(f"{key:<20} {'default' if before.get(key) is None else before[key]}")
            return
        if name not in PARAMETERS:
            raise GenerationError(
                f"/set has the parameter {name!r}; expected one of {', '.join(PARAMETERS)}. Correct it."
            )
        try:
            parsed = PARAMETERS[name](value) if value else None
        except ValueError as error:
            raise GenerationError(
                f"/set {name} has the value {value!r}; expected a number. Correct it."
            ) from error
        after = {**before, name: parsed}
        self.conversation.choices = {
            **choices,
            "generation_len": after.pop("generation_len"),
            "sampling": Sampling(
                **{key: entry for key, entry in after.items() if entry is not None}
            ),
        }

    def _load(self, name: str) -> None:
        try:
            stored = json.loads(read_text(name))
            messages = stored["messages"]
            if not all(isinstance(message, dict) for message in messages):
                raise TypeError  # noqa: TRY301 -- one error for all that is no conversation
        except OSError as error:
            raise GenerationError(
                f"Cannot read {name!r}: {error.strerror}. Expected a file that /save has written. Name another."
            ) from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise GenerationError(
                f"{name!r} is no conversation; expected a JSON file that /save has written. Name another."
            ) from error
        self.conversation.load(messages)
        _note(f"Loaded {len(self.conversation.turns)} turns.")

    def _exit(self) -> None:
        self._ended = True


def _note(text: str) -> None:
    """Print a line beside the conversation."""
    print(text, file=sys.stderr, flush=True)


def _next_line() -> str:
    """Return the next line of stdin.

    Raises:
        EOFError: If there is none.
        GenerationError: If it is not text in the encoding of stdin.
    """
    try:
        line = sys.stdin.readline()
    except UnicodeDecodeError as error:
        raise GenerationError(
            f"Cannot read a line of stdin: {error.reason} at byte {error.start:,}. Expected text in {error.encoding}. "
            "Convert it."
        ) from error
    if not line:
        raise EOFError
    return line


def _prompting() -> Callable[[], str]:
    """Return a function that prompts for a line, with editing and history: by prompt_toolkit if it is installed."""
    try:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.output import create_output
    except ModuleNotFoundError:
        with suppress(ModuleNotFoundError):
            import readline  # noqa: F401 -- edits the lines of `input`
        return partial(input, _PROMPT)
    terminal = create_output(as_is(sys.stdout))
    prompts: PromptSession[str] = PromptSession(_PROMPT, output=terminal, reserve_space_for_menu=0)
    return prompts.prompt


# --- arguments ----------------------------------------------------------------------------------


def _add_chat(commands: Any) -> None:
    parser = command(
        commands, "chat", "hold a conversation with a package in the terminal", applicable=True
    )
    add_package(parser)
    parser.add_argument(
        "--system", default="", metavar="TEXT", help="system prompt (default: the template's)"
    )
    parser.add_argument(
        "--generation-len",
        type=int,
        metavar="N",
        help="largest number of tokens of an answer (default: to the end of the context)",
    )
    add_template(parser)
    add_adapter(parser)
    add_sampling(parser)
    add_draft(parser)
    add_acceptance(parser)
    add_prefix_cache(parser, chat=True)
    add_threads(parser)


#: Functions that add the arguments of commands, and their handlers.
COMMANDS = ((_add_chat, {"chat": chat_command}),)
