# SPDX-License-Identifier: Apache-2.0
"""The description of a served model, as clients get it."""

import time
from dataclasses import dataclass, field

from qeff_zoo.runtime.adapters import Adapters
from qeff_zoo.serving.errors import ApiError, brief


@dataclass(frozen=True, kw_only=True)
class Model:
    """What a server says of its model.

    Args:
        name: Clients ask for it by this.
        fingerprint: Names what computes the answers: a build key.
        max_tokens: Of a prompt and its answer, or of a text that is read whole; 0 of a model that reads recordings of
            any length.
        created: Seconds since 1970.
        adapters: That clients may ask for as they ask for the model; None where it takes none.
    """

    name: str
    fingerprint: str
    max_tokens: int
    created: int = field(default_factory=lambda: int(time.time()))
    adapters: Adapters | None = None

    def check(self, name: str) -> str | None:
        """Refuse a request for another model.

        Returns:
            The adapter that it asks for; None for the model as it is.

        Raises:
            ApiError: It is another one.
        """
        if name == self.name:
            return None
        if self.adapters is not None and name in self.adapters:
            return name
        others = ", ".join(map(repr, self.adapters or ()))
        expected = f"{self.name!r} or {others}" if others else f"{self.name!r}, the only one here"
        raise ApiError(
            404,
            f"There is no model {brief(name)}; expected {expected}. Ask for it.",
            param="model",
            code="model_not_found",
        )

    def described(self, adapter: str | None = None) -> dict[str, object]:
        """Return the object that says what it is, or what one of its adapters is."""
        return {
            "id": adapter or self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "qeff-zoo",
            **({"max_model_len": self.max_tokens} if self.max_tokens else {}),
            **({"parent": self.name} if adapter else {}),
        }
