# SPDX-License-Identifier: Apache-2.0
"""One Jinja source of a chat template: messages are brought into the form that it renders.

Clients send a message in several forms, and a template renders some of them. Which forms is detected by renderings of
short conversations, so that no form depends on the name of a model.
"""

import datetime
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, NoReturn, TypeAlias, TypeVar

import jinja2
import jinja2.nodes
import jinja2.parser
from jinja2.ext import Extension, loopcontrols

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime.text.message_order import arrangements, later_roles, leading_roles
from qeff_zoo.runtime.text.template_sandbox import OverBudgetError, Sandbox
from qeff_zoo.terminal.sanitize import shortened

Message: TypeAlias = Mapping[str, Any]
_T = TypeVar("_T")
_ROLES = 64  # roles whose forms are cached: clients choose their names
_SYSTEMS = 4  # system messages at the beginning whose renderings are probed
_WORD, _SECOND = "qzqzq", "zqzqz"  # words that no template contains
_REASONING = ("reasoning_content", "thinking", "reasoning")  # names that clients use
_USER = {"role": "user", "content": _WORD}
_ASSISTANT = {"role": "assistant", "content": _WORD}
#: Name of arguments that are no JSON object, for templates that read an object alone.
RAW_ARGUMENTS = "arguments"
_CALL_ID = "qzqzq0000"  # some templates require nine letters and digits
#: Conversations around a message of each role.
_AROUND: Mapping[str, Callable[[Message], Sequence[Message]]] = {
    "system": lambda message: [message, _USER],
    "user": lambda message: [message],
    "assistant": lambda message: [_USER, message, _USER],
    "tool": lambda message: [_USER, calling({}), {**message, "tool_call_id": _CALL_ID}],
}


