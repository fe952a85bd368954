# SPDX-License-Identifier: Apache-2.0
"""Metrics by the names and with the buckets that vLLM gives them, for dashboards that were made for it."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from qeff_zoo.runtime import Delta, Handle, Stats
from qeff_zoo.serving.histogram import Histogram

#: vLLM's buckets of seconds: until the first token, between tokens, and for parts of a request.
_FIRST = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_NEXT = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
_PART = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0),
    *(240.0, 480.0, 960.0, 1920.0, 7680.0),
)
#: Those of tokens, which end at the length of the context.
_TOKENS = tuple(digit * 10**zeros for zeros in range(8) for digit in (1, 2, 5))
#: Length of a context that is unknown.
_ANY_LENGTH = 500_000
#: vLLM's names of the ends of requests, and ours.
_ENDS = {
    "stop": ("eos", "stop"),
    "length": ("length",),
    "abort": ("cancelled",),
    "error": ("error",),
}
_HISTOGRAMS = {
    "time_to_first_token_seconds": (_FIRST, "Seconds from the acceptance of a request to its first token."),
    "inter_token_latency_seconds": (_NEXT, "Seconds from one token of an answer to the next."),
    "request_time_per_output_token_seconds": (_NEXT, "Mean seconds between the tokens of a request."),
    "e2e_request_latency_seconds": (_PART, "Seconds from the acceptance of a request to its end."),
    "request_queue_time_seconds": (_PART, "Seconds that a request waited for a batch slot."),
    "request_prefill_time_seconds": (_PART, "Seconds from the batch slot of a request to its first token."),
    "request_decode_time_seconds": (_PART, "Seconds from the first token of a request to its last one."),
    "request_inference_time_seconds": (_PART, "Seconds from the batch slot of a request to its last token."),
    "request_prompt_tokens": (_TOKENS, "Prompt tokens of a request."),
    "request_generation_tokens": (_TOKENS, "Generated tokens of a request."),
    "request_params_max_tokens": (_TOKENS, "Maximum number of generated tokens of a request."),
}  # fmt: skip


class VllmMetrics:
    """Metrics of the requests of a server under vLLM's names.

    Args:
        stats: Function that returns the current statistics of the backend.
        ctx_len: Length of the context, the largest bucket of tokens; None for an unknown one.
    """

    def __init__(self, stats: Callable[[], Stats], ctx_len: int | None = None) -> None:
        self._stats = stats
        most = _ANY_LENGTH if ctx_len is None else ctx_len
        tokens = tuple(one for one in _TOKENS if one <= most)
        self._histograms = {
            name: Histogram(f"vllm:{name}", text, tokens if buckets is _TOKENS else buckets)
            for name, (buckets, text) in _HISTOGRAMS.items()
        }

    def stopwatch(self, handle: Handle) -> "Stopwatch":
        """Start to time a request."""
        return Stopwatch(self._histograms, handle)

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        yield from _of_stats(self._stats())
        for histogram in self._histograms.values():
            yield from histogram.collect()


@dataclass
class Stopwatch:
    """Times of one request.

    Args:
        histograms: Histograms by name.
        handle: Handle of the request.
    """

    histograms: dict[str, Histogram]
    handle: Handle
    begun: float = field(default_factory=time.perf_counter)
    first: float = 0.0
    newest: float = 0.0
    count: int = 0

    def observe(self, delta: Delta) -> None:
        """Observe a delta on its arrival."""
        now = time.perf_counter()
        if delta.token_ids:
            if self.count:
                self._put("inter_token_latency_seconds", now - self.newest)
            else:
                self.first = now
                self._put("time_to_first_token_seconds", now - self.begun)
            self.newest = now
            self.count += 1
        if delta.finish_reason not in (None, "cancelled"):
            self._end(now)

    def _end(self, now: float) -> None:
        request = self.handle.request
        self._put("e2e_request_latency_seconds", now - self.begun)
        self._put("request_prompt_tokens", request.prompt_tokens)
        self._put("request_generation_tokens", self.count)
        self._put("request_params_max_tokens", request.limit)
        started = self.handle.started
        if started is None:
            return
        self._put("request_queue_time_seconds", max(0.0, started - self.begun))
        self._put("request_inference_time_seconds", now - started)
        if self.count:
            self._put("request_prefill_time_seconds", self.first - started)
            self._put("request_decode_time_seconds", now - self.first)
        if self.count > 1:
            mean = (self.newest - self.first) / (self.count - 1)
            self._put("request_time_per_output_token_seconds", mean)

    def _put(self, name: str, value: float) -> None:
        self.histograms[name].observe(value)


def _of_stats(stats: Stats) -> Iterator[Metric]:
    media, encoded = stats.images + stats.audio, stats.encoded_images + stats.encoded_audio
    gauges: Sequence[tuple[str, str, float]] = (
        ("num_requests_running", "Requests that run.", stats.running),
        ("num_requests_waiting", "Requests that wait for a batch slot.", stats.waiting),
        ("kv_cache_usage_perc", "Share of the KV cache in use; 1 is all of it.", stats.cache_usage),
    )
    for name, text, value in gauges:
        yield GaugeMetricFamily(f"vllm:{name}", text, value)
    for name, text, count in (
        ("prompt_tokens", "Prompt tokens of requests that have ended.", stats.prompt_tokens),
        ("generation_tokens", "Generated tokens of requests that have ended.", stats.generated_tokens),
        ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", stats.prompt_tokens),
        ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", stats.reused_tokens),
        ("mm_cache_queries", "Images and recordings looked up in the feature cache.", media),
        ("mm_cache_hits", "Images and recordings found in the feature cache.", max(0, media - encoded)),
        ("spec_decode_num_draft_tokens", "Drafted tokens.", stats.drafted_tokens),
        ("spec_decode_num_accepted_tokens", "Drafted tokens that the model accepted.", stats.accepted_tokens),
    ):  # fmt: skip
        yield CounterMetricFamily(f"vllm:{name}", text, count)
    text = "Requests that have ended, by reason."
    success = CounterMetricFamily("vllm:request_success", text, labels=["finished_reason"])
    for reason, ours in _ENDS.items():
        success.add_metric([reason], sum(stats.finished.get(one, 0) for one in ours))
    yield success
