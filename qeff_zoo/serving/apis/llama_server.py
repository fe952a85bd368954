# SPDX-License-Identifier: Apache-2.0
"""llama-server's `/infill`: the text between two others, with files of the project before them."""

import time
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import to_json

from qeff_zoo.runtime import Generation, Handle
from qeff_zoo.runtime.text.fill_in_middle import (
    file_tokens,
    files_context,
    middle_prompt,
    middle_tokens,
)
from qeff_zoo.serving.answers.chats import Chat
from qeff_zoo.serving.answers.completion_choices import grow
from qeff_zoo.serving.answers.objects import Object
from qeff_zoo.serving.answers.streaming import EventStream
from qeff_zoo.serving.errors import ApiError
from qeff_zoo.serving.queues.media import Preparation
from qeff_zoo.serving.requests.chat_runs import ChatRuns
from qeff_zoo.serving.requests.leniency import ignore
from qeff_zoo.serving.requests.prompts import prepare_completion
from qeff_zoo.serving.requests.schemas import MAX_TEXT, CompletionRequest, Limit

#: Options of llama-server that choose its own samplers and time limits.
_IGNORED = ("n_indent", "response_fields", "samplers", "t_max_predict_ms", "t_max_prompt_ms")
_Text = Annotated[str, Field(max_length=MAX_TEXT)]


class ExtraFile(BaseModel):
    """File of the project, or a part of one."""

    model_config = ConfigDict(strict=True)

    text: _Text
    filename: Annotated[str, Field(max_length=4096)] = "tmp"


def _short(files: list[ExtraFile]) -> list[ExtraFile]:
    if (count := sum(len(file.text) + len(file.filename) for file in files)) > MAX_TEXT:
        raise ValueError(f"at most {MAX_TEXT:,} characters are expected in all, not {count:,}")
    return files


