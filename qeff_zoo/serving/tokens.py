# SPDX-License-Identifier: Apache-2.0
"""Endpoints of the tokenizer, as in vLLM and llama-server: `/tokenize`, `/detokenize` and `/apply-template`."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from qeff_zoo.package.files import read_json
from qeff_zoo.runtime import TextGenerationSession
from qeff_zoo.runtime.chat_template import ChatTemplate, special_tokens
from qeff_zoo.runtime.tokenizer import Tokenizer
from qeff_zoo.serving.answers import json_answer
from qeff_zoo.serving.errors import ApiError, blaming
from qeff_zoo.serving.model import Model
from qeff_zoo.serving.rendering import rendered, template_input, text_to_tokenize
from qeff_zoo.serving.schemas import ChatRequest, DetokenizeRequest, TokenizeRequest

_T = TypeVar("_T")
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

    @router.post(f"{api}tokenize")
    @router.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> Response:
        model.admit(body)
        found = await in_turn(partial(tokens, body))
        answer: dict[str, Any] = {
            "count": len(found),
            "max_model_len": model.max_tokens,
            "tokens": found,
            "token_strs": None,
        }
        if body.return_token_strs:
            tokenizer = _tokenizer(session, body.model)
            answer["token_strs"] = await in_turn(lambda: [*map(tokenizer.name, found)])
        if body.with_pieces:
            tokenizer = _tokenizer(session, body.model)
            answer["tokens"] = await in_turn(
                lambda: [{"id": one, "piece": tokenizer.piece(one)} for one in found]
            )
        return await json_answer(answer)

    if getattr(session, "chat_template", None) is not None:

        @router.post("/apply-template")
        async def apply_template(body: ChatRequest) -> Response:
            model.admit(body)
            return JSONResponse({"prompt": await in_turn(partial(rendered, session, body))})

    @router.get("/tokenizer_info")
    async def info() -> Response:
        found = await in_turn(partial(_described, session, model))
        return JSONResponse(found)

    @router.post(f"{api}detokenize")
    @router.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> Response:
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
        text = await in_turn(partial(tokenizer.spelled, body.tokens))
        return JSONResponse({"prompt": text, "content": text})  # vLLM's name, and llama-server's

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
