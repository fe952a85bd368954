# SPDX-License-Identifier: Apache-2.0
"""Choices of one client's request, generated together: streamed, or returned as a whole."""

import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, contextmanager

from qeff_zoo.errors import AdapterError, BusyError, GenerationError, NoTokenError
from qeff_zoo.runtime import Delta, Engine, Generation, Handle, Request, stream_deltas
from qeff_zoo.serving.errors import ApiError, internal_error, queue_full, shutting_down
from qeff_zoo.serving.monitoring import request_usage
from qeff_zoo.serving.monitoring.metrics import Metrics

_log = logging.getLogger(__name__)


def submit(engine: Engine, requests: Sequence[Request]) -> list[Handle]:
    """Submit all requests to an engine, or none.

    Raises:
        ApiError: The queue is full, or the server shuts down.
    """
    try:
        return engine.submit_together(requests)
    except BusyError as error:
        raise queue_full(error) from error
    except AdapterError as error:  # unloaded since the request
        raise ApiError(404, str(error), param="model", code="model_not_found") from error
    except GenerationError as error:  # requests are valid, so the engine is closed
        raise shutting_down() from error


@contextmanager
def cancelling(handles: Sequence[Handle]) -> Iterator[None]:
    """Free the batch slots at the end of the block, also after an error."""
    try:
        yield
    finally:
        for handle in handles:
            handle.cancel()


async def grow(handles: Sequence[Handle], metrics: Metrics) -> AsyncIterator[tuple[int, Delta]]:
    """Yield the deltas of the choices, each with the number of its choice.

    Raises:
        ApiError: A choice failed, or was cancelled because the server shuts down.
    """
    request_usage.count(prompt_tokens=sum(one.request.prompt_tokens for one in handles))
    metrics.count_choices(handles)
    observers = [metrics.stopwatch(handle) for handle in handles]
    async with aclosing(stream_deltas(handles)) as deltas:
        async for number, delta in deltas:
            observers[number](delta)
            request_usage.count(generated_tokens=len(delta.token_ids))
            if delta.finish_reason == "cancelled":
                raise shutting_down()
            yield number, delta
    if error := next((handle.error for handle in handles if handle.error), None):
        if isinstance(error, NoTokenError):
            raise ApiError(400, str(error), code="no_token") from error
        _log.error("A request failed.", exc_info=error)
        raise internal_error() from error


async def whole(handles: Sequence[Handle], metrics: Metrics) -> list[Generation]:
    """Return the generations after the end of the last one.

    Raises:
        ApiError: The same errors as `grow`.
    """
    async for _ in grow(handles, metrics):
        pass
    return [handle.result() for handle in handles]
