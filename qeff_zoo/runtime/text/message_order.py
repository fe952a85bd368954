# SPDX-License-Identifier: Apache-2.0
"""Order and roles of messages: the same conversation for chat templates that refuse some orders of roles.

In: the messages of a request. Out: conversations with the same texts in the same order, the least changed first: system
messages joined, or as text of the user; consecutive messages of a role joined. Agents send such messages: several
system messages, a system message between turns, text of the user after results of tools.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

Message: TypeAlias = Mapping[str, Any]

_SYSTEM = ("system", "developer")
_TURNS = ("user", "assistant")
_BETWEEN = "\n\n"  # between joined texts
#: Lists, and texts besides the content, of an assistant's message.
_LISTS, _TEXTS = ("tool_calls",), ("reasoning_content", "reasoning", "thinking")


def leading_roles(messages: Sequence[Message]) -> tuple[str, ...]:
    """Return the roles of the system messages at the beginning."""
    roles = []
    for message in messages:
        if message.get("role") not in _SYSTEM:
            break
        roles.append(str(message["role"]))
    return tuple(roles)


def later_roles(messages: Sequence[Message]) -> tuple[str, ...]:
    """Return the different roles of system messages after the first turn."""
    rest = messages[len(leading_roles(messages)) :]
    return tuple(dict.fromkeys(str(one["role"]) for one in rest if one.get("role") in _SYSTEM))


def arrangements(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """Yield other arrangements of a conversation, the least changed first.

    Args:
        messages: Messages, each with `role` and `content`.
    """
    count = len(leading_roles(messages))
    leading, rest = _joined(messages[:count]), [*messages[count:]]
    yield [*leading, *rest]
    as_user = [{**one, "role": "user"} if one.get("role") in _SYSTEM else one for one in rest]
    yield [*leading, *as_user]
    turns = _joined_turns(as_user)
    yield [*leading, *turns]
    # A template without system messages: their text begins the first message of the user.
    as_first = [{**one, "role": "user"} for one in leading]
    yield _joined_turns([*as_first, *turns])
    # A template without text of the user after results of tools: it ends the last result.
    yield [*leading, *_with_results(turns)]
    yield _joined_turns([*as_first, *_with_results(turns)])


def _joined(messages: Sequence[Message]) -> list[Message]:
    """Return one message with the texts of all; none for no messages."""
    joined: list[Message] = []
    for message in messages:
        joined = [_both(joined[0], message) if joined else message]
    return joined


def _joined_turns(messages: Sequence[Message]) -> list[Message]:
    """Join consecutive messages of the user, and of the assistant."""
    joined: list[Message] = []
    for message in messages:
        if joined and message.get("role") in _TURNS and message["role"] == joined[-1].get("role"):
            joined[-1] = _both(joined[-1], message)
        else:
            joined.append(message)
    return joined


def _with_results(messages: Sequence[Message]) -> list[Message]:
    """Join messages of the user with the results of tools before them."""
    joined: list[Message] = []
    for message in messages:
        if message.get("role") == "user" and joined and joined[-1].get("role") == "tool":
            joined[-1] = _both(joined[-1], message)
        else:
            joined.append(message)
    return joined


def _both(first: Message, second: Message) -> dict[str, Any]:
    """Return two messages as one, of the first one's role; fields that the first lacks are the second's.

    A name is the author's: two messages of one role have it if it is that of both.
    """
    content = _contents(first.get("content"), second.get("content"))
    joined: dict[str, Any] = {**second, **first, "content": content}
    if "name" in joined and (
        "name" not in first
        or (first.get("role") == second.get("role") and first["name"] != second.get("name"))
    ):
        del joined["name"]
    for name in _LISTS:
        if both := [*(first.get(name) or ()), *(second.get(name) or ())]:
            joined[name] = both
    for name in _TEXTS:
        texts = [one[name] for one in (first, second) if isinstance(one.get(name), str)]
        if texts:
            joined[name] = _BETWEEN.join(texts)
    return joined


def _contents(first: Any, second: Any) -> Any:
    """Return two contents as one: a text, or a list of parts if one of them is."""
    if not first or not second:
        return first or second
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}{_BETWEEN}{second}"
    return [*_parts(first), {"type": "text", "text": _BETWEEN}, *_parts(second)]


def _parts(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else [*content]
