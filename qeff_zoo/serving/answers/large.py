# SPDX-License-Identifier: Apache-2.0
"""Large answers: priced before they are computed, and written as JSON in pieces by a thread.

A million numbers take a second to write. The event loop writes none of them, and memory holds a piece of the text at a
time, since the next one is written when the client has read the last.
"""

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from fastapi.responses import Response, StreamingResponse
from pydantic_core import to_json

from qeff_zoo.serving.errors import ApiError

#: Maximum number of numbers in an answer: 2,048 embeddings of 4,096 dimensions.
MAX_NUMBERS = 1 << 23
#: Maximum number of log-probabilities in an answer, those of alternatives included.
MAX_LOGPROBS = 1 << 22
_PIECE = 1 << 18  # bytes that are written in one turn of a thread
_RUN = 4096  # values of a list that are written without a pause for other threads


def check_numbers(count: int, param: str) -> None:
    """Refuse a request whose answer would have too many numbers.

    Args:
        count: Number of numbers in the answer.
        param: Parameter that the error names.

    Raises:
        ApiError: There are more than `MAX_NUMBERS`.
    """
    _check(count, MAX_NUMBERS, "numbers", param, "Send fewer or shorter texts at a time")


def check_logprobs(count: int, param: str) -> None:
    """Refuse a request whose answer would have too many log-probabilities.

    Args:
        count: Number of log-probabilities in the answer.
        param: Parameter that the error names.

    Raises:
        ApiError: There are more than `MAX_LOGPROBS`.
    """
    advice = "Ask for fewer alternatives, tokens or choices"
    _check(count, MAX_LOGPROBS, "log-probabilities", param, advice)


def _check(count: int, most: int, nouns: str, param: str, advice: str) -> None:
    if count > most:
        raise ApiError(
            400,
            f"The answer would have {count:,} {nouns}; expected at most {most:,}. {advice}.",
            param=param,
            code="answer_too_large",
        )


def base64_of(numbers: np.ndarray) -> str:
    """Return numbers as float32 in base64, row by row, the lowest byte first."""
    return base64.b64encode(numbers.astype("<f4").tobytes()).decode()


async def json_answer(content: Any) -> Response:
    """Return a response with JSON that a thread writes, in one piece if it is short.

    Args:
        content: JSON values, arrays of numbers, and iterators for lists.
    """
    pieces = _pieces(content)
    first = await asyncio.to_thread(_next, pieces)
    second = await asyncio.to_thread(_next, pieces) if len(first) >= _PIECE else b""
    if not second:
        return Response(first, media_type="application/json")

    async def rest() -> AsyncIterator[bytes]:
        piece = second
        yield first
        while piece:
            yield piece
            piece = await asyncio.to_thread(_next, pieces)

    return StreamingResponse(rest(), media_type="application/json")


def _next(pieces: Iterator[bytes]) -> bytes:
    """Return the next part of a text; empty at its end."""
    part = bytearray()
    for piece in pieces:
        part += piece
        if len(part) >= _PIECE:
            break
    return bytes(part)


def _pieces(content: Any) -> Iterator[bytes]:
    """Yield the pieces of a JSON text."""
    if isinstance(content, Mapping):
        before = b"{"
        for name, value in content.items():
            yield before + to_json(name) + b":"
            yield from _pieces(value)
            before = b","
        yield b"{}" if before == b"{" else b"}"
    elif isinstance(content, np.ndarray) and content.ndim == 1:
        yield from _run_of(content)
    elif isinstance(content, np.ndarray | Iterator) or _is_nested(content):
        yield b"["
        for number, value in enumerate(content):
            if number:
                yield b","
            yield from _pieces(value)
        yield b"]"
    elif isinstance(content, list | tuple):
        yield from _run_of(content)
    else:
        yield to_json(content, inf_nan_mode="null")


def _is_nested(content: Any) -> bool:
    is_list = isinstance(content, list | tuple)
    return is_list and any(isinstance(one, Mapping | list | tuple | np.ndarray) for one in content)


def _run_of(values: Sequence[Any] | np.ndarray) -> Iterator[bytes]:
    """Yield the pieces of a list of values that are no lists or objects."""
    for start in range(0, len(values) or 1, _RUN):
        part = values[start : start + _RUN]
        if isinstance(part, np.ndarray):
            if not np.isfinite(part).all():
                raise ValueError("The output of the model has numbers that are not finite.")
            part = part.tolist()
        text = to_json(part, inf_nan_mode="null")
        yield (b"," if start else b"[") + text[1:-1]
    yield b"]"