class _RefusalError(jinja2.TemplateError):
    """A template refuses the messages, by `raise_exception`."""


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}`, a mark of generated text for training; only its content is rendered."""

    tags = {"generation"}  # noqa: RUF012 -- as in Jinja

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """Return the block's content."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateSource:
    """Jinja source with its special tokens, and the forms of messages that it renders.

    Args:
        source: Jinja source of the template.
        tokens: Special tokens by name: bos_token, eos_token, …
    """

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        self._sandbox = Sandbox(
            [_Generation, loopcontrols],
            filters={"tojson": _to_json},
            functions={"raise_exception": _refuse, "strftime_now": _now},
        )
        self.text = source
        self._tokens = tokens
        #: Error of a probe of few words that exceeded the budget: every other rendering would, too.
        self._over_budget: OverBudgetError | None = None
        self._parts_by_role = lru_cache(_ROLES)(self._probe_parts)
        self._drops = lru_cache(_ROLES)(self._probe_drops)

    def names(self, name: str) -> bool:
        """Return whether the source contains a name, such as that of a variable."""
        return re.search(rf"\b{re.escape(name)}\b", self.text) is not None

    @property
    def takes_tools(self) -> bool:
        """Whether the template renders definitions of functions."""
        return self.names("tools")

    def render(self, messages: Sequence[Message], /, **values: Any) -> str:
        """Render messages, in another order or other roles if the template refuses those of the messages.

        Args:
            messages: Messages, each with `role` and `content`.
            **values: Variables of the template.

        Raises:
            GenerationError: If the template raises an error, or exceeds its budget.
        """
        return guarded(lambda: self._arranged(messages, **values))

    def _arranged(self, messages: Sequence[Message], /, **values: Any) -> str:
        """Return a rendering of the first arrangement that the template renders, without a dropped text.

        Raises:
            jinja2.TemplateError: If the template refuses all of them.
        """
        refusal: _RefusalError | None = None
        without_system: str | None = None
        tried: list[Sequence[Message]] = []
        for form in chain([[*messages]], arrangements(messages)):
            leading, later = leading_roles(form), later_roles(form)
            several = len(leading) > 1 or later
            if form in tried or (several and self._drops(leading[:_SYSTEMS], later)):
                continue
            if without_system is not None and leading:
                continue
            tried.append(form)
            try:
                rendering = self._written(self.normalized(form), **values)
            except _RefusalError as error:
                refusal = refusal or error
                continue
            if not self._ignores_system(form, rendering, **values):
                return rendering
            without_system = rendering
        if without_system is not None:
            return without_system
        assert refusal
        raise refusal

    def _ignores_system(self, messages: Sequence[Message], prompt: str, /, **values: Any) -> bool:
        """Return whether a prompt does not depend on the system messages at its beginning.

        Templates of Mistral render them only with a text of the user at the end, and so not after the result of a tool.
        """
        count = len(leading_roles(messages))
        texts = [_content_text(message) for message in messages[:count]]
        if not any(texts) or any(text in prompt for text in texts if text):
            return False
        others = [{**message, "content": _SECOND} for message in messages[:count]]
        try:
            rendering = self._written(self.normalized([*others, *messages[count:]]), **values)
        except _RefusalError:
            return False
        return rendering == prompt

    def render_unchanged(self, messages: Sequence[Message], /, **values: Any) -> str:
        """Render messages in the form that they have.

        Args:
            messages: Messages.
            **values: Variables of the template.

        Raises:
            GenerationError: If the template raises an error, or exceeds its budget.
        """
        return guarded(lambda: self._written(messages, **values))

    def normalized(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Return messages in the form that the template renders.

        A key that is None is absent, as in transformers, and an absent content is an empty text. Text is a part of a
        list for a template that renders only lists. A list of texts is one text for a template that renders no lists.
        Arguments of tool calls that are JSON text are parsed; those that are no JSON object are the text that they
        are. Reasoning gets all its names. The role `developer` is `system` for a template without it.
        """
        return [self._normalized(message) for message in messages]

    def _normalized(self, message: Message) -> dict[str, Any]:
        given = {key: value for key, value in message.items() if value is not None}
        if given.get("role") == "developer" and not self._takes_developer:
            given["role"] = "system"
        content = given.setdefault("content", "")
        if isinstance(content, str):
            if self._reads_parts_alone:
                given["content"] = _part(content)
        elif (texts := _texts(content)) is not None:
            text = "".join(texts)
            in_parts = self._reads_parts_alone or self.reads_parts(str(given.get("role")))
            given["content"] = content if in_parts else text
        reasoning = next((given[key] for key in _REASONING if key in given), None)
        if reasoning is not None:  # gpt-oss reads `thinking`
            given = {"thinking": reasoning, **given, "reasoning_content": reasoning}
        if calls := given.get("tool_calls"):
            given["tool_calls"] = [self._call(call) for call in calls]
        return given

    def _call(self, call: Message) -> dict[str, Any]:
        """Return a tool call with its arguments in a form that the template renders.

        A model writes broken arguments, or a limit cuts them, and the client sends them back. As a text they are what
        the model wrote; a template that reads an object, such as one that iterates over it, gets one with that text.
        """
        function = call.get("function")
        if not isinstance(function, Mapping):
            return dict(call)
        written = given = _parsed(function.get("arguments"))
        if not isinstance(given, str):
            written = json.dumps(given, ensure_ascii=False) if self._takes_json_text else given
        elif not self._takes_text:
            written = {RAW_ARGUMENTS: given}
        return {**call, "function": {**function, "arguments": written}}

    @cached_property
    def _template(self) -> jinja2.Template:
        """The template, parsed on first use, so that an invalid one does not affect plain prompts."""
        return self._sandbox.parsed(self.text)

    def _written(self, messages: Sequence[Message], /, **values: Any) -> str:
        if self._over_budget:
            raise self._over_budget
        usual = {"tools": None, "documents": None, "add_generation_prompt": True}
        return self._sandbox.rendered(
            self._template, {**usual, **self._tokens, **values, "messages": messages}
        )

    def probe(self, messages: Sequence[Message], /, **values: Any) -> str:
        """Return a rendering of messages in this very form; empty if the template fails."""
        try:
            return self._written(messages, **values)
        except OverBudgetError as error:
            self._over_budget = error
            return ""
        except FAILURES:  # errors are reported for the actual messages
            return ""

    @cached_property
    def _reads_parts_alone(self) -> bool:
        """Whether the template renders text as a part of a list, but not as the whole content."""

        def writes(content: Any) -> bool:
            user, assistant = ({**one, "content": content} for one in (_USER, _ASSISTANT))
            return any(_WORD in self.probe(chat) for chat in ([user], [user, assistant, user]))

        return not writes(_WORD) and writes(_part(_WORD))

    def reads_parts(self, role: str) -> bool:
        """Return whether the template renders the parts of a message as text, and not as a printed list."""
        return self._parts_by_role(role)

    def _probe_parts(self, role: str) -> bool:
        message = {"role": role, "content": [*_part(_WORD), *_part(_SECOND)]}
        text = self.probe(_AROUND.get(role, _AROUND["user"])(message))
        printed = re.search("['\"]text['\"]", text)
        return _WORD in text and _SECOND in text and not printed

    def _probe_drops(self, leading: Sequence[str], later: Sequence[str]) -> bool:
        """Return whether the template renders a conversation with system messages, but not all of their texts."""
        roles = [*leading, *later]
        words = [f"{_SECOND}{number}" for number in range(len(roles))]
        systems = [{"role": role, "content": word} for role, word in zip(roles, words, strict=True)]
        turns = [_USER, _ASSISTANT, *systems[len(leading) :], _USER] if later else [_USER]
        text = self.probe(self.normalized([*systems[: len(leading)], *turns]))
        return bool(text) and any(word not in text for word in words)

    @cached_property
    def _takes_developer(self) -> bool:
        """Whether the template renders messages of the role developer."""
        if not self.names("developer"):
            return False
        contents: tuple[Any, ...] = (_SECOND, _part(_SECOND))
        messages: list[Message] = [
            {"role": "developer", "content": content} for content in contents
        ]
        return any(_SECOND in self.probe([message, _USER]) for message in messages)

    @cached_property
    def _takes_json_text(self) -> bool:
        """Whether the template renders arguments as text, but not as an object."""
        arguments = {"key": _SECOND}
        return not self._writes(arguments) and self._writes(json.dumps(arguments))

    @cached_property
    def _takes_text(self) -> bool:
        """Whether the template renders arguments that are a text, even one that is no JSON."""
        return self._writes(f'{{"key": "{_SECOND}')

    def _writes(self, arguments: Any) -> bool:
        """Return whether the template renders a call with arguments that contain `_SECOND`."""
        call = calling(arguments)
        result = {"role": "tool", "content": "1", "tool_call_id": _CALL_ID, "name": _WORD}
        return any(_SECOND in self.probe(chat) for chat in ([_USER, call], [_USER, call, result]))


def calling(arguments: Any, name: str = _WORD) -> Message:
    """Return a message of the assistant with one tool call."""
    function = {"name": name, "arguments": arguments}
    call = {"id": _CALL_ID, "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _part(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def _texts(parts: Any) -> list[str] | None:
    """Return the texts of parts; None if one of them is no text."""
    if not isinstance(parts, list | tuple) or not parts:
        return None
    texts = [
        part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
        for part in parts
    ]
    return texts if all(isinstance(text, str) for text in texts) else None  # type: ignore[return-value]


def _content_text(message: Message) -> str:
    """Return the text of a message, without blanks at its ends."""
    content = message.get("content")
    return (content if isinstance(content, str) else "".join(_texts(content) or ())).strip()


def _parsed(arguments: Any) -> Mapping[str, Any] | str:
    """Return the arguments of a tool call as an object; as their text if they are none."""
    if isinstance(arguments, Mapping):
        return arguments
    if arguments is None:
        return {}
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    if not text.strip():
        return {}
    try:
        parsed = json.loads(text)
    except (RecursionError, ValueError):
        return text
    return {} if parsed is None else parsed if isinstance(parsed, dict) else text


#: Errors that computation in a template may raise.
FAILURES = (
    *(jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, MemoryError),
    *(RuntimeError, SyntaxError, TypeError, ValueError),
)


def guarded(act: Callable[[], _T]) -> _T:
    """Call a function that renders, and convert its errors.

    Raises:
        GenerationError: If the template fails.
    """
    try:
        return act()
    except FAILURES as error:
        reason = shortened(str(error) or type(error).__name__)
        raise GenerationError(
            f"The chat template fails: {reason!r}. Expected messages that the model's template "
            "takes. Change them, or give the whole prompt as plain text."
        ) from error


def _refuse(message: str) -> NoReturn:
    raise _RefusalError(message)


def _now(pattern: str) -> str:
    return datetime.datetime.now().astimezone().strftime(pattern)


def _to_json(value: Any, **options: Any) -> str:
    """Return JSON without the HTML escapes of Jinja's filter."""
    return json.dumps(value, **{"ensure_ascii": False, **options})
