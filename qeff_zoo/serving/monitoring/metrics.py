# SPDX-License-Identifier: Apache-2.0
"""Counters and timings of a server in Prometheus' format."""

import time
from collections import Counter as Counts
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from qeff_zoo.runtime import Delta, Handle, Stats
from qeff_zoo.serving.monitoring.histogram import Histogram
from qeff_zoo.serving.monitoring.vllm_metrics import VllmMetrics, adapters_of

if TYPE_CHECKING:
    from qeff_zoo.serving.monitoring.traces import Traces

CONTENT_TYPE = CONTENT_TYPE_LATEST
_FIRST_TOKEN = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)  # seconds
_NEXT_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics(Collector):
    """Metrics of one server.

    Args:
        stats: Function that returns the current statistics of the backend.
        name: Name of the model, a label of the metrics that vLLM has too.
        ctx_len: Length of the model's context; None for an unknown one.
        traces: Traces of the requests; None for none.
    """

    def __init__(
        self,
        stats: Callable[[], Stats],
        name: str = "",
        ctx_len: int | None = None,
        traces: "Traces | None" = None,
    ) -> None:
        self._name, self._traces, self._stats = name, traces, stats
        self._registry = CollectorRegistry()
        self._registry.register(_Live(stats))
        # Memory, CPU time, files and start of the process; none on other systems than Linux.
        self._process = ProcessCollector(registry=None)
        self._labels = {"model_name": name, "engine": "0"} if name else {}
        self._vllm = VllmMetrics(stats, ctx_len)
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
        self._first = Histogram("qeff_zoo_time_to_first_token_seconds", text, _FIRST_TOKEN)
        text = "Seconds from one token of an answer to the next."
        self._next = Histogram("qeff_zoo_inter_token_seconds", text, _NEXT_TOKEN)

    def count(self, path: str, status: int) -> None:
        """Count a response."""
        self._responses.labels(path, str(status)).inc()

    def count_ignored(self, name: str) -> None:
        """Count a parameter or a tool that was ignored."""
        self._ignored.labels(name).inc()

    def count_choices(self, handles: Sequence[Handle]) -> None:
        """Count the choices of each prompt of a request."""
        self._vllm.count_choices(handles)

    def stopwatch(self, handle: Handle) -> Callable[[Delta], None]:
        """Start to time a generation; call the result with each delta on arrival."""
        newest, histogram = time.perf_counter(), self._first
        report = self._traces.span(self._name, handle.request) if self._traces else None
        watch = self._vllm.stopwatch(handle, report)

        def observe(delta: Delta) -> None:
            nonlocal newest, histogram
            watch.observe(delta)
            if delta.token_ids:
                now = time.perf_counter()
                histogram.observe(now - newest)
                newest, histogram = now, self._next

        return observe

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        yield from self._registry.collect()
        yield from self._first.collect()
        yield from self._next.collect()
        yield self._http()
        yield from self._process.collect()
        for one in self._vllm.collect():
            one.samples = [
                sample._replace(labels={**sample.labels, **self._labels}) for sample in one.samples
            ]
            yield one
        yield from adapters_of(self._stats())

    def _http(self) -> Metric:
        """Return the responses by classes of their status, as dashboards of vLLM draw them."""
        text = "Responses, by path and class of status."
        found = CounterMetricFamily("http_requests", text, labels=["handler", "status"])
        counts: Counts[tuple[str, str]] = Counts()
        for metric in self._responses.collect():
            for sample in metric.samples:
                if sample.name.endswith("_total"):
                    status = f"{sample.labels['status'][0]}xx"
                    counts[sample.labels["path"], status] += int(sample.value)
        for labels, count in counts.items():
            found.add_metric(labels, count)
        return found

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self)


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
            ("feature_cache_bytes", "Size of the feature cache in bytes.", stats.feature_bytes),
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
        for reason, count in stats.finished.items():
            ended.add_metric([reason], count)
        yield ended
