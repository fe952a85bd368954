# SPDX-License-Identifier: Apache-2.0
"""Model and tokens of the current request, for the request log."""

from contextvars import ContextVar
from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class RequestUsage:
    """Model and tokens of a request.

    Args:
        model: Name of the model that the request selects; empty for a request without a model.
        prompt_tokens: Number of tokens of its prompts, or of its texts.
        generated_tokens: Number of tokens of its outputs so far.
    """

    model: str = ""
    prompt_tokens: int = 0
    generated_tokens: int = 0

    def fields(self) -> dict[str, Any]:
        """Return the fields of a line of the log; none for a request without a model."""
        return asdict(self) if self.model else {}


_current: ContextVar[RequestUsage | None] = ContextVar("request usage", default=None)


def begin() -> RequestUsage:
    """Return the usage of the current request, which its endpoint fills in."""
    usage = RequestUsage()
    _current.set(usage)
    return usage


def count(*, model: str = "", prompt_tokens: int = 0, generated_tokens: int = 0) -> None:
    """Add to the usage of the current request, if it is logged."""
    usage = _current.get()
    if usage is not None:
        usage.model = model or usage.model
        usage.prompt_tokens += prompt_tokens
        usage.generated_tokens += generated_tokens
