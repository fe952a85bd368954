# SPDX-License-Identifier: Apache-2.0
"""OpenAI's Conversations API: `/v1/conversations`, lists of items in memory that responses continue and extend."""

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from qeff_zoo.serving.answers.large import json_answer
from qeff_zoo.serving.answers.objects import Object
from qeff_zoo.serving.apis.openai.responses import memory
from qeff_zoo.serving.apis.openai.responses.items import messages_of
from qeff_zoo.serving.apis.openai.responses.lists import Paging, identified, listed, page_of
from qeff_zoo.serving.apis.openai.responses.memory import ClientMemory, size_of
from qeff_zoo.serving.errors import ApiError, brief, renaming
from qeff_zoo.serving.requests.schemas import MAX_MESSAGES

_Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=16),
]
_Items = Annotated[list[dict[str, Any]], Field(max_length=MAX_MESSAGES)]


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class NewConversation(_Body):
    """Body of a new conversation."""

    items: _Items | None = None
    metadata: _Metadata | None = None


class Update(_Body):
    """Body of the update of a conversation."""

    metadata: _Metadata | None


class NewItems(_Body):
    """Body of new items."""

    items: _Items


@dataclass
class Conversation:
    """Conversation of a client.

    Args:
        metadata: Pairs of names and texts of the client.
        items: Items, the oldest first.
    """

    metadata: Mapping[str, str]
    items: list[Object]
    id: str = field(default_factory=lambda: f"conv_{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def nbytes(self) -> int:
        """Size of the metadata and the items."""
        return size_of([self.id, dict(self.metadata), self.items])

    @property
    def body(self) -> Object:
        """Object of the conversation."""
        return {
            "id": self.id,
            "object": "conversation",
            "created_at": self.created,
            "metadata": self.metadata,
        }


class Conversations:
    """Conversations by id, for the thread of the event loop.

    Args:
        memory: Memory of the server's clients.
    """

    def __init__(self, memory: ClientMemory) -> None:
        self._memory = memory

    def find(self, name: str, param: str | None = None) -> Conversation:
        """Return a conversation.

        Args:
            name: Id of the conversation.
            param: Parameter with the id.

        Raises:
            ApiError: There is none of this id.
        """
        found = self._memory.find(name, Conversation)
        if found is None:
            raise ApiError(
                404,
                f"There is no conversation {brief(name)}; expected one of this server that was used recently. Create "
                "one, or send the whole conversation as 'input'.",
                param=param,
                code="conversation_not_found",
            )
        return found

    def keep(self, conversation: Conversation) -> None:
        """Keep a conversation that is new or has changed."""
        self._memory.put(conversation.id, conversation, conversation.nbytes)

    def extend(self, name: str, items: Sequence[Object]) -> None:
        """Append items to a conversation, unless it was deleted since."""
        if found := self._memory.find(name, Conversation):
            found.items += identified(items, found.items)
            self.keep(found)

    def remove(self, name: str) -> None:
        """Forget a conversation.

        Raises:
            ApiError: There is none of this id.
        """
        self._memory.drop(self.find(name).id)


def check_room(conversation: Conversation, items: Sequence[Object], param: str) -> None:
    """Refuse items that exceed the size of a conversation.

    Args:
        conversation: The conversation.
        items: Items to append.
        param: Parameter with the items.

    Raises:
        ApiError: The conversation would be too large.
    """
    nbytes = conversation.nbytes + size_of([*items])
    if nbytes > memory.MAX_VALUE:
        raise ApiError(
            400,
            f"Conversation {brief(conversation.id)} would take {nbytes:,} bytes with these items; expected at most "
            f"{memory.MAX_VALUE:,}. Begin a new one, or delete items.",
            param=param,
            code="conversation_too_long",
        )


def _checked(items: Sequence[Mapping[str, Any]], conversation: Conversation) -> list[Object]:
    """Return new items of a conversation with ids.

    Raises:
        ApiError: An item is of an unknown form, or the conversation would be too large.
    """
    with renaming({"input": "items"}):
        messages_of(items)
    found = identified(items, conversation.items)
    check_room(conversation, found, "items")
    return found


def _place(conversation: Conversation, name: str) -> int:
    """Return the index of an item.

    Raises:
        ApiError: There is none of this id.
    """
    for place, item in enumerate(conversation.items):
        if item["id"] == name:
            return place
    raise ApiError(
        404,
        f"Conversation {brief(conversation.id)} has no item {brief(name)}; expected the id of one of its items. List "
        "the items.",
        code="item_not_found",
    )


def routes(api: str, conversations: Conversations) -> APIRouter:
    """Return the endpoints of conversations.

    Args:
        api: Prefix of their paths.
        conversations: Conversations of the server.
    """
    router = APIRouter()
    path = f"{api}conversations"

    @router.post(path)
    async def create(body: NewConversation | None = None) -> Response:
        body = body or NewConversation()
        made = Conversation(body.metadata or {}, [])
        made.items += _checked(body.items or [], made)
        conversations.keep(made)
        return JSONResponse(made.body)

    @router.get(f"{path}/{{name}}")
    async def retrieve(name: str) -> Response:
        return JSONResponse(conversations.find(name).body)

    @router.post(f"{path}/{{name}}")
    async def update(name: str, body: Update) -> Response:
        found = conversations.find(name)
        found.metadata = body.metadata or {}
        conversations.keep(found)
        return JSONResponse(found.body)

    @router.delete(f"{path}/{{name}}")
    async def delete(name: str) -> Response:
        conversations.remove(name)
        return JSONResponse({"id": name, "object": "conversation.deleted", "deleted": True})

    @router.get(f"{path}/{{name}}/items")
    async def items(name: str, paging: Annotated[Paging, Query()]) -> Response:
        return await json_answer(paging.page(conversations.find(name).items))

    @router.post(f"{path}/{{name}}/items")
    async def append(name: str, body: NewItems) -> Response:
        found = conversations.find(name)
        added = _checked(body.items, found)
        conversations.extend(name, added)
        return await json_answer(page_of(added))

    @router.get(f"{path}/{{name}}/items/{{item}}")
    async def item(name: str, item: str) -> Response:
        found = conversations.find(name)
        return await json_answer(listed(found.items[_place(found, item)]))

    @router.delete(f"{path}/{{name}}/items/{{item}}")
    async def delete_item(name: str, item: str) -> Response:
        found = conversations.find(name)
        del found.items[_place(found, item)]
        conversations.keep(found)
        return JSONResponse(found.body)

    return router
