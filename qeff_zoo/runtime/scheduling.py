# SPDX-License-Identifier: Apache-2.0
"""Which request runs when: any number of requests in, every one of them served.

Without slots the rows of a call start together and finish as a wave; with slots (continuous
batching) a request takes the place of another as soon as that one is done.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from qeff_zoo.runtime.decoder import Array, Decoder, Piece
from qeff_zoo.runtime.sampling import Sampler

FinishReason: TypeAlias = Literal["eos", "length"]


@dataclass
class Request:
    """A prompt on its way.

    Args:
        number: Tells it from others.
        prompt: Token ids.
        limit: Tokens to generate at most.
        generated: Token ids so far.
        finish_reason: Why it ended; None before.
    """

    number: int
    prompt: Sequence[int]
    limit: int
    generated: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None


@dataclass
class Timings:
    """Seconds and tokens of one `serve`.

    Args:
        begun: `time.perf_counter()` at the start.
        first: At the first token.
        prefill_seconds: Spent in prefill calls.
        prefill_tokens: Prompt tokens run.
        decode_seconds: Spent in decode calls.
        decode_tokens: Tokens that decode calls generated.
    """

    begun: float = field(default_factory=time.perf_counter)
    first: float | None = None
    prefill_seconds: float = 0.0
    prefill_tokens: int = 0
    decode_seconds: float = 0.0
    decode_tokens: int = 0


def serve(
    decoder: Decoder,
    requests: Iterable[Request],
    sampler: Sampler,
    stops: Set[int],
    accept: Callable[[Request], None],
) -> Timings:
    """Serve requests to the end; their results are in them.

    Args:
        decoder: Runs the calls.
        requests: In the order they are to begin.
        sampler: Picks tokens.
        stops: Tokens that end a request.
        accept: Called after every new token of a request.
    """
    waiting = deque(requests)
    rows: list[Request | None] = [None] * decoder.sizes.rows
    timings = Timings()

    def take(logits: dict[int, Array]) -> None:
        timings.first = timings.first or time.perf_counter()
        for row, values in logits.items():
            request = rows[row]
            assert request is not None
            _append(request, sampler(values), stops)
            accept(request)
            if request.finish_reason:
                rows[row] = None

    while waiting or any(rows):
        while joined := _admit(rows, waiting, one_by_one=decoder.sizes.full_batch_size is not None):
            take(_timed_prefill(decoder, joined, timings))
        if running := {row: request for row, request in enumerate(rows) if request}:
            take(_timed_decode(decoder, running, timings))
    return timings


def _admit(
    rows: list[Request | None], waiting: deque[Request], *, one_by_one: bool
) -> dict[int, Request]:
    """Give waiting requests a row: the next one alone, or as many as fit once all rows are free."""
    free = [row for row, request in enumerate(rows) if request is None]
    if not one_by_one and len(free) < len(rows):
        return {}
    joined = {row: waiting.popleft() for row in free[: 1 if one_by_one else None] if waiting}
    for row, request in joined.items():
        rows[row] = request
    return joined


def prefill(decoder: Decoder, prompts: dict[int, Sequence[int]]) -> dict[int, Array]:
    """Run whole prompts in chunks; return each row's logits after its last token.

    Args:
        decoder: Runs the calls.
        prompts: Token ids by row; with slots, of one slot.
    """
    logits: dict[int, Array] = {}
    for pieces in chunks(prompts, decoder.sizes.prefill_seq_len):
        logits.update(decoder.prefill(pieces))
    return {row: logits[row] for row in prompts}


def chunks(prompts: dict[int, Sequence[int]], length: int) -> Iterator[dict[int, Piece]]:
    """Cut prompts into calls of at most `length` tokens a row; a row that is through has no piece."""
    longest = max(len(prompt) for prompt in prompts.values())
    for start in range(0, longest, length):
        yield {
            row: Piece(prompt[start : start + length], start)
            for row, prompt in prompts.items()
            if start < len(prompt)
        }


def _timed_prefill(
    decoder: Decoder, joined: dict[int, Request], timings: Timings
) -> dict[int, Array]:
    begun = time.perf_counter()
    logits = prefill(decoder, {row: request.prompt for row, request in joined.items()})
    timings.prefill_seconds += time.perf_counter() - begun
    timings.prefill_tokens += sum(len(request.prompt) for request in joined.values())
    return logits


def _timed_decode(
    decoder: Decoder, running: dict[int, Request], timings: Timings
) -> dict[int, Array]:
    begun = time.perf_counter()
    logits = decoder.decode(
        {
            row: Piece(request.generated[-1:], len(request.prompt) + len(request.generated) - 1)
            for row, request in running.items()
        }
    )
    timings.decode_seconds += time.perf_counter() - begun
    timings.decode_tokens += len(running)
    return logits


def _append(request: Request, token: int, stops: Set[int]) -> None:
    request.generated.append(token)
    if token in stops:
        request.finish_reason = "eos"
    elif len(request.generated) >= request.limit:
        request.finish_reason = "length"
