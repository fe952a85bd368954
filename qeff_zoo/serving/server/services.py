# SPDX-License-Identifier: Apache-2.0
"""Services of a server: what it does with the packages of a task. `Task.commands` has each task's."""

from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastapi import APIRouter

from qeff_zoo.runtime import Stats
from qeff_zoo.serving.apis.openai.responses.store import ResponseStore
from qeff_zoo.serving.apis.vllm.adapters import Sources
from qeff_zoo.serving.monitoring.metrics import Metrics
from qeff_zoo.serving.requests.model import Model
from qeff_zoo.serving.requests.tools import ChatFormats
from qeff_zoo.serving.server.options import ServerOptions

#: Prefix of the paths of OpenAI's API.
API = "/v1/"


@dataclass(frozen=True, kw_only=True)
class Offer:
    """Name of a model, and the permissions of clients.

    Args:
        name: Name of the model.
        aliases: Further names of the model.
        fingerprint: Identity of the model.
        metrics: Metrics of the server.
        image_hosts: Hosts from which images and videos are fetched for clients.
        adapter_sources: Folders and repositories that clients may load adapters from; None for none.
        formats: Formats of the model's chats.
        store: Kept responses of the server.
        strict_parameters: Whether parameters and tools that change nothing are refused.
        shares_prefixes: Whether clients with different keys share the prefix cache.
    """

    name: str
    aliases: tuple[str, ...]
    fingerprint: str
    metrics: Metrics
    image_hosts: Collection[str]
    adapter_sources: Sources | None
    formats: ChatFormats = field(default_factory=ChatFormats)
    store: ResponseStore = field(default_factory=ResponseStore)
    strict_parameters: bool = False
    shares_prefixes: bool = False

    def model(self, max_tokens: int, **more: Any) -> Model:
        """Return the description of the model."""
        return Model(
            name=self.name,
            aliases=self.aliases,
            fingerprint=self.fingerprint,
            max_tokens=max_tokens,
            **more,
        )


class Backend(Protocol):
    """Queue or engine that runs the requests of all clients on one session."""

    @property
    def session(self) -> Any:
        """Session of the package."""

    def stats(self) -> Stats:
        """Return the statistics of finished and waiting requests."""


class Service(Protocol):
    """Service of a server for a task."""

    def takes_files(self, session: Any) -> bool:
        """Return whether requests have images or recordings."""

    def open(self, session: Any, choices: ServerOptions) -> AbstractContextManager[Any]:
        """Return a context manager that opens the backend."""

    def mount(self, backend: Any, offer: Offer) -> tuple[Model, list[APIRouter]]:
        """Return the model's description, and its endpoints."""
