# SPDX-License-Identifier: Apache-2.0
"""Description of a served model for clients."""

import time
from dataclasses import dataclass, field
from typing import Protocol

from qeff_zoo.runtime.decoding.adapters import Adapters
from qeff_zoo.serving.errors import ApiError, brief
from qeff_zoo.serving.monitoring import request_usage


def plain(name: str) -> str:
    """Return a model's name without the tag `:latest` that clients of ollama add."""
    return name.removesuffix(":latest")


class Named(Protocol):
    """Body of a request, with the name of a model."""

    model: str


@dataclass(frozen=True, kw_only=True)
class Model:
    """Description of the served model.

    Args:
        name: Name of the model in requests.
        fingerprint: Identity of the model, a build key.
        max_tokens: Maximum number of tokens of a prompt and its generation, or of an embedded text; 0 for a model of
            recordings of any length.
        created: Seconds since 1970.
        adapters: Adapters that clients may select by name like a model; None if the package has no slots.
        aliases: Further names of the model.
        capabilities: Kinds of requests that the model serves, for the page at `/` and for clients of ollama: `chat`,
            messages of several turns; `completion`, a text that the model continues; `captioning`, one message with one
            image; `vision`, `video` and `audio`, files beside text; `tools` and `thinking`, calls of functions, and
            reasoning apart from the answer; `embedding`, `rerank` and `classification`, vectors of texts, scores of
            pairs, and labels of texts; `embedding` with `vision`, and `matching`, vectors of images, and their
            similarity with texts; `transcription`, texts of recordings.
        template: Source of the chat template, by which some clients of ollama find whether a model calls functions.
    """

    name: str
    fingerprint: str
    max_tokens: int
    created: int = field(default_factory=lambda: int(time.time()))
    adapters: Adapters | None = None
    aliases: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    template: str = ""

    def admit(self, body: "Named") -> str | None:
        """Check the model of a request, as `check` does; a body without a model gets this one."""
        body.model = body.model or self.name
        return self.check(body.model)

    def check(self, name: str) -> str | None:
        """Refuse a request for another model.

        Returns:
            The adapter that the request selects; None for the base model.

        Raises:
            ApiError: The name is unknown.
        """
        request_usage.count(model=name or self.name)
        for known in (name, plain(name)):
            if known in ("", self.name) or known in self.aliases:
                return None
            if self.adapters is not None and known in self.adapters:
                return known
        others = ", ".join(map(repr, self.adapters or ()))
        expected = f"{self.name!r} or {others}" if others else f"{self.name!r}, the only one here"
        raise ApiError(
            404,
            f"There is no model {brief(name)}; expected {expected}. Ask for it.",
            param="model",
            code="model_not_found",
        )

    def listed(self) -> list[dict[str, object]]:
        """Return the API's objects of the model and of its adapters."""
        return [self.described(one) for one in (None, *(self.adapters or ()))]

    def described(self, adapter: str | None = None) -> dict[str, object]:
        """Return the API's object of the model, or of one of its adapters."""
        return {
            "id": adapter or self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "qeff-zoo",
            **({"max_model_len": self.max_tokens} if self.max_tokens else {}),
            **({"parent": self.name} if adapter else {}),
            "capabilities": [*self.capabilities],
        }
