# SPDX-License-Identifier: Apache-2.0
"""Lists of items of the Responses API: their ids, their pages, and the form in which an item is listed."""

import uuid
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from pydantic import BaseModel, Field

from qeff_zoo.serving.answers.objects import Object
from qeff_zoo.serving.errors import invalid

_MAX_ID = 128  # characters
#: Beginnings of the ids of items, by type.
_PREFIXES: Mapping[str, str] = MappingProxyType(
    {
        "message": "msg",
        "reasoning": "rs",
        "function_call": "fc",
        "function_call_output": "fco",
        "custom_tool_call": "ctc",
        "custom_tool_call_output": "ctco",
    }
)


class Paging(BaseModel):
    """Query parameters of a list."""

    limit: int = Field(20, ge=1, le=100)
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None

    def page(self, items: Sequence[Object]) -> Object:
        """Return the object of a page.

        Args:
            items: All items, the oldest first.

        Raises:
            ApiError: No item has the id `after`.
        """
        ordered = items if self.order == "asc" else items[::-1]
        begin = 0
        if self.after is not None:
            places = (place for place, item in enumerate(ordered, 1) if item["id"] == self.after)
            begin = next(places, 0)
            if not begin:
                advice = "Send the 'last_id' of the page before"
                raise invalid("after", self.after, "the id of an item of this list", advice)
        part = ordered[begin : begin + self.limit]
        return page_of(part, has_more=begin + self.limit < len(ordered))


def page_of(items: Sequence[Object], *, has_more: bool = False) -> Object:
    """Return the object of a list of items.

    Args:
        items: Items of the list.
        has_more: Whether further items follow.
    """
    return {
        "object": "list",
        "data": [listed(item) for item in items],
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": has_more,
    }


def identified(items: str | Sequence[Mapping[str, Any]], taken: Sequence[Object]) -> list[Object]:
    """Return items with ids: their own, or else new ones; a text is a message of the user.

    Args:
        items: Items of a request.
        taken: Items whose ids are taken.
    """
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    ids, found = {item["id"] for item in taken}, []
    for item in items:
        name = item.get("id")
        if not isinstance(name, str) or not 0 < len(name) <= _MAX_ID or name in ids:
            kind = item.get("type", "message")
            prefix = _PREFIXES.get(kind, "item") if isinstance(kind, str) else "item"
            name = f"{prefix}_{uuid.uuid4().hex}"
        ids.add(name)
        found.append({**item, "id": name})
    return found


def listed(item: Object) -> Object:
    """Return an item as it is listed: with a type and a status, and a message with parts."""
    known = {name: value for name, value in item.items() if value is not None}
    shown: Object = {"type": "message", "status": "completed", **known}
    content = shown.get("content")
    if shown["type"] == "message" and isinstance(content, str):
        part: Object = {"type": "input_text", "text": content}
        if shown.get("role") == "assistant":
            part |= {"type": "output_text", "annotations": []}
        shown["content"] = [part]
    return shown
