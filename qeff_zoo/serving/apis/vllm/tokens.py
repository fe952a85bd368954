# SPDX-License-Identifier: Apache-2.0
"""Endpoints of the tokenizer, as in vLLM and llama-server: `/tokenize`, `/detokenize` and `/apply-template`."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic_core import to_json

from qeff_zoo.package.files import read_json
from qeff_zoo.runtime import TextGenerationSession
from qeff_zoo.runtime.text.chat_template import ChatTemplate, special_tokens
from qeff_zoo.runtime.text.token_answers import (
    TokenOptions,
    detokenized,
    detokenized_in,
    tokenized,
    tokenized_in,
)
from qeff_zoo.runtime.text.tokenizer import Tokenizer
from qeff_zoo.serving.answers.streaming import unless_gone
from qeff_zoo.serving.errors import ApiError, blaming
from qeff_zoo.serving.queues.workers import shared
from qeff_zoo.serving.requests.model import Model
from qeff_zoo.serving.requests.prompts import SECONDS_OF_TEXT
from qeff_zoo.serving.requests.rendering import rendered, template_input, text_to_tokenize
from qeff_zoo.serving.requests.schemas import ChatRequest, DetokenizeRequest, TokenizeRequest

_T = TypeVar("_T")
_QUICK = 1 << 14  # characters or tokens for which no worker is needed
#: Settings of tokenizer_config.json for clients; others may be paths.
_SETTINGS = frozenset(
    {
        *("add_bos_token", "add_eos_token", "add_prefix_space", "clean_up_tokenization_spaces"),
        *("do_lower_case", "legacy", "model_input_names", "padding_side", "split_special_tokens"),
        *("tokenizer_class", "truncation_side"),
    }
)


def routes(api: str, session: Any, model: Model) -> APIRouter:
    """Return the endpoints of a session's tokenizer.

    Args:
        api: Prefix of OpenAI's paths; vLLM's clients use the paths without it.
        session: Session of the model.
        model: Description of the model.
    """
    router = APIRouter()
    # One thread, so that long texts delay no generation.
    worker = ThreadPoolExecutor(1, "qeff-zoo tokens")

    async def in_turn(work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(worker, work)

    async def apart(request: Request, work: Callable[[], _T], param: str) -> _T:
        with blaming(param):
            return await unless_gone(request, shared().run(work, SECONDS_OF_TEXT))

    def tokens(body: TokenizeRequest) -> list[int]:
        tokenizer = _tokenizer(session, body.model)
        if body.messages is None:
            text, special = body.text
            with blaming("prompt" if body.content is None else "content"):
                return tokenizer.encode(text, special_tokens=special)
        if body.add_special_tokens is None and isinstance(session, TextGenerationSession):
            chat = template_input(session, body)
            with blaming("messages"):
                return session.encode_chat(*chat)
        text = text_to_tokenize(session, body)
        with blaming("messages"):
            return tokenizer.encode(text, special_tokens=bool(body.add_special_tokens))

    def options(body: TokenizeRequest) -> TokenOptions:
        return TokenOptions(
            most=model.max_tokens,
            names=bool(body.return_token_strs),
            pieces=bool(body.with_pieces),
        )

    def written(body: TokenizeRequest) -> bytes:
        found = tokens(body)
        is_named = body.return_token_strs or body.with_pieces
        tokenizer = _tokenizer(session, body.model) if is_named else None
        return tokenized(tokenizer, found, options(body))

    @router.post(f"{api}tokenize")
    @router.post("/tokenize")
    async def tokenize(request: Request, body: TokenizeRequest) -> Response:
        model.admit(body)
        if body.messages is None and len(body.text[0]) > _QUICK:
            tokenizer = _tokenizer(session, body.model)
            text, special = body.text
            content = await apart(
                request,
                partial(
                    tokenized_in,
                    tokenizer.folder,
                    tokenizer.lowers,
                    text,
                    special,
                    options(body),
                ),
                "prompt" if body.content is None else "content",
            )
        else:
            content = await in_turn(partial(written, body))
        return Response(content, media_type="application/json")

    if getattr(session, "chat_template", None) is not None:

        @router.post("/apply-template")
        async def apply_template(body: ChatRequest) -> Response:
            model.admit(body)
            content = await in_turn(lambda: to_json({"prompt": rendered(session, body)}))
            return Response(content, media_type="application/json")

    @router.get("/tokenizer_info")
    async def info() -> Response:
        found = await in_turn(partial(_described, session, model))
        return JSONResponse(found)

    @router.post(f"{api}detokenize")
    @router.post("/detokenize")
    async def detokenize(request: Request, body: DetokenizeRequest) -> Response:
        model.admit(body)
        tokenizer = _tokenizer(session, body.model)
        size = tokenizer.vocab_size
        foreign = next((token for token in body.tokens if token >= size), None)
        if foreign is not None:
            raise ApiError(
                400,
                f"Token id {foreign} is not of this model; expected 0 to {size - 1:,}. Send tokens of this model.",
                param="tokens",
                code="invalid_value",
            )
        if len(body.tokens) > _QUICK:
            work = partial(detokenized_in, tokenizer.folder, body.tokens)
            content = await apart(request, work, "tokens")
        else:
            content = await in_turn(partial(detokenized, tokenizer, body.tokens))
        return Response(content, media_type="application/json")

    return router


def _described(session: Any, model: Model) -> dict[str, Any]:
    """Return the settings of a tokenizer under their names in tokenizer_config.json, without paths."""
    tokenizer = _tokenizer(session, model.name)
    settings = read_json(session.folder / "tokenizer_config.json")
    named = special_tokens(session.folder)
    found = {"tokenizer_class": "PreTrainedTokenizerFast"}  # transformers' for any tokenizer.json
    found |= {name: settings[name] for name in sorted(_SETTINGS & settings.keys())}
    others = [text for text in tokenizer.special.values() if text not in named.values()]
    template: ChatTemplate | None = getattr(session, "chat_template", None)
    sources = template.sources if template else {}
    several = [{"name": name, "template": source} for name, source in sources.items()]
    return {
        **found,
        **named,
        "model_max_length": model.max_tokens,
        "additional_special_tokens": others,
        "added_tokens_decoder": tokenizer.added,
        **(
            {"chat_template": several if len(several) > 1 else several[0]["template"]}
            if several
            else {}
        ),
    }


def _tokenizer(session: Any, model: str) -> Tokenizer:
    found: Tokenizer | None = session.tokenizer
    if found is None:
        raise ApiError(
            400,
            f"Model {model!r} has no tokenizer; expected a model with one. Send token ids to the other endpoints.",
            param="model",
            code="no_tokenizer",
        )
    return found
