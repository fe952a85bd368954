# SPDX-License-Identifier: Apache-2.0
"""Counters and timings of a server in Prometheus' format."""

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from qeff_zoo.runtime import Delta, Stats

CONTENT_TYPE = CONTENT_TYPE_LATEST
_FIRST_TOKEN = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)  # seconds
#: vLLM's names of reasons for an end without an error, and ours.
_SUCCESS = {"stop": ("eos", "stop"), "length": ("length",)}
_NEXT_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """Metrics of one server.

    Args:
        stats: Function that returns the current statistics of the backend.
    """

    def __init__(self, stats: Callable[[], Stats]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Live(stats))
        self._responses = Counter(
            "qeff_zoo_http_responses",
            "Responses, by path and status; 499 is for clients that disconnected first.",
            ["path", "status"],
            registry=self._registry,
        )
        self._ignored = Counter(
            "qeff_zoo_ignored_parameters",
            "Parameters and tools of requests that this server does not use, by name.",
            ["parameter"],
            registry=self._registry,
        )
        text = "Seconds from the acceptance of a request to its first token."
        names = ("qeff_zoo_time_to_first_token_seconds", "vllm:time_to_first_token_seconds")
        self._first = self._histogram(names, text, _FIRST_TOKEN)
        text = "Seconds from one token of an answer to the next."
        names = ("qeff_zoo_inter_token_seconds", "vllm:inter_token_latency_seconds")
        self._next = self._histogram(names, text, _NEXT_TOKEN)

    def count(self, path: str, status: int) -> None:
        """Count a response."""
        self._responses.labels(path, str(status)).inc()

    def count_ignored(self, name: str) -> None:
        """Count a parameter or a tool that was ignored."""
        self._ignored.labels(name).inc()

    def stopwatch(self) -> Callable[[Delta], None]:
        """Start to time a generation; call the result with each delta on arrival."""
        newest, histogram = time.perf_counter(), self._first

        def observe(delta: Delta) -> None:
            nonlocal newest, histogram
            if delta.token_ids:
                now = time.perf_counter()
                histogram.observe(now - newest)
                newest, histogram = now, self._next

        return observe

    def _histogram(self, names: Sequence[str], text: str, buckets: Sequence[float]) -> "_Histogram":
        histogram = _Histogram(names, text, buckets)
        self._registry.register(histogram)
        return histogram

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        return iter(self._registry.collect())

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self._registry)


class _Histogram(Collector):
    """Histogram with several names; prometheus_client's own costs ten times as much for each token.

    Args:
        names: Its names.
        text: Its description.
        buckets: Upper bounds, ascending.
    """

    def __init__(self, names: Sequence[str], text: str, buckets: Sequence[float]) -> None:
        self._names, self._text, self._bounds = names, text, [*buckets, math.inf]
        self._counts, self._sum = [0] * len(self._bounds), 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterator[Metric]:
        """Yield the histogram under each of its names."""
        bounds = map(floatToGoString, self._bounds)
        buckets = [*zip(bounds, accumulate(self._counts), strict=True)]
        for name in self._names:
            yield HistogramMetricFamily(name, self._text, buckets=buckets, sum_value=self._sum)


class _Live(Collector):
    """Statistics of the engine, collected at each scrape."""

    def __init__(self, stats: Callable[[], Stats]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        stats = self._stats()
        for name, text, value in (
            ("rows", "Batch slots.", stats.rows),
            ("requests_running", "Requests that run.", stats.running),
            ("requests_waiting", "Requests that wait for a batch slot.", stats.waiting),
            ("prefix_cache_bytes", "Size of the prefix cache in bytes.", stats.kept_bytes),
        ):
            yield GaugeMetricFamily(f"qeff_zoo_{name}", text, value)
        for name, text, value in (
            ("prompt_tokens", "Prompt tokens of requests that have ended.", stats.prompt_tokens),
            (
                "reused_tokens",
                "Prompt tokens among them from the prefix cache.",
                stats.reused_tokens,
            ),
            (
                "generated_tokens",
                "Generated tokens of requests that have ended.",
                stats.generated_tokens,
            ),
            ("prompts_handed_over", "Prompts that prefill servers computed.", stats.handed_over),
            (
                "handoffs_failed",
                "Prompts that prefill servers failed to compute, and that were computed here.",
                stats.handoffs_failed,
            ),
            (
                "drafted_tokens",
                "Drafted and checked tokens of speculative decoding.",
                stats.drafted_tokens,
            ),
            ("accepted_tokens", "Drafted tokens that the model accepted.", stats.accepted_tokens),
            ("images", "Images in requests.", stats.images),
            ("encoded_images", "Images that were encoded.", stats.encoded_images),
            ("audio", "Recordings in requests.", stats.audio),
            ("encoded_audio", "Recordings that were encoded.", stats.encoded_audio),
        ):
            yield CounterMetricFamily(f"qeff_zoo_{name}", text, value)
        text = "Requests that have ended, by reason."
        ended = CounterMetricFamily("qeff_zoo_requests_finished", text, labels=["reason"])
        success = CounterMetricFamily("vllm:request_success", text, labels=["finished_reason"])
        for reason, count in stats.finished.items():
            ended.add_metric([reason], count)
        for reason, ours in _SUCCESS.items():
            success.add_metric([reason], sum(stats.finished.get(one, 0) for one in ours))
        yield ended
        yield success
        yield from _of_vllm(stats)


def _of_vllm(stats: Stats) -> Iterator[Metric]:
    """Yield metrics by the names that vLLM gives them, for dashboards that were made for it."""
    for name, text, value in (
        ("num_requests_running", "Requests that run.", stats.running),
        ("num_requests_waiting", "Requests that wait for a batch slot.", stats.waiting),
    ):
        yield GaugeMetricFamily(f"vllm:{name}", text, value)
    for name, text, value in (
        ("prompt_tokens", "Prompt tokens of requests that have ended.", stats.prompt_tokens),
        (
            "generation_tokens",
            "Generated tokens of requests that have ended.",
            stats.generated_tokens,
        ),
        (
            "prefix_cache_queries",
            "Prompt tokens looked up in the prefix cache.",
            stats.prompt_tokens,
        ),
        ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", stats.reused_tokens),
    ):
        yield CounterMetricFamily(f"vllm:{name}", text, value)
