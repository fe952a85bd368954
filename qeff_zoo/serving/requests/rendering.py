# SPDX-License-Identifier: Apache-2.0
"""Chats as texts, by the chat template of a package, for endpoints that generate nothing."""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from qeff_zoo.errors import GenerationError
from qeff_zoo.runtime import ChatOptions, TextGenerationSession
from qeff_zoo.runtime.text.chat_template import Message
from qeff_zoo.serving.errors import ApiError, blaming
from qeff_zoo.serving.queues.media import Preparation, at_once
from qeff_zoo.serving.requests.schemas import MAX_TEXT, ChatMessage, ChatRequest, TemplateRequest
from qeff_zoo.serving.requests.tools import chat_options

_T = TypeVar("_T")
#: Nouns of files, and the argument of a session's `request` for them.
_FILES = {"images": "images", "videos": "videos", "recordings": "audio"}


def template_input(
    session: Any, body: ChatRequest | TemplateRequest
) -> tuple[list[Message], ChatOptions]:
    """Return the messages of a request, and the options of the chat template.

    Args:
        session: Session of the model.
        body: Body of the request, which has messages.

    Raises:
        ApiError: The package has no chat template, or the model does not read the files of the messages.
    """
    require_template(session, body.model, "a text. Send it in place of 'messages'")
    chat = body if isinstance(body, ChatRequest) else body.chat
    options = chat_options(chat)
    with blaming("chat_template"):
        session.chat_template.source(options)
    if not isinstance(session, TextGenerationSession):
        refuse_files(body.model, chat.messages)
    return [one.as_template_input() for one in chat.messages], options


def rendered(session: Any, body: ChatRequest | TemplateRequest) -> str:
    """Return the messages of a request as text; see `template_input`.

    Raises:
        ApiError: The template rejects the messages.
    """
    messages, options = template_input(session, body)
    generates = isinstance(session, TextGenerationSession)
    render = session.render_chat if generates else session.chat_template.render

    def work(options: ChatOptions) -> Preparation[str]:
        yield from ()
        text: str = render(messages, options)
        return text

    return at_once(by_template(work, options, "messages"))


def by_template(
    work: Callable[[ChatOptions], Preparation[_T]], options: ChatOptions, param: str
) -> Preparation[_T]:
    """Return the result of work that renders messages by a chat template.

    Args:
        work: Work by the options of the chat template.
        options: Options of the request.
        param: Parameter that errors name; "tools" instead if the template renders the messages without them.

    Raises:
        ApiError: The template rejects the messages or the tools.
    """
    try:
        with blaming(param):
            return (yield from work(options))
    except ApiError as refusal:
        if options.tools and refusal.code == "invalid_value":
            with suppress(GenerationError):
                yield from work(replace(options, tools=()))
                refusal.param = "tools"
        raise


def text_to_tokenize(session: Any, body: TemplateRequest) -> str:
    """Return the messages of a request as text; see `rendered`.

    Raises:
        ApiError: The text is too long, such as that of a template which repeats messages.
    """
    text = rendered(session, body)
    if len(text) > MAX_TEXT:
        raise ApiError(
            400,
            f"The chat has {len(text):,} characters in its template; expected at most {MAX_TEXT:,}. Shorten it.",
            param="messages",
            code="context_length_exceeded",
        )
    return text


def require_template(session: Any, model: str, expected: str) -> None:
    """Refuse messages for a package without a chat template.

    Args:
        session: Session of the model.
        model: Name of the model.
        expected: Expected request, and the advice for it.
    """
    if getattr(session, "chat_template", None) is None:
        raise ApiError(
            400,
            f"Model {model!r} has no chat template; expected {expected}.",
            param="messages",
            code="no_chat_template",
        )


def refuse_files(model: str, messages: Sequence[ChatMessage], takes: Collection[str] = ()) -> None:
    """Refuse images, videos and recordings that a model does not read.

    Args:
        model: Name of the model.
        messages: Messages of a chat.
        takes: Arguments of the session's `request` for the files that the model reads.
    """
    for nouns, argument in _FILES.items():
        count = sum(len(getattr(message, nouns)) for message in messages)
        if count and argument not in takes:
            raise ApiError(
                400,
                f"Model {model!r} reads no {nouns}, and the messages have {count:,}; expected none. Leave them out, or "
                "ask a model that reads those.",
                param="messages",
                code="invalid_value",
            )
