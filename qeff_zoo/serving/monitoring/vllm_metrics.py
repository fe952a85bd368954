# SPDX-License-Identifier: Apache-2.0
"""Metrics by the names and with the buckets that vLLM gives them, for dashboards that were made for it."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from qeff_zoo.runtime import Delta, Handle, Stats
from qeff_zoo.serving.monitoring.histogram import Histogram

#: Callback with the figures of a request that has ended, by the names of their histograms.
Report: TypeAlias = Callable[[Mapping[str, float]], None]

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
#: Those of choices and preemptions of a request, and of tokens of a step.
_CHOICES = (1, 2, 5, 10, 20)
_PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
_STEP = (1, *(2**power for power in range(3, 15)))
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
#: States of vLLM's sleep mode, by which its dashboards tell a server that is online from one that is down.
_SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")
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
    "request_prefill_kv_computed_tokens": (_TOKENS, "Prompt tokens of a request that the prefix cache lacked."),
    "request_max_num_generation_tokens": (_TOKENS, "Generated tokens of a request, whose choices count alone."),
    "request_params_max_tokens": (_TOKENS, "Maximum number of generated tokens of a request."),
    "request_params_n": (_CHOICES, "Choices of a request."),
    "request_num_preemptions": (_PREEMPTIONS, "Times that a request lost its batch slot to another client."),
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

    def count_choices(self, handles: Sequence[Handle]) -> None:
        """Count the choices of each prompt of a request."""
        for count in Counter(id(one.request.prompt) for one in handles).values():
            self._histograms["request_params_n"].observe(count)

    def stopwatch(self, handle: Handle, report: Report | None = None) -> "Stopwatch":
        """Start to time a request."""
        return Stopwatch(self._histograms, handle, report)

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        stats = self._stats()
        yield from _of_stats(stats)
        steps = Histogram(
            "vllm:iteration_tokens_total", "Prompt and generated tokens of a step.", _STEP
        )
        for tokens, times in stats.steps.items():
            steps.observe(tokens, times)
        yield from steps.collect()
        for histogram in self._histograms.values():
            yield from histogram.collect()


@dataclass
class Stopwatch:
    """Times of one request.

    Args:
        histograms: Histograms by name.
        handle: Handle of the request.
        report: Callback with the figures at the end of the request.
    """

    histograms: dict[str, Histogram]
    handle: Handle
    report: Report | None = None
    begun: float = field(default_factory=time.perf_counter)
    first: float = 0.0
    newest: float = 0.0
    count: int = 0
    figures: dict[str, float] = field(default_factory=dict)

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
            if self.report:
                self.report(self.figures)

    def _end(self, now: float) -> None:
        request = self.handle.request
        self._put("e2e_request_latency_seconds", now - self.begun)
        self._put("request_prompt_tokens", request.prompt_tokens)
        self._put("request_generation_tokens", self.count)
        self._put("request_max_num_generation_tokens", self.count)
        self._put("request_params_max_tokens", request.limit)
        self._put("request_num_preemptions", self.handle.evictions)
        computed = max(0, request.prompt_tokens - self.handle.reused_tokens)
        self._put("request_prefill_kv_computed_tokens", computed)
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
        self.figures[name] = value


def adapters_of(stats: Stats) -> Iterator[Metric]:
    """Yield the gauge of the adapters in use, whose value is the time in seconds since 1970.

    Gateways send a request to a server that runs its adapter. As in vLLM, it has no other labels than these.
    """
    if not stats.adapter_slots:
        return
    found = GaugeMetricFamily(
        "vllm:lora_requests_info",
        "Time of this list of adapters of running and of waiting requests, beside the number of adapter slots.",
        labels=["max_lora", "waiting_lora_adapters", "running_lora_adapters"],
    )
    names = (",".join(one) for one in (stats.waiting_adapters, stats.running_adapters))
    found.add_metric([str(stats.adapter_slots), *names], time.time())
    yield found


def _of_stats(stats: Stats) -> Iterator[Metric]:
    media, encoded = stats.images + stats.audio, stats.encoded_images + stats.encoded_audio
    gauges: Sequence[tuple[str, str, float]] = (
        ("num_requests_running", "Requests that run.", stats.running),
        ("num_requests_waiting", "Requests that wait for a batch slot.", stats.waiting),
        ("kv_cache_usage_perc", "Share of the KV cache in use; 1 is all of it.", stats.cache_usage),
    )
    for name, text, value in gauges:
        yield GaugeMetricFamily(f"vllm:{name}", text, value)
    text = "Requests that wait for a batch slot, by reason."
    waiting = GaugeMetricFamily("vllm:num_requests_waiting_by_reason", text, labels=["reason"])
    waiting.add_metric(["capacity"], stats.waiting)
    waiting.add_metric(["deferred"], 0)
    yield waiting
    text = "Whether the engine is in a state of vLLM's sleep mode; it is always awake."
    sleep = GaugeMetricFamily("vllm:engine_sleep_state", text, labels=["sleep_state"])
    for state in _SLEEP_STATES:
        sleep.add_metric([state], state == "awake")
    yield sleep
    for name, text, count in (
        ("prompt_tokens", "Prompt tokens of requests that have ended.", stats.prompt_tokens),
        ("generation_tokens", "Generated tokens of requests that have ended.", stats.generated_tokens),
        ("prompt_tokens_cached", "Prompt tokens among them from the prefix cache.", stats.reused_tokens),
        ("num_preemptions", "Requests that lost their batch slot to another client.", stats.evictions),
        ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", stats.prompt_tokens),
        ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", stats.reused_tokens),
        ("mm_cache_queries", "Images and recordings looked up in the feature cache.", media),
        ("mm_cache_hits", "Images and recordings found in the feature cache.", max(0, media - encoded)),
        ("spec_decode_num_drafts", "Drafts.", sum(stats.drafts.values())),
        ("spec_decode_num_draft_tokens", "Drafted tokens.", stats.drafted_tokens),
        ("spec_decode_num_accepted_tokens", "Drafted tokens that the model accepted.", stats.accepted_tokens),
    ):  # fmt: skip
        yield CounterMetricFamily(f"vllm:{name}", text, count)
    text = "Drafts whose token at a position the model accepted."
    accepted = CounterMetricFamily(
        "vllm:spec_decode_num_accepted_tokens_per_pos", text, labels=["position"]
    )
    for position in range(max(stats.drafts, default=0)):
        count = sum(number for length, number in stats.drafts.items() if length > position)
        accepted.add_metric([str(position)], count)
    yield accepted
    text = "Requests that have ended, by reason."
    success = CounterMetricFamily("vllm:request_success", text, labels=["finished_reason"])
    for reason, ours in _ENDS.items():
        success.add_metric([reason], sum(stats.finished.get(one, 0) for one in ours))
    yield success
