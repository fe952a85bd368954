# SPDX-License-Identifier: Apache-2.0
"""Engine for one session and any number of threads and coroutines: requests in, streams of text out."""

import asyncio
import atexit
import threading
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from qeff_zoo.errors import BusyError, GenerationError, HandoffError
from qeff_zoo.runtime.engine.answers import Answer, Delta, Request
from qeff_zoo.runtime.engine.disaggregated import Prefills
from qeff_zoo.runtime.engine.prompts import Prompt
from qeff_zoo.runtime.engine.text_generation import Generation, TextGenerationSession

_FEW = 16  # waiting requests that a client may have whatever others need


class Handle:
    """Request that an engine serves: iterate over it, with `for` or `async for`, or await its `Generation`.

    Any number of threads and coroutines may iterate, each from the beginning. As a context manager it cancels the
    request at the end if it still runs.
    """

    def __init__(self, engine: "Engine", request: Request) -> None:
        self.request = request
        self._engine = engine
        self._answer = engine.session.answer(request, self._put)
        self._deltas: list[Delta] = []
        self._ended = False
        self._changed = threading.Condition()
        self._waiting = 0  # threads that wait for it
        self._readers: tuple[_Reader, ...] = ()

    @property
    def done(self) -> bool:
        """Whether generation has ended."""
        return self._ended

    def cancel(self) -> None:
        """End generation with the text so far; the finish reason becomes "cancelled". No effect after the end."""
        if not self._ended:
            self._engine._cancel(self._answer)

    def result(self, timeout: float | None = None) -> Generation:
        """Wait for the end of generation.

        Args:
            timeout: Maximum number of seconds to wait; None for no limit.

        Raises:
            GenerationError: If the request failed.
            TimeoutError: If the request has not ended; it continues.
        """
        if not self._wait_for(lambda: self._ended, timeout):
            raise TimeoutError(f"The answer has not ended after {timeout!r} seconds.")
        return self._engine.session.generation(self._answer)

    def __iter__(self) -> Iterator[Delta]:
        at, ended = 0, False

        def has_more() -> bool:
            return len(self._deltas) > at or self._ended

        while not ended:
            self._wait_for(has_more)
            fresh, ended = self._since(at)
            at += len(fresh)
            yield from fresh
        self._raise()

    async def __aiter__(self) -> AsyncIterator[Delta]:
        async for _, delta in stream_deltas([self]):
            yield delta
        self._raise()

    def __await__(self) -> Generator[Any, None, Generation]:
        return self._finished().__await__()

    def __enter__(self) -> "Handle":
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    async def _finished(self) -> Generation:
        async for _ in self:
            pass
        return self._engine.session.generation(self._answer)

    def _wait_for(self, condition: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until a condition is true, or for `timeout` seconds; return whether it is."""
        with self._changed:
            self._waiting += 1
            try:
                return self._changed.wait_for(condition, timeout)
            finally:
                self._waiting -= 1

    def _since(self, at: int) -> tuple[list[Delta], bool]:
        """Return the deltas from a number on, and whether they are the last."""
        ended = self._ended  # read first: if it is set, all deltas are there
        return self._deltas[at:], ended

    def _put(self, delta: Delta | None) -> None:
        """Append a delta in the engine's thread; None for a failure.

        Readers take deltas without a lock: a thread that waited for one held by the engine's would delay it.
        """
        first = not self._deltas
        if delta:
            self._deltas.append(delta)
        self._ended = delta is None or delta.finish_reason is not None
        if self._waiting:  # a thread that comes later finds the delta
            with self._changed:
                self._changed.notify_all()
        self._engine._wake(self._readers, now=first)

    @property
    def started(self) -> float | None:
        """`time.perf_counter()` when the request first had a batch slot; None before."""
        return self._answer.started

    @property
    def reused_tokens(self) -> int:
        """Number of prompt tokens that the prefix cache had, so far."""
        return self._answer.reused_tokens

    @property
    def evictions(self) -> int:
        """Number of times that another client took the batch slot, so far."""
        return self._answer.evictions

    @property
    def error(self) -> Exception | None:
        """Error that ended the request; None without one."""
        return self._answer.error

    def _raise(self) -> None:
        if self.error:
            raise self.error


class _Reader:
    """Coroutine that waits for deltas, in its event loop."""

    def __init__(self) -> None:
        self.loop, self.woken = asyncio.get_running_loop(), asyncio.Event()


async def stream_deltas(handles: Sequence[Handle]) -> AsyncGenerator[tuple[int, Delta], None]:
    """Yield the deltas of several requests, each with the number of its request, until one fails: see `Handle.error`.

    Args:
        handles: Submitted requests.
    """
    reader, taken = _Reader(), [0] * len(handles)
    for handle in handles:
        with handle._changed:
            handle._readers += (reader,)
    try:
        running = [*range(len(handles))]
        while running:
            reader.woken.clear()
            for number in [*running]:
                fresh, ended = handles[number]._since(taken[number])
                taken[number] += len(fresh)
                for delta in fresh:
                    yield number, delta
                if ended:
                    running.remove(number)
                    if handles[number].error:
                        return
            if running:
                await reader.woken.wait()
    finally:
        for handle in handles:
            with handle._changed:
                handle._readers = tuple(one for one in handle._readers if one is not reader)


@dataclass(frozen=True, kw_only=True)
class Stats:
    """Statistics of an engine.

    Args:
        rows: Number of batch slots.
        running: Number of running requests.
        waiting: Number of requests that wait for a batch slot.
        finished: Number of ended requests by finish reason, with failed ones as "error".
        prompt_tokens: Number of prompt tokens of ended requests.
        reused_tokens: Number of prompt tokens among them that the prefix cache had.
        generated_tokens: Number of generated tokens of ended requests.
        handed_over: Number of prompts that prefill servers computed.
        handoffs_failed: Number of prompts that prefill servers failed to compute, and that were computed here.
        drafted_tokens: Number of drafted and checked tokens of ended requests.
        accepted_tokens: Number of accepted tokens among them.
        drafts: Number of drafts of ended requests, by the number of their accepted tokens.
        evictions: Number of times that another client took the batch slot of an ended request.
        steps: Number of steps by the number of prompt and generated tokens that they ran.
        kept_bytes: Size of the prefix cache in bytes.
        images: Number of images in requests so far.
        encoded_images: Number of images that the vision program encoded, which are those that the feature cache
            lacked. An encoder of `image-to-text` has no cache, and encodes an image for each choice.
        audio: Number of audio inputs, see `images`.
        encoded_audio: Number of encoded audio inputs, see `encoded_images`.
        feature_bytes: Size of the feature cache in bytes.
        cache_usage: Share of the positions of all batch slots that running requests have filled.
        adapter_slots: Number of adapter slots; 0 for a package without.
        running_adapters: Names of the adapters of running requests.
        waiting_adapters: Names of the adapters of requests that wait for their first batch slot.
    """

    rows: int
    running: int
    waiting: int
    finished: dict[str, int]
    prompt_tokens: int
    reused_tokens: int
    generated_tokens: int
    handed_over: int = 0
    handoffs_failed: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    drafts: Mapping[int, int] = field(default_factory=dict)
    evictions: int = 0
    steps: Mapping[int, int] = field(default_factory=dict)
    kept_bytes: int = 0
    images: int = 0
    encoded_images: int = 0
    audio: int = 0
    encoded_audio: int = 0
    feature_bytes: int = 0
    cache_usage: float = 0.0
    adapter_slots: int = 0
    running_adapters: tuple[str, ...] = ()
    waiting_adapters: tuple[str, ...] = ()


class Engine:
    """Thread that serves requests with a session, which it holds until `close`.

    Args:
        session: Session of a text-generation package.
        max_waiting: Maximum number of requests that wait for a batch slot.
        prefills: Prefill servers that compute prompts, with computation here after a failure. The engine closes them.

    Raises:
        GenerationError: If the session is in use.

    Example:
        >>> with Engine(session) as engine:  # doctest: +SKIP
        ...     first, second = engine.submit("def main"), engine.submit("class Socket")
        ...     for delta in first:
        ...         print(delta.text, end="")
        ...     print(second.result().text)
    """

    def __init__(
        self,
        session: TextGenerationSession,
        *,
        max_waiting: int = 1024,
        prefills: Prefills | None = None,
    ) -> None:
        self.session, self._prefills = session, prefills
        # The pool runs as many prompts as servers compute at a time, and as many again in transfer.
        most = 2 * len(prefills.addresses) if prefills else 1
        self._pool = ThreadPoolExecutor(most, thread_name_prefix="qeff-zoo prompts")
        #: Maximum number of running and waiting requests.
        self.capacity = session.decoder.sizes.rows + max_waiting
        #: Maximum number of requests that one client should submit together: half of the queue is left to others.
        self.share = self.capacity - max_waiting // 2
        self._changed = threading.Condition()
        self._joining: list[list[Answer]] = []
        self._leaving: list[Answer] = []
        self._active: list[Answer] = []  # all that have not ended
        self._finished: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        self._drafts: Counter[int] = Counter()
        self._steps: Counter[int] = Counter()
        self._closing = False
        self._woken: set[_Reader] = set()  # readers of new deltas that have not been woken
        self._lease = session.exclusively()
        self._scheduler = self._lease.__enter__()
        self._thread = threading.Thread(target=self._run, name="qeff-zoo engine", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # Python must not end while the thread is in a call

    def submit(self, request: Prompt | Request) -> Handle:
        """Submit a request; it starts after earlier requests, once a batch slot is free.

        Args:
            request: Text, token ids, or a request of `session.request`.

        Raises:
            GenerationError: If the request is invalid, or the engine is closed.
            BusyError: If too many requests wait.
        """
        (handle,) = self.submit_together([request])
        return handle

    def submit_together(self, requests: Sequence[Prompt | Request]) -> list[Handle]:
        """Submit all of one client's requests, or none. Requests of other clients still get batch slots beside them.

        Args:
            requests: Requests, see `submit`.

        Raises:
            GenerationError: If a request is invalid, or the engine is closed.
            BusyError: If there is no room for all of them.
        """
        handles = [
            Handle(self, request if isinstance(request, Request) else self.session.request(request))
            for request in requests
        ]
        with self._changed:
            if self._closing:
                raise GenerationError(
                    "The engine is closed; expected an open one. Make another one of the session."
                )
            self._require_room([handle.request for handle in handles])
            answers = [handle._answer for handle in handles]
            self._active += answers
            if self._prefills is None:
                self._joining.append(answers)
            self._changed.notify()
        if self._prefills is not None:
            self._hand_over(answers)
        return handles

    def _require_room(self, requests: Sequence[Request]) -> None:
        """Refuse requests beyond the queue, or a client's that would leave less than a fourth of it to others."""
        free = self.capacity - len(self._active) - len(requests)
        if free < 0:
            raise BusyError(
                f"{len(self._active):,} requests run or wait; expected fewer than "
                f"{self.capacity + 1 - len(requests):,}. Try again later."
            )
        client = requests[0].client if requests else ""
        if not client:
            return
        own = sum(answer.request.client == client for answer in self._active) + len(requests)
        if own > max(_FEW + self.session.decoder.sizes.rows, 3 * free):
            raise BusyError(
                f"{own:,} requests of this client would run or wait, with room for {free:,} of others; expected at "
                f"most three times that room. Try again later."
            )

    def _hand_over(self, answers: list[Answer]) -> None:
        """Compute the prompts of one submission on prefill servers; then schedule the requests here."""
        # Prefill servers have no documents, no adapters of this session, and support only images that are grids.
        prompts = [
            answer
            for answer in answers
            if (answer.request.spans is None or answer.request.spans.by_grid)
            and not answer.adapter.digest
            and not answer.request.documents
        ]
        left = len(prompts)

        def fetch(answer: Answer) -> None:
            nonlocal left
            assert self._prefills is not None
            with suppress(HandoffError):  # it was logged, and the prompt is computed here
                request = answer.request
                run = None if answer.ended else self._prefills.run(request.prompt, request.spans)
                answer.handed = run
            came = "handed_over" if answer.handed else "handoffs_failed"
            with self._changed:
                self._tokens[came] += not answer.ended
                left -= 1
                if not left:
                    self._joining.append(answers)
                    self._changed.notify()

        for answer in prompts:
            self._pool.submit(fetch, answer)
        if not prompts:
            with self._changed:
                self._joining.append(answers)
                self._changed.notify()

    def stats(self) -> Stats:
        """Return statistics of ended, running and waiting requests."""
        with self._changed:
            running = self._scheduler.running
            return Stats(
                rows=self.session.decoder.sizes.rows,
                running=running,
                waiting=max(0, len(self._active) - running),
                finished=dict(self._finished),
                prompt_tokens=self._tokens["prompt"],
                reused_tokens=self._tokens["reused"],
                generated_tokens=self._tokens["generated"],
                handed_over=self._tokens["handed_over"],
                handoffs_failed=self._tokens["handoffs_failed"],
                drafted_tokens=self._tokens["drafted"],
                accepted_tokens=self._tokens["accepted"],
                drafts=dict(self._drafts),
                evictions=self._tokens["evictions"],
                steps=dict(self._steps),
                kept_bytes=self.session.kept_bytes,
                cache_usage=self._cache_usage(),
                adapter_slots=self.session.adapters.slots,
                running_adapters=self._adapters_of(is_running=True),
                waiting_adapters=self._adapters_of(is_running=False),
                **self.session.shown,
            )

    def _adapters_of(self, *, is_running: bool) -> tuple[str, ...]:
        """Return the names of the adapters of running requests, or of those that wait."""
        names = {
            one.request.adapter
            for one in self._active
            if not one.ended and (one.started is not None) == is_running
        }
        return tuple(sorted(filter(None, names)))

    def _cache_usage(self) -> float:
        sizes = self.session.decoder.sizes
        started = [one for one in self._active if one.started is not None and not one.ended]
        filled = sum(len(one.request.prompt) + len(one.token_ids) for one in started)
        return min(1.0, filled / (sizes.rows * sizes.ctx_len))

    def close(self, *, drain: bool = False) -> None:
        """Close the engine to new requests, and release the session.

        Args:
            drain: Whether submitted requests are served; else they are cancelled.
        """
        with self._changed:
            self._closing = True
            if not drain:
                self._leaving += self._active
            self._changed.notify()
        self._thread.join()
        if self._prefills:
            self._prefills.close()  # pending prompts are not needed anymore
        self._pool.shutdown(cancel_futures=True)
        atexit.unregister(self.close)

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _cancel(self, answer: Answer) -> None:
        with self._changed:
            self._leaving.append(answer)
            self._changed.notify()

    def _run(self) -> None:
        try:
            while self._take_in():
                self._step()
                self._count()
                self._pass_on()
        finally:
            self._pass_on()
            self._lease.__exit__(None, None, None)

    def _take_in(self) -> bool:
        """Wait for work; return whether the engine continues."""
        if self._scheduler.running and not (self._joining or self._leaving):
            return True
        with self._changed:
            self._changed.wait_for(self._has_work)
            joining, self._joining = self._joining, []
            leaving, self._leaving = self._leaving, []
        for answers in joining:
            self._scheduler.submit(*(answer for answer in answers if not answer.ended))
        for answer in leaving:
            self._scheduler.cancel(answer)
        return bool(self._active) or not self._closing

    def _has_work(self) -> bool:
        here = self._joining or self._scheduler.running or self._scheduler.waiting
        ended = self._closing and not self._active
        return bool(here or self._leaving or ended)

    def _step(self) -> None:
        before = self._scheduler.timings.tokens
        try:
            self._scheduler.step()
        except Exception as error:  # any error is passed to the waiting threads
            self._scheduler.fail(error)
        if count := self._scheduler.timings.tokens - before:
            self._steps[count] += 1

    def _wake(self, readers: Sequence[_Reader], *, now: bool) -> None:
        """Wake readers at the end of the step, or now: for a first token, after which the step may continue."""
        self._woken.update(readers)
        if now:
            self._pass_on()

    def _pass_on(self) -> None:
        """Wake readers, once for each event loop: whenever one runs, this thread waits to continue."""
        woken, self._woken = self._woken, set()
        for loop in {reader.loop for reader in woken}:
            events = [reader.woken for reader in woken if reader.loop is loop]
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_set, events)

    def _count(self) -> None:
        """Add ended requests to the statistics."""
        ended = [answer for answer in self._active if answer.ended]
        if not ended:
            return
        with self._changed:
            self._active = [answer for answer in self._active if not answer.ended]
            for answer in ended:
                self._finished[answer.finish_reason or "error"] += 1
                self._tokens["prompt"] += answer.request.prompt_tokens
                self._tokens["reused"] += answer.reused_tokens
                self._tokens["generated"] += len(answer.generated)
                self._tokens["drafted"] += answer.drafted_tokens
                self._tokens["accepted"] += answer.accepted_tokens
                self._tokens["evictions"] += answer.evictions
                self._drafts.update(answer.drafts)


def _set(events: Sequence[asyncio.Event]) -> None:
    for event in events:
        event.set()
