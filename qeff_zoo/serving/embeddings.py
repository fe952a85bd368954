# SPDX-License-Identifier: Apache-2.0
"""Embeddings: one thread that owns the session, and OpenAI's object of what it returns."""

import asyncio
import base64
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from qeff_zoo.errors import BusyError
from qeff_zoo.runtime import EmbeddingSession, Stats
from qeff_zoo.runtime.program import Array
from qeff_zoo.serving.errors import shutting_down
from qeff_zoo.serving.schemas import EmbeddingRequest


class EmbeddingQueue:
    """Requests for embeddings, one after the other: a request's texts share calls, those of two do not.

    Args:
        session: Its own from now on.
        max_waiting: Requests that may wait.
    """

    def __init__(self, session: EmbeddingSession, *, max_waiting: int) -> None:
        self.session, self._max_waiting = session, max_waiting
        self._worker = ThreadPoolExecutor(1, "qeff-zoo embeddings")
        self._closing = False
        self._active = self._running = self._ended = self._tokens = 0

    async def embed(self, texts: Sequence[str | Sequence[int]]) -> tuple[Array, int]:
        """Return an embedding for each text, and how many tokens they have together.

        Raises:
            BusyError: Too many wait already.
            GenerationError: A text cannot be embedded.
            ApiError: The server ends.
        """
        if self._active > self._max_waiting:
            raise BusyError(
                f"{self._active:,} requests run or wait; expected at most {self._max_waiting:,}. Try again later."
            )
        self._active += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._worker, self._run, texts)
        except (asyncio.CancelledError, RuntimeError) as error:
            if self._closing:
                raise shutting_down() from error
            raise
        finally:
            self._active -= 1
            self._ended += 1

    def stats(self) -> Stats:
        """Return what has been done, and what is to do."""
        return Stats(
            rows=1,
            running=self._running,
            waiting=max(0, self._active - self._running),
            finished={"done": self._ended},
            prompt_tokens=self._tokens,
            reused_tokens=0,
            generated_tokens=0,
        )

    def close(self) -> None:
        """Finish what runs, and begin no more."""
        self._closing = True
        self._worker.shutdown(cancel_futures=True)

    def _run(self, texts: Sequence[str | Sequence[int]]) -> tuple[Array, int]:
        self._running = 1
        try:
            rows = self.session.encode(texts)
            tokens = sum(map(len, rows))
            self._tokens += tokens
            return self.session.embed(rows), tokens
        finally:
            self._running = 0


def embedding_list(body: EmbeddingRequest, vectors: Array, tokens: int) -> dict[str, Any]:
    """Return OpenAI's object of embeddings.

    Args:
        body: What was asked.
        vectors: (texts, hidden), float32.
        tokens: Of all texts.
    """
    data = [
        {"object": "embedding", "index": number, "embedding": _written(row, body.encoding_format)}
        for number, row in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": body.model, "usage": usage}


def _written(vector: Array, encoding: str) -> str | list[float]:
    if encoding == "float":
        numbers: list[float] = vector.tolist()
        return numbers
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
