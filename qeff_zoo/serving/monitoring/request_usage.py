# SPDX-License-Identifier: Apache-2.0
"""Name, model and tokens of the current request, for the request log and traces."""

from contextvars import ContextVar
from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class RequestUsage:
    """Name, model and tokens of a request.

    Args:
        request_id: Name of the request.
        model: Name of the model that the request selects; empty for a request without a model.
        prompt_tokens: Number of tokens of its prompts, or of its texts.
        generated_tokens: Number of tokens of its outputs so far.
    """

    request_id: str
    model: str = ""
    prompt_tokens: int = 0
    generated_tokens: int = 0

    def fields(self) -> dict[str, Any]:
        """Return the fields of a line of the log, besides the name; none for a request without a model."""
        found = asdict(self) if self.model else {}
        found.pop("request_id", None)
        return found


_current: ContextVar[RequestUsage | None] = ContextVar("request usage", default=None)


def begin(request_id: str) -> RequestUsage:
    """Return the usage of the current request, which its endpoint fills in."""
    usage = RequestUsage(request_id)
    _current.set(usage)
    return usage


def count(*, model: str = "", prompt_tokens: int = 0, generated_tokens: int = 0) -> None:
    """Add to the usage of the current request, if it is logged."""
    usage = _current.get()
    if usage is not None:
        usage.model = model or usage.model
        usage.prompt_tokens += prompt_tokens
        usage.generated_tokens += generated_tokens


def current_id() -> str:
    """Return the name of the current request; empty outside of a request."""
    usage = _current.get()
    return usage.request_id if usage else ""
