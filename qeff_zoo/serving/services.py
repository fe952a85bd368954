# SPDX-License-Identifier: Apache-2.0
"""Services of a server by task: the backend, and its endpoints. `Task.commands` names one."""

from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastapi import APIRouter

from qeff_zoo.errors import ServingError
from qeff_zoo.runtime import Engine, Prefills, TextGenerationSession
from qeff_zoo.serving import (
    adapters,
    capabilities,
    cohere,
    embeddings,
    entities,
    generation,
    infill,
    matching,
    messages,
    ollama,
    prompt_embeddings,
    response_store,
    responses,
    scores,
    sparse_embeddings,
    transcriptions,
)
from qeff_zoo.serving.chat_runs import ChatRuns
from qeff_zoo.serving.encoder_queue import EncoderQueue
from qeff_zoo.serving.matching import ImageQueue
from qeff_zoo.serving.metrics import Metrics
from qeff_zoo.serving.model import Model
from qeff_zoo.serving.options import ServerOptions
from qeff_zoo.serving.prompt_embeddings import PromptQueue
from qeff_zoo.serving.response_store import ResponseStore
from qeff_zoo.serving.tools import ChatFormats
from qeff_zoo.serving.transcriptions import SpeechQueue
from qeff_zoo.tasks.encoders.embedding_session import EmbeddingSession
from qeff_zoo.tasks.encoders.sparse_embedding_session import SparseEmbeddingSession
from qeff_zoo.tasks.encoders.token_classification_session import TokenClassificationSession

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
    adapter_sources: adapters.Sources | None
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


class Service(Protocol):
    """Service of a server for a task."""

    def takes_files(self, session: Any) -> bool:
        """Return whether requests have images or recordings."""

    def open(self, session: Any, choices: ServerOptions) -> Any:
        """Return a context manager that opens the backend."""

    def mount(self, backend: Any, offer: Offer) -> tuple[Model, list[APIRouter]]:
        """Return the model's description, and its endpoints."""


class Generation:
    """Chats and completions."""

    def takes_files(self, session: TextGenerationSession) -> bool:
        """Return whether requests have images or recordings."""
        return session.takes_files

    @contextmanager
    def open(self, session: TextGenerationSession, choices: ServerOptions) -> Iterator[Engine]:
        """Open an engine.

        Raises:
            ServingError: The package is prefill-only.
        """
        if not session.decoder.sizes.decodes:
            raise ServingError(
                f"Package {str(session.folder)!r} runs prompts alone (--prefill-only); expected --role prefill, or a "
                "package that decodes. Serve it with --role prefill, for a server of such a package."
            )
        if not choices.generation_config:
            session.ignore_generation_config()
        servers, key = choices.prefill_from, choices.api_key
        prefills = Prefills(session, servers, api_key=key) if servers else None
        with Engine(session, max_waiting=choices.max_queue, prefills=prefills) as engine:
            yield engine

    def mount(self, backend: Engine, offer: Offer) -> tuple[Model, list[APIRouter]]:
        """Return the model's description, and its endpoints.

        Raises:
            ServingError: Sources of adapters are set, and the package has no slots for adapters.
        """
        session, sources = backend.session, offer.adapter_sources
        taken = session.adapters if session.adapters.are_taken else None
        if sources is not None and taken is None:
            raise ServingError(
                f"Package {str(session.folder)!r} takes no adapters, and --allow-adapters is given; expected "
                "a package that was built with --max-loras. Leave the flag out, or build the model with that."
            )
        sizes = session.decoder.sizes
        model = offer.model(
            sizes.encoder_ctx_len or sizes.ctx_len,
            adapters=taken,
            capabilities=capabilities.of_generation(session, offer.formats),
            template=next(iter(session.chat_template.sources.values()))
            if session.chat_template
            else "",
        )
        runs = ChatRuns(
            engine=backend,
            model=model,
            metrics=offer.metrics,
            image_hosts=offer.image_hosts,
            formats=offer.formats,
            shares_prefixes=offer.shares_prefixes,
        )
        routers = [
            generation.routes(API, runs),
            responses.routes(API, runs, offer.store),
            response_store.kept(API, offer.store),
            messages.routes(API, runs),
            ollama.routes(runs),
            infill.routes(runs),
        ]
        if taken is not None and sources is not None:
            routers.append(adapters.routes(API, offer.name, taken, sources))
        return model, routers


class TextEncoding:
    """Embeddings, classification and reranking of texts."""

    def takes_files(self, session: Any) -> bool:
        """Return whether requests have images or recordings."""
        return False

    def open(self, session: Any, choices: ServerOptions) -> Any:
        """Return a context manager that opens a queue."""
        return closing(EncoderQueue(session, max_waiting=choices.max_queue))

    def mount(self, backend: EncoderQueue, offer: Offer) -> tuple[Model, list[APIRouter]]:
        """Return the model's description, and its endpoints."""
        session = backend.session
        model = offer.model(session.max_length, capabilities=capabilities.of_texts(session))
        routers = [scores.routes(API, backend, model.admit)]
        if isinstance(session, EmbeddingSession) and not session.has_states:
            routers.append(cohere.routes(backend, session, model.admit))
            routers.append(embeddings.routes(API, backend, session, model.admit))
            routers.append(ollama.embedding(backend, session, model))
        if isinstance(session, SparseEmbeddingSession):
            routers.append(sparse_embeddings.routes(backend, session, model.admit))
        if isinstance(session, TokenClassificationSession):
            routers.append(entities.routes(backend, session, model.admit))
        return model, routers


class PromptEmbeddings:
    """Embeddings of chats with images."""

    def takes_files(self, session: Any) -> bool:
        """Return whether requests have images or recordings."""
        return True

    def open(self, session: Any, choices: ServerOptions) -> Any:
        """Return a context manager that opens a queue."""
        return closing(PromptQueue(session, max_waiting=choices.max_queue))

    def mount(self, backend: PromptQueue, offer: Offer) -> tuple[Model, list[APIRouter]]:
        """Return the model's description, and its endpoints."""
        ctx_len = backend.session.decoder.sizes.ctx_len
        model = offer.model(ctx_len, capabilities=("embedding", "vision"))
        return model, [prompt_embeddings.routes(API, backend, model.admit, offer.image_hosts)]


class ImageEmbeddings:
    """Embeddings of images, and of texts that are matched with them."""

    def takes_files(self, session: Any) -> bool:
        """Return whether requests have images or recordings."""
        return True

    def open(self, session: Any, choices: ServerOptions) -> Any:
        """Return a context manager that opens a queue."""
        return closing(ImageQueue(session, max_waiting=choices.max_queue))

    def mount(self, backend: ImageQueue, offer: Offer) -> tuple[Model, list[APIRouter]]:
        """Return the model's description, and its endpoints."""
        session = backend.session
        model = offer.model(
            getattr(session, "max_length", 0), capabilities=capabilities.of_images(session)
        )
        return model, [matching.routes(API, backend, model.admit, offer.image_hosts)]


class Transcriptions:
    """Transcriptions and translations of recordings."""

    def takes_files(self, session: Any) -> bool:
        """Return whether requests have images or recordings."""
        return True

    def open(self, session: Any, choices: ServerOptions) -> Any:
        """Return a context manager that opens a queue."""
        return closing(SpeechQueue(session, max_waiting=choices.max_queue))

    def mount(self, backend: SpeechQueue, offer: Offer) -> tuple[Model, list[APIRouter]]:
        """Return the model's description, and its endpoints."""
        model = offer.model(0, capabilities=("transcription",))
        return model, [transcriptions.routes(API, backend, model.check)]
