# SPDX-License-Identifier: Apache-2.0
"""Queue of text encoder requests: one thread that serves all clients."""

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar

from qeff_zoo.errors import ContextLengthError
from qeff_zoo.runtime import Stats
from qeff_zoo.runtime.program import Array
from qeff_zoo.runtime.text.texts import Texts
from qeff_zoo.runtime.text.tokenizer import Encoded
from qeff_zoo.serving.errors import shutting_down
from qeff_zoo.serving.queues.accounts import Turns, current
from qeff_zoo.serving.queues.threads import in_thread
from qeff_zoo.serving.queues.waiting import Waiting
from qeff_zoo.tasks.encoders.session import EncoderSession

_Read = TypeVar("_Read", bound=Sequence[Encoded])
_READS = 2  # requests of a client whose texts are tokenized at a time


@dataclass(eq=False)
class _Job:
    """The texts of one request.

    Args:
        texts: All of them.
        left: Numbers of the texts without an output, the shortest last.
        future: Future of all outputs; also done if the client disconnected.
        client: Name of the client.
        outputs: Finished outputs by number.
    """

    texts: Sequence[Encoded]
    left: list[int]
    future: asyncio.Future[list[Array]]
    client: str
    outputs: dict[int, Array] = field(default_factory=dict)


class EncoderQueue:
    """Queue of requests whose calls are shared fairly: every waiting request has a part of each call.

    Args:
        session: Session that the queue owns.
        max_waiting: Maximum number of waiting requests.
    """

    def __init__(self, session: EncoderSession, *, max_waiting: int) -> None:
        self.session, self._requests = session, Waiting(max_waiting)
        self._worker = ThreadPoolExecutor(1, "qeff-zoo encoder")
        # One thread, so that slow chat templates delay no texts.
        self._chats = ThreadPoolExecutor(1, "qeff-zoo chats")
        self._turns = Turns(_READS)
        self._jobs: deque[_Job] = deque()  # in turn
        self._serving: asyncio.Task[None] | None = None  # as long as there are jobs
        self._closing, self._lock = False, threading.Lock()
        self._running = self._tokens = 0

    async def encode(
        self,
        texts: Sequence[Texts] | Callable[[], str],
        *,
        cut: bool = True,
        max_length: int | None = None,
        side: Literal["left", "right"] | None = None,
        special_tokens: bool = True,
        prompt: str | None = None,
        kind: str | None = None,
        check: Callable[[list[Encoded]], None] = lambda _: None,
    ) -> tuple[list[Encoded], list[Array]]:
        """Return the tokens of texts, and the graph's output for each. Cancellation drops the remaining calls.

        Args:
            texts: Texts, pairs of texts, or lists of token ids; or a function that renders a chat as one text.
            cut: Whether long texts may be truncated.
            max_length: Number of tokens to which texts are truncated; None for the model's.
            side: Side on which they are truncated; None for the tokenizer's.
            special_tokens: Whether the tokenizer's special tokens are added.
            prompt: Text that precedes every text, but no list of token ids and no chat; None for the session's default.
            kind: Kind of the texts of an embedding, "query" or "document"; None for neither.
            check: Function that refuses the texts before they are encoded.

        Raises:
            BusyError: The queue is full.
            GenerationError: A text cannot be encoded.
            ContextLengthError: A text exceeds the maximum length, and `cut` is not set.
            ApiError: The server shuts down.
        """
        with self._requests.one():
            options: dict[str, Any] = {"kind": kind} if kind else {}
            if callable(texts):
                texts = [await in_thread(self._chats, texts)]
                options = {**options, "rendered": True}
            reading = partial(
                self.session.read, special_tokens=special_tokens, prompt=prompt, **options
            )
            async with self._turns.one():
                read = await asyncio.to_thread(reading, texts, max_length, side)
            if not cut:
                self._check_lengths(read)
            check(read)
            return read, await self._outputs(read)

    async def encode_read(self, reading: Callable[[], _Read]) -> tuple[_Read, list[Array]]:
        """Return the tokens that a function returns, and the graph's output for each; see `encode`.

        Args:
            reading: Function that tokenizes texts, and refuses those that cannot be encoded.
        """
        with self._requests.one():
            async with self._turns.one():
                read = await asyncio.to_thread(reading)
            return read, await self._outputs(read)

    async def _outputs(self, read: Sequence[Encoded]) -> list[Array]:
        """Return the graph's output for each text."""
        self._tokens += sum(len(text.ids) for text in read)
        left = sorted(range(len(read)), key=lambda number: -len(read[number].ids))
        future = asyncio.get_running_loop().create_future()
        self._jobs.append(_Job(read, left, future, current().name))
        if self._serving is None:
            self._serving = asyncio.create_task(self._serve())
        outputs: list[Array] = await future
        return outputs

    def stats(self) -> Stats:
        """Return the statistics of finished and waiting requests."""
        rows = self.session.sizes.batch_size
        return self._requests.stats(rows=rows, running=self._running, prompt_tokens=self._tokens)

    def close(self) -> None:
        """Finish the running call, and start no further ones. Not for the event loop's thread while the loop runs."""
        with self._lock:
            self._closing = True
        self._worker.shutdown()

    def _check_lengths(self, texts: Sequence[Encoded]) -> None:
        number = next((number for number, text in enumerate(texts) if text.cut), None)
        if number is not None:
            raise ContextLengthError(
                f"Text {number:,} has more than {self.session.max_length:,} tokens, which is all that the model reads; "
                "expected none that has to be cut. Shorten it, or let it be cut."
            )

    async def _serve(self) -> None:
        """Make calls until the queue is empty."""
        while call := self._next_call():
            if (running := self._begin(call)) is None:
                break
            self._running = len({job for job, _ in call})
            await asyncio.wait([running])
            self._running = 0
            _deliver(call, running)
        for job in self._jobs:  # left at shutdown
            job.future.set_exception(shutting_down())
        self._jobs.clear()
        self._serving = None

    def _next_call(self) -> list[tuple[_Job, int]]:
        """Choose the texts of the next call: from every client's requests in turn, none longer than the first.

        A request's texts are ordered by length, since similar lengths need less padding.
        """
        self._jobs = deque(job for job in self._jobs if not job.future.done())
        if not self._jobs:
            return []
        turns, sizes = deque(_alternating(self._jobs)), self.session.sizes
        first = turns[0]
        longest = sizes.covering(len(first.texts[first.left[-1]].ids))
        call: list[tuple[_Job, int]] = []
        while turns and len(call) < sizes.batch_size:
            job = turns.popleft()
            if job.left and len(job.texts[job.left[-1]].ids) <= longest:
                call.append((job, job.left.pop()))
                turns.append(job)
        self._jobs.remove(first)
        self._jobs.append(first)
        return call

    def _begin(self, call: Sequence[tuple[_Job, int]]) -> asyncio.Future[Iterable[Array]] | None:
        """Start a call in the worker's thread; None if the server shuts down."""
        texts = [job.texts[number] for job, number in call]
        with self._lock:
            if self._closing:
                return None
            loop = asyncio.get_running_loop()
            return loop.run_in_executor(self._worker, partial(self.session.run_encoded, texts))


def _alternating(jobs: Iterable[_Job]) -> list[_Job]:
    """Return requests with clients in turn: the first of each client, then the second ones."""
    ranks, before = list[int](), Counter[str]()
    jobs = [*jobs]
    for job in jobs:
        ranks.append(before[job.client])
        before[job.client] += 1
    return [job for _, job in sorted(zip(ranks, jobs, strict=True), key=lambda one: one[0])]


def _deliver(call: Sequence[tuple[_Job, int]], ended: asyncio.Future[Iterable[Array]]) -> None:
    """Deliver the result of a call, outputs or an error, to its requests."""
    if error := ended.exception():
        for job in {job for job, _ in call if not job.future.done()}:
            job.future.set_exception(error)
        return
    for (job, number), row in zip(call, ended.result(), strict=True):
        job.outputs[number] = row
        if len(job.outputs) == len(job.texts) and not job.future.done():  # the client may have left
            job.future.set_result([job.outputs[n] for n in range(len(job.texts))])
