# SPDX-License-Identifier: Apache-2.0
"""Cohere's endpoints of text embeddings: embeddings in several types, and prompts by the kind of input."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from qeff_zoo.package.files import read_json
from qeff_zoo.runtime.program import Array
from qeff_zoo.serving.embeddings import base64_of, shortened
from qeff_zoo.serving.encoder_queue import EncoderQueue
from qeff_zoo.serving.encoder_schemas import CohereEmbedRequest
from qeff_zoo.serving.errors import invalid
from qeff_zoo.serving.scores import encoded, require_few

#: Names of sentence-transformers' prompts by Cohere's kinds of input, the first that a model has.
_KINDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "search_query": ("search_query", "query"),
        "search_document": ("search_document", "document", "passage"),
        "classification": ("classification",),
        "clustering": ("clustering",),
    }
)


def _bits(vectors: Array) -> Array:
    """Return the signs of embeddings, eight in a byte."""
    return np.packbits(vectors > 0, axis=1)


#: Functions from embeddings, (texts, hidden), to their lists by type.
_TYPES: Mapping[str, Callable[[Array], list[Any]]] = MappingProxyType(
    {
        "float": lambda vectors: vectors.tolist(),
        "base64": lambda vectors: [*map(base64_of, vectors)],
        "ubinary": lambda vectors: _bits(vectors).tolist(),
        "binary": lambda vectors: (_bits(vectors).astype(np.int16) - 128).tolist(),
    }
)


def routes(queue: EncoderQueue, admit: Callable[[Any], object]) -> APIRouter:
    """Return the endpoints of embeddings, which differ for a request without types.

    Args:
        queue: Queue of the requests.
        admit: Function that checks the model of a body.
    """
    router = APIRouter()
    folder = queue.session.folder
    prompts = read_json(folder / "config_sentence_transformers.json").get("prompts") or {}

    @router.post("/v1/embed")
    @router.post("/v2/embed")
    async def embed(request: Request, body: CohereEmbedRequest) -> Response:
        admit(body)
        prefix = prompt_of(prompts, body.input_type)
        texts = require_few(body.given, "texts")
        read, outputs = await encoded(
            request, queue, [prefix + text for text in texts], body, "texts"
        )
        vectors = shortened(np.stack(outputs), body.output_dimension)
        tokens = sum(len(one.ids) for one in read)
        version = "1" if request.url.path == "/v1/embed" else "2"
        found = {
            "id": str(uuid.uuid4()),
            "embeddings": {name: _TYPES[name](vectors) for name in body.embedding_types},
            "texts": [*texts],
            "meta": {
                "api_version": {"version": version},
                "billed_units": {"input_tokens": tokens, "image_tokens": 0},
            },
            "response_type": "embeddings_by_type",
        }
        if version == "1" and "embedding_types" not in body.model_fields_set:
            found |= {"embeddings": vectors.tolist(), "response_type": "embeddings_floats"}
        return JSONResponse(found)

    return router


def prompt_of(prompts: Mapping[str, str], kind: str | None) -> str:
    """Return the prompt that precedes texts of a kind; empty for Cohere's kinds that a model does not distinguish.

    Args:
        prompts: Prompts of the model by their names.
        kind: Cohere's name of the kind, or one of the model's; None for no prompt.

    Raises:
        ApiError: The kind is unknown.
    """
    if kind is None:
        return ""
    if kind not in _KINDS and kind not in prompts:
        known: Sequence[str] = sorted({*_KINDS, *prompts})
        raise invalid("input_type", kind, f"one of {', '.join(known)}", "Change it")
    return next((prompts[name] for name in _KINDS.get(kind, (kind,)) if name in prompts), "")