class InfillRequest(CompletionRequest):
    """Body of /infill: a completion whose prompt continues the text before it."""

    input_prefix: _Text
    input_suffix: _Text
    input_extra: Annotated[
        list[ExtraFile], Field(max_length=1024, fail_fast=True), AfterValidator(_short)
    ] = Field(default_factory=list)
    prompt: _Text = ""
    max_tokens: Limit | Literal[0] = None
    return_tokens: bool = False
    n: Literal[1] = 1
    echo: Literal[False] = False
    suffix: Literal[""] = ""

    @model_validator(mode="before")
    @classmethod
    def _without_hints(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        for name in _IGNORED:
            if values.get(name) is not None:
                ignore(name, values[name])
        return {name: value for name, value in values.items() if name not in _IGNORED}

    @model_validator(mode="after")
    def _scored(self) -> "InfillRequest":
        return self  # no token is generated for 0: the prompt is computed for the prefix cache


def routes(runs: ChatRuns) -> APIRouter:
    """Return the endpoint.

    Args:
        runs: Chats of the model.
    """
    router = APIRouter()
    session = runs.engine.session

    def prompt(body: InfillRequest) -> list[int]:
        """Return the prompt; the beginning of the files is left out if they exceed the context."""
        tokenizer = session.tokenizer
        if tokenizer is None or middle_tokens(tokenizer) is None:
            raise ApiError(
                400,
                f"The tokenizer of model {body.model!r} has no tokens for fill in the middle; expected a model that "
                "has them. Use such a one, or /v1/completions.",
                param="input_prefix",
                code="unsupported_parameter",
            )
        context = files_context(
            tokenizer, [(file.filename, file.text) for file in body.input_extra]
        )
        texts = (body.input_prefix, body.input_suffix)
        found = middle_prompt(tokenizer, *texts, begun=body.prompt, context=context) or []
        ctx_len = session.decoder.sizes.ctx_len
        room = ctx_len - (body.max_tokens or ctx_len // 8)
        excess = min(len(context), max(0, len(found) - room))
        opening = len(tokenizer.encode("")[:1])
        return [*found[:opening], *found[opening + excess :]]

    def prepare(body: InfillRequest) -> Preparation[Chat]:
        known = file_tokens(session.tokenizer) if session.tokenizer else {}
        given = {name: getattr(body, name) for name in CompletionRequest.model_fields}
        changed = {
            "prompt": prompt(body),
            "max_tokens": 1 if body.max_tokens == 0 else body.max_tokens,
            "stop_token_ids": [*body.stop_token_ids, *known.values()],
        }
        completion = CompletionRequest.model_construct(**{**given, **changed})
        adapter = runs.model.admit(completion)
        return (
            yield from prepare_completion(session, completion, adapter, runs.bounds, runs.formats)
        )

    async def stream(
        body: InfillRequest, handles: Sequence[Handle], begun: float
    ) -> AsyncIterator[bytes]:
        (handle,) = handles
        first, count = 0.0, 0
        try:
            async for _, delta in grow(handles, runs.metrics):
                first = first or time.perf_counter()
                count += len(delta.token_ids)
                if delta.text and body.max_tokens != 0:
                    yield _event(
                        {
                            **_part(delta.text, delta.token_ids, stop=False),
                            "tokens_predicted": count,
                            "tokens_evaluated": handle.request.prompt_tokens,
                        }
                    )
        except ApiError as error:
            yield _event(error.body)
            return
        yield _event(_part("", (), stop=True) | ended(body, handle.result(), (begun, first)))

    def ended(body: InfillRequest, generation: Generation, times: tuple[float, float]) -> Object:
        """Return the fields at the end of a generation.

        Args:
            body: Body of the request.
            generation: The generation.
            times: Times of the start of the request and of the first token.
        """
        count = 0 if body.max_tokens == 0 else len(generation.token_ids)
        begun, first = times
        settings = {"n_ctx": session.decoder.sizes.ctx_len, "n_predict": body.max_tokens or -1}
        return {
            "model": body.model,
            "tokens_predicted": count,
            "tokens_evaluated": generation.prompt_tokens,
            "generation_settings": settings,
            "prompt": generation.prompt,
            "truncated": False,
            "stop_type": _stop_type(generation),
            "stopping_word": generation.stop_string or "",
            "tokens_cached": generation.prompt_tokens + count,
            "timings": {
                "cache_n": generation.reused_tokens,
                **_timing("prompt", generation.prompt_tokens - generation.reused_tokens, first - begun),
                **_timing("predicted", count, time.perf_counter() - first),
            },
        }  # fmt: skip

    @router.post("/infill")
    async def infill(request: Request, body: InfillRequest) -> Response:
        begun = time.perf_counter()
        runs.model.admit(body)
        _, handles = await runs.begin(request, prepare(body))
        if body.stream:
            return EventStream(stream(body, handles, begun), handles)
        (generation,) = await runs.finish(request, handles)
        started = handles[0].started or begun
        is_silent = body.max_tokens == 0
        tokens = generation.token_ids if body.return_tokens and not is_silent else ()
        part = _part("" if is_silent else generation.text, tokens, stop=True)
        return JSONResponse(part | ended(body, generation, (begun, started)))

    return router


def _stop_type(generation: Generation) -> str:
    if generation.finish_reason == "length":
        return "limit"
    return "word" if generation.stop_string else "eos"


def _part(text: str, tokens: Sequence[int], *, stop: bool) -> Object:
    return {"index": 0, "content": text, "tokens": [*tokens], "stop": stop, "id_slot": -1}


def _timing(name: str, count: int, seconds: float) -> Object:
    rate = count / seconds if seconds > 0 else 0.0
    each = 1000 * seconds / count if count else 0.0
    return {
        f"{name}_n": count,
        f"{name}_ms": 1000 * seconds,
        f"{name}_per_token_ms": each,
        f"{name}_per_second": rate,
    }


def _event(content: Object) -> bytes:
    return b"data: %b\n\n" % to_json(content)
