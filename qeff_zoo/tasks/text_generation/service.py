# SPDX-License-Identifier: Apache-2.0
"""Service of models that generate text: chats and completions of every API."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from fastapi import APIRouter

from qeff_zoo.errors import GenerationError, ServingError
from qeff_zoo.runtime import Engine, Prefills, TextGenerationSession
from qeff_zoo.runtime.text.chat_output import ChatFormat
from qeff_zoo.serving.apis import llama_server
from qeff_zoo.serving.apis.anthropic import messages
from qeff_zoo.serving.apis.ollama import endpoints as ollama
from qeff_zoo.serving.apis.openai import generation
from qeff_zoo.serving.apis.openai.responses import endpoints as responses
from qeff_zoo.serving.apis.openai.responses import store
from qeff_zoo.serving.apis.vllm import adapters
from qeff_zoo.serving.requests.chat_runs import ChatRuns
from qeff_zoo.serving.requests.media_sessions import ImageSession
from qeff_zoo.serving.requests.model import Model
from qeff_zoo.serving.requests.tools import ChatFormats
from qeff_zoo.serving.server.options import ServerOptions
from qeff_zoo.serving.server.services import API, Offer

_OF_FILES = {"images": "vision", "videos": "video", "audio": "audio"}


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
            capabilities=_capabilities(session, offer.formats),
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
            store.routes(API, offer.store),
            messages.routes(API, runs),
            ollama.routes(runs),
            llama_server.routes(runs),
        ]
        if taken is not None and sources is not None:
            routers.append(adapters.routes(API, offer.name, taken, sources))
        return model, routers


def _capabilities(session: TextGenerationSession, formats: ChatFormats) -> tuple[str, ...]:
    """Return the capabilities of a model that generates.

    Args:
        session: Session of the model.
        formats: Formats of its chats.
    """
    if session.describes_images:
        return ("captioning", "vision")
    if session.chat_template is None:
        return ("completion",)
    try:
        known = formats.of(session.chat_template.source())
    except GenerationError:  # several templates without a default one
        known = ChatFormat()
    capabilities = {
        "tools": known.takes_tools and known.calls is not None,
        "thinking": known.has_parts,
    }
    files = [name for argument, name in _OF_FILES.items() if argument in session.takes]
    if "video" in files and not _reads_videos(session):
        files.remove("video")
    return ("chat", "completion", *files, *(name for name, holds in capabilities.items() if holds))


def _reads_videos(session: TextGenerationSession) -> bool:
    try:
        cast("ImageSession", session).check_reads_videos()
    except GenerationError:
        return False
    return True
