# SPDX-License-Identifier: Apache-2.0
"""Traces of requests by OpenTelemetry (extra `otel`): a span for each generation, with vLLM's names."""

import logging
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from urllib.parse import urlsplit

from opentelemetry import context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from qeff_zoo.errors import ServingError
from qeff_zoo.runtime import Request
from qeff_zoo.serving.monitoring import request_usage
from qeff_zoo.serving.monitoring.vllm_metrics import Report
from qeff_zoo.versions import installed

_log = logging.getLogger(__name__)
_NAME = "llm_request"
_LAST = 2.0  # seconds until a collector has the last spans
_LIMITS = ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")
#: Attributes, and the metrics that have their values.
_ATTRIBUTES = MappingProxyType(
    {
        "gen_ai.usage.prompt_tokens": "request_prompt_tokens",
        "gen_ai.usage.completion_tokens": "request_generation_tokens",
        "gen_ai.request.max_tokens": "request_params_max_tokens",
        "gen_ai.latency.time_to_first_token": "time_to_first_token_seconds",
        "gen_ai.latency.e2e": "e2e_request_latency_seconds",
        "gen_ai.latency.time_in_queue": "request_queue_time_seconds",
        "gen_ai.latency.time_in_model_prefill": "request_prefill_time_seconds",
        "gen_ai.latency.time_in_model_decode": "request_decode_time_seconds",
        "gen_ai.latency.time_in_model_inference": "request_inference_time_seconds",
    }
)
_PROPAGATOR = TraceContextTextMapPropagator()


def check_endpoint(endpoint: str) -> None:
    """Check the URL of a collector.

    Raises:
        ServingError: It is not an http or https URL.
    """
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ServingError(
            f"--otlp-traces-endpoint is {endpoint!r}; expected the URL of a collector with OTLP over HTTP, such as "
            "http://localhost:4318/v1/traces. Correct it."
        )


class Traces:
    """Spans of requests, which a thread sends to a collector.

    A collector that does not respond delays no request: its spans are dropped, with a warning. The SDK has variables:
    OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER, OTEL_EXPORTER_OTLP_HEADERS and others.

    Args:
        endpoint: URL to which the spans are posted as OTLP over HTTP.
    """

    def __init__(self, endpoint: str) -> None:
        named = Resource({SERVICE_NAME: "qeff-zoo"}).merge(OTELResourceDetector().detect())
        resource = Resource.create().merge(named)
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
        self._tracer = self._provider.get_tracer("qeff-zoo", installed("qeff-zoo"))

    def continued(self, app: ASGIApp) -> ASGIApp:
        """Return an app whose requests continue the traces of their clients."""
        return _Continued(app)

    def span(self, model: str, request: Request) -> Report:
        """Begin the span of a request, in the trace of its client; the result ends it.

        Args:
            model: Name of the model.
            request: The request.
        """
        begun, parent = time.time_ns(), context.get_current()
        attributes: dict[str, str | float] = {
            "gen_ai.response.model": model,
            "gen_ai.request.id": request_usage.current_id(),
            "gen_ai.request.temperature": request.sampling.temperature,
            "gen_ai.request.top_p": request.sampling.top_p,
        }

        def end(figures: Mapping[str, float]) -> None:
            known = {name: figures[one] for name, one in _ATTRIBUTES.items() if one in figures}
            span = self._tracer.start_span(
                _NAME, parent, SpanKind.SERVER, {**attributes, **known}, start_time=begun
            )
            span.end()

        return end

    def close(self) -> None:
        """Send the last spans, for two seconds or the operator's time limit (OTEL_EXPORTER_OTLP_TIMEOUT).

        The SDK waits half a minute for a collector that does not respond.
        """
        seconds, name = _seconds_of_last(), "qeff-zoo spans"
        sending = threading.Thread(target=self._provider.shutdown, name=name, daemon=True)
        sending.start()
        sending.join(seconds)
        if sending.is_alive():
            _log.warning(
                "The collector of traces did not respond in %g s; last spans are lost.", seconds
            )


def _seconds_of_last() -> float:
    for name in _LIMITS:
        with suppress(KeyError, ValueError):  # the SDK reports a value that is no number
            return float(os.environ[name])
    return _LAST


class _Continued:
    """Middleware that reads the headers `traceparent` and `tracestate`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        token = context.attach(_PROPAGATOR.extract(dict(Headers(scope=scope))))
        try:
            await self._app(scope, receive, send)
        finally:
            context.detach(token)
