# SPDX-License-Identifier: Apache-2.0
"""Traces of a server, sent to a collector that reads OTLP by the types of opentelemetry-proto."""

import json
import logging
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from fixtures_serving import MODEL, PROMPT, TIMEOUT, post, running

from qeff_zoo import cli, serving
from qeff_zoo.errors import ServingError
from qeff_zoo.package import Package
from qeff_zoo.runtime import Engine

pytest.importorskip("opentelemetry.sdk")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture(autouse=True)
def _no_sender_left() -> Iterator[None]:
    """Wait for threads that send spans: they draw random waits, which later tests of drawn inputs would notice."""
    before = {*threading.enumerate()}
    yield
    for thread in {*threading.enumerate()} - before:
        if "span" in thread.name.lower():
            thread.join(30)


class Collector(ThreadingHTTPServer):
    """Collector of traces, at any free port of this machine."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receiver)
        self.bodies: list[bytes] = []
        self.paths: list[str] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/traces"

    def resources(self) -> list[Any]:
        """Return the received spans, by resource."""
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )

        requests = map(ExportTraceServiceRequest.FromString, self.bodies)
        return [span for request in requests for span in request.resource_spans]

    def spans(self) -> list[Any]:
        """Return all received spans."""
        scopes = [scope for resource in self.resources() for scope in resource.scope_spans]
        return [span for scope in scopes for span in scope.spans]


class _Receiver(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.headers["Content-Type"] == "application/x-protobuf"
        self.server.paths.append(self.path)
        self.server.bodies.append(body)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Write nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join(TIMEOUT)


def values(attributes: Any) -> dict[str, Any]:
    """Return attributes by name, in the types of OTLP."""
    return {
        attribute.key: getattr(attribute.value, attribute.value.WhichOneof("value"))
        for attribute in attributes
    }


def body(**choices: Any) -> bytes:
    return json.dumps({"model": MODEL, "prompt": PROMPT, "max_tokens": 3, **choices}).encode()


def test_a_generation_has_a_span_in_its_clients_trace(
    engine: Engine, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    options = serving.ServerOptions(otlp_traces_endpoint=collector.endpoint)
    before = time.time_ns()
    with options.traces() as traces, running(engine, traces=traces) as url:
        sent = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "mine"}
        choices = {"temperature": 0.5, "top_p": 0.75, "seed": 1}
        status, answer = post(url, "completions", body(**choices), **sent)
        assert status == 200
        assert post(url, "completions", b"{}", **sent)[0] == 400  # generates nothing
        unsampled = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
        assert post(url, "completions", body(), **unsampled)[0] == 200
    (span,) = collector.spans()
    assert collector.paths == ["/v1/traces"]
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert (span.name, span.kind) == ("llm_request", 2)  # of a server
    assert before < span.start_time_unix_nano < span.end_time_unix_nano < time.time_ns()
    found = values(span.attributes)
    times = {name: found.pop(name) for name in [*found] if name.startswith("gen_ai.latency.")}
    assert found == {
        "gen_ai.response.model": MODEL,
        "gen_ai.request.id": "mine",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.75,
        "gen_ai.request.max_tokens": 3,
        "gen_ai.usage.prompt_tokens": answer["usage"]["prompt_tokens"],
        "gen_ai.usage.completion_tokens": 3,
    }
    seconds = {name.removeprefix("gen_ai.latency."): value for name, value in times.items()}
    queue, inference = seconds.pop("time_in_queue"), seconds.pop("time_in_model_inference")
    prefill, decode = seconds.pop("time_in_model_prefill"), seconds.pop("time_in_model_decode")
    assert inference == pytest.approx(prefill + decode)
    whole = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
    assert 0 < queue + inference == pytest.approx(seconds.pop("e2e"), abs=0.02)
    assert 0 < seconds.pop("time_to_first_token") <= whole
    assert not seconds
    (resource,) = collector.resources()
    named = values(resource.resource.attributes)
    assert (named["service.name"], named["deployment.environment"]) == ("qeff-zoo", "test")


def test_choices_and_streams_have_spans_of_their_own(engine: Engine, collector: Collector) -> None:
    options = serving.ServerOptions(otlp_traces_endpoint=collector.endpoint)
    with options.traces() as traces, running(engine, traces=traces) as url:
        headers = {"Content-Type": "application/json", "traceparent": "no-such-trace"}
        streamed = urllib.request.Request(f"{url}/completions", body(stream=True, n=2), headers)
        with urllib.request.urlopen(streamed, timeout=TIMEOUT) as answer:
            assert answer.read().endswith(b"data: [DONE]\n\n")
        assert post(url, "completions", body())[0] == 200
    spans = collector.spans()
    assert len({span.trace_id for span in spans}) == len(spans) == 3
    assert not any(span.parent_span_id for span in spans)


def test_a_collector_that_is_absent_delays_no_request(
    engine: Engine,
    collector: Collector,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    endpoint = collector.endpoint.replace("127.0.0.1", "127.0.0.2")  # where nothing listens
    options = serving.ServerOptions(otlp_traces_endpoint=endpoint)
    with (
        caplog.at_level(logging.WARNING),
        options.traces() as traces,
        running(engine, traces=traces) as url,
    ):
        assert post(url, "completions", body())[0] == 200
    assert "span" in caplog.text
    assert collector.bodies == []


@pytest.mark.parametrize("limit", [None, "0.3", "none"])
def test_a_silent_collector_does_not_delay_the_end(
    engine: Engine,
    limit: str | None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from qeff_zoo.serving.monitoring import traces as module

    monkeypatch.setattr(module, "_LAST", 30.0 if limit == "0.3" else 0.3)
    if limit:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", limit)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces"
        traces = module.Traces(endpoint)
        with running(engine, traces=traces) as url:
            assert post(url, "completions", body())[0] == 200
        begun = time.monotonic()
        traces.close()
        assert time.monotonic() - begun < 5  # the SDK waits for 10 seconds and more
    assert "did not respond in 0.3 s" in caplog.text or limit == "0.3"


@pytest.mark.parametrize("endpoint", ["localhost:4317", "grpc://localhost:4317", "http://", ""])
def test_an_endpoint_is_a_url(endpoint: str) -> None:
    with pytest.raises(ServingError, match=r"--otlp-traces-endpoint is .*; expected the URL"):
        serving.ServerOptions(otlp_traces_endpoint=endpoint)


def test_traces_need_the_extra(
    trained: Package, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "qeff_zoo.serving.monitoring.traces", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    argv = ["serve", str(trained.path), "--port", "0"]
    assert cli.main([*argv, "--otlp-traces-endpoint", "http://localhost:4318/v1/traces"]) == 1
    assert "`pip install 'qeff-zoo[otel]'`" in capsys.readouterr().err
