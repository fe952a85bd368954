# SPDX-License-Identifier: Apache-2.0
"""Operation of a server: log, keys, names of the model, TLS, a Unix socket, metrics for vLLM's dashboards, OpenAPI."""

import argparse
import http.client
import json
import re
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from fixtures_serving import KEY, MODEL, PROMPT, TIMEOUT, listening, post, running, wait_until
from hypothesis import HealthCheck, given, settings
from prometheus_client.parser import text_string_to_metric_families

import qeff_zoo
from qeff_zoo import serving
from qeff_zoo.cli.running import _api_keys, _certificate
from qeff_zoo.runtime import Engine, Stats
from qeff_zoo.runtime.text.chat_template import ChatTemplate
from qeff_zoo.serving.monitoring.metrics import Metrics
from qeff_zoo.serving.server.app import known_paths
from qeff_zoo.serving.server.process import url_of

pytestmark = pytest.mark.turns(3)

BODY = {"prompt": PROMPT, "max_tokens": 1}


def certificate(folder: Path) -> tuple[str, str]:
    """Write a certificate of this machine's address; return the paths of its chain and of its key."""
    from datetime import UTC, datetime, timedelta
    from ipaddress import ip_address

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "chain.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain
    (folder / "key.pem").write_bytes(key.private_bytes(*pem))
    return str(folder / "chain.pem"), str(folder / "key.pem")


@pytest.mark.parametrize("form", ["text", "json"])
def test_each_request_has_a_line_without_its_content(
    engine: Engine, capsys: pytest.CaptureFixture[str], form: Any
) -> None:
    with running(engine, request_log=form, quiet_paths=["/health"]) as url:
        body = json.dumps({"model": MODEL, **BODY}).encode()
        assert get(url, "health") == {"status": "ok"}
        assert post(url, "completions", body, **{"X-Request-Id": "mine"})[0] == 200
        assert post(url, "completions", b"{}")[0] == 400
    first, second = capsys.readouterr().err.splitlines()
    if form == "json":
        found = json.loads(first)
        assert found["request_id"] == "mine"
        assert (found["method"], found["path"], found["status"]) == ("POST", "/v1/completions", 200)
        assert (found["model"], found["generated_tokens"]) == (MODEL, 1)
        assert found["prompt_tokens"] == len(engine.session.encode(PROMPT))
        assert json.loads(second)["status"] == 400
    else:
        usage = f"model={MODEL} prompt_tokens=[0-9]+ generated_tokens=1"
        begun = r"\S+ 127\.0\.0\.1 POST /v1/completions 200 [0-9.]+ mine"
        assert re.fullmatch(f"{begun} {usage}", first)
    assert PROMPT not in first + second


def test_any_of_several_keys_is_accepted_in_either_header(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"one\n\n  {KEY} \n")
    requested = argparse.Namespace(api_key=["two"], api_key_file=str(path))
    keys = _api_keys(requested)
    assert keys == ("two", "one", KEY)
    path.write_text("\n")
    with pytest.raises(qeff_zoo.ZooError, match="has no key"):
        _api_keys(requested)
    body = json.dumps(BODY).encode()
    with running(engine, api_keys=keys) as url:
        for key in keys:
            for named in ({"Authorization": f"Bearer {key}"}, {"X-Api-Key": key}):
                assert post(url, "completions", body, **named)[0] == 200
        for named in ({"Authorization": KEY}, {"X-Api-Key": "three"}, {"X-Api-Key": ""}, {}):
            assert post(url, "completions", body, **named)[0] == 401


def test_the_model_has_several_names_or_none_in_a_request(engine: Engine) -> None:
    with running(engine, aliases=("gpt-4", "default")) as url:
        for named in ({"model": "gpt-4"}, {"model": "default"}, {"model": None}, {}):
            status, found = post(url, "completions", json.dumps({**named, **BODY}).encode())
            assert (status, found["model"]) == (200, named.get("model") or MODEL)
        assert post(url, "completions", json.dumps({"model": "no", **BODY}).encode())[0] == 404


def test_a_certificate_encrypts_connections(engine: Engine, tmp_path: Path) -> None:
    files = certificate(tmp_path)
    app = serving.create_app(engine, name=MODEL, fingerprint="qz1-ab")
    trusted = ssl.create_default_context(cafile=files[0])
    with serving.bind("127.0.0.1", 0) as listener, listening(app, listener, tls=files) as url:
        assert url.startswith("https://127.0.0.1:")
        with urllib.request.urlopen(f"{url}/models", timeout=TIMEOUT, context=trusted) as answer:
            assert json.load(answer)["data"][0]["id"] == MODEL
        with pytest.raises(urllib.error.URLError, match="certificate"):
            urllib.request.urlopen(f"{url}/models", timeout=TIMEOUT)


def test_a_certificate_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    files = certificate(tmp_path)
    for wrong in ((files[0], files[0]), (str(tmp_path / "none"), files[1])):
        with pytest.raises(qeff_zoo.ZooError, match="Cannot serve with the certificate"):
            serving.ServerOptions(name=MODEL, fingerprint="", tls=wrong)
    with pytest.raises(qeff_zoo.ZooError, match="both or neither"):
        _certificate(argparse.Namespace(ssl_certfile="a", ssl_keyfile=None))


def test_a_unix_socket_serves_its_user_alone(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    app = serving.create_app(engine, name=MODEL, fingerprint="qz1-ab")
    with serving.bind_unix(path) as listener:
        assert path.stat().st_mode & 0o777 == 0o600
        assert serving.is_local(listener)
        with (
            pytest.raises(qeff_zoo.ZooError, match="Cannot listen at"),
            serving.bind_unix(path),
        ):
            pass
        with listening(app, listener) as url:
            assert url == f"unix:{path}"
            connection = http.client.HTTPConnection("localhost")
            connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.sock.connect(str(path))
            connection.request("GET", "/v1/models")
            assert json.load(connection.getresponse())["data"][0]["id"] == MODEL
            connection.close()
    assert not path.exists()


def test_a_server_of_all_addresses_shows_one_that_clients_can_use() -> None:
    with serving.bind("0.0.0.0", 0) as public:
        assert url_of(public) == f"http://127.0.0.1:{public.getsockname()[1]}/v1"


#: Metrics that the dashboards of vLLM's repository draw (examples/observability), and that its autoscalers read.
DRAWN = (
    *(
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_inference_time_seconds",
    ),
    *("request_prefill_time_seconds", "request_decode_time_seconds", "inter_token_latency_seconds"),
    *("time_to_first_token_seconds", "request_time_per_output_token_seconds"),
    *("request_prompt_tokens", "request_generation_tokens", "request_params_max_tokens"),
    *("request_prefill_kv_computed_tokens", "request_max_num_generation_tokens"),
    *("request_params_n", "request_num_preemptions"),
)
#: Series of the dashboards in vLLM 0.33.0, with the ending of the histogram or counter that they draw.
DASHBOARDS = (
    *(
        "e2e_request_latency_seconds_bucket",
        "inter_token_latency_seconds_bucket",
        "iteration_tokens_total_count",
    ),
    *(
        "request_generation_tokens_bucket",
        "request_max_num_generation_tokens_sum",
        "request_prompt_tokens_bucket",
    ),
    *(
        "request_time_per_output_token_seconds_bucket",
        "time_to_first_token_seconds_bucket",
        "request_success_total",
    ),
    *(
        "request_queue_time_seconds_sum",
        "request_prefill_time_seconds_sum",
        "request_decode_time_seconds_sum",
    ),
    *(
        "generation_tokens_total",
        "prompt_tokens_total",
        "kv_cache_usage_perc",
        "num_requests_running",
    ),
    "num_requests_waiting",
)


def test_metrics_have_the_names_of_vllm_too(engine: Engine) -> None:
    with running(engine) as url:
        before = engine.stats()
        assert post(url, "completions", json.dumps({**BODY, "max_tokens": 3}).encode())[0] == 200
        with urllib.request.urlopen(url.replace("/v1", "/metrics"), timeout=TIMEOUT) as answer:
            text = answer.read().decode()
        after = engine.stats()
        chosen = {**BODY, "prompt": [[5, 6], [7]], "n": 2, "max_tokens": 1}
        assert post(url, "completions", json.dumps(chosen).encode())[0] == 200
        with urllib.request.urlopen(url.replace("/v1", "/metrics"), timeout=TIMEOUT) as answer:
            later = answer.read().decode()
    choices = [line for line in later.splitlines() if line.startswith("vllm:request_params_n_")]
    assert [float(line.split()[-1]) for line in choices] == [1, 3, 3, 3, 3, 3, 3, 5]
    samples = [
        sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("vllm:")
    ]
    assert all(
        (sample.labels["model_name"], sample.labels["engine"]) == (MODEL, "0") for sample in samples
    )
    found = {sample.name.removeprefix("vllm:"): sample.value for sample in samples}
    assert {*DASHBOARDS} <= found.keys()
    assert found["request_params_n_sum"] == 1
    assert found["request_num_preemptions_sum"] == 0
    ran = sum(size * times for size, times in after.steps.items())
    assert (found["iteration_tokens_total_sum"], found["iteration_tokens_total_count"]) == (
        ran,
        sum(after.steps.values()),
    )
    assert ran - sum(size * times for size, times in before.steps.items()) >= 3
    assert {name: found[f"{name}_count"] for name in DRAWN} == {
        name: 2.0 if name.startswith("inter") else 1.0 for name in DRAWN
    }
    parts = [found[f"request_{part}_time_seconds_sum"] for part in ("queue", "inference")]
    assert sum(parts) == pytest.approx(found["e2e_request_latency_seconds_sum"], abs=0.02)
    assert found["request_generation_tokens_sum"] == found["request_params_max_tokens_sum"] == 3
    assert found["prompt_tokens_total"] == found["prefix_cache_queries_total"]
    assert found["prompt_tokens_total"] == after.prompt_tokens > before.prompt_tokens
    assert found["generation_tokens_total"] == after.generated_tokens
    assert found["prompt_tokens_cached_total"] == after.reused_tokens
    computed = found["request_prefill_kv_computed_tokens_sum"]
    assert (
        computed
        == after.prompt_tokens - before.prompt_tokens - after.reused_tokens + before.reused_tokens
    )
    assert found["num_requests_waiting_by_reason"] == found["num_preemptions_total"] == 0
    assert 'http_requests_total{handler="/v1/completions",status="2xx"} 1.0' in text
    states = {
        sample.labels["sleep_state"]: sample.value
        for sample in samples
        if sample.name == "vllm:engine_sleep_state"
    }
    assert states == {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
    (started,) = re.findall(r"^process_start_time_seconds (\S+)$", text, re.MULTILINE)
    assert 0 < time.time() - float(started) < 86_400
    assert found["kv_cache_usage_perc"] == found["num_requests_waiting"] == 0
    ended = {
        sample.labels["finished_reason"]: sample.value
        for sample in samples
        if sample.name == "vllm:request_success_total"
    }
    assert ended.keys() == {"stop", "length", "abort", "error"}
    assert sum(ended.values()) == sum(after.finished.values())
    bounds = [
        sample.labels["le"]
        for sample in samples
        if sample.name == "vllm:request_prompt_tokens_bucket"
    ]
    assert bounds == ["1.0", "2.0", "5.0", "10.0", "20.0", "50.0", "100.0", "+Inf"]  # of 128 tokens


def test_drafts_are_counted_by_position() -> None:
    """Of 9 drafts, 4 have no accepted token, 3 have one, and 2 have three."""
    none = dict.fromkeys(("running", "waiting", "prompt_tokens", "reused_tokens"), 0)
    counts: Any = {**none, "generated_tokens": 0, "finished": {}, "drafts": {0: 4, 1: 3, 3: 2}}
    drafts = Stats(rows=1, accepted_tokens=9, evictions=5, **counts)
    samples = {
        (sample.name, sample.labels.get("position")): sample.value
        for metric in Metrics(lambda: drafts).collect()
        for sample in metric.samples
    }
    accepted = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    assert [samples[accepted, str(position)] for position in range(3)] == [5, 2, 2]
    assert samples["vllm:spec_decode_num_drafts_total", None] == 9
    assert samples["vllm:num_preemptions_total", None] == 5


def test_the_cache_is_used_while_a_request_runs(engine: Engine, paused: threading.Event) -> None:
    handle = engine.submit([5] * 20)
    wait_until(lambda: engine.stats().running == 1)
    sizes = engine.session.decoder.sizes
    filled = engine.stats().cache_usage * sizes.rows * sizes.ctx_len
    assert 20 <= filled <= 22  # the prompt, and what was sampled after it
    paused.set()
    handle.result(TIMEOUT)
    wait_until(lambda: engine.stats().cache_usage == 0)


def get(url: str, path: str) -> Any:
    with urllib.request.urlopen(f"{url.removesuffix('/v1')}/{path}", timeout=TIMEOUT) as answer:
        return json.load(answer)


def test_the_tokenizer_is_described_without_paths(engine: Engine, tmp_path: Path) -> None:
    with running(engine) as url:
        found = get(url, "tokenizer_info")
    session = engine.session
    template = (session.folder / "chat_template.jinja").read_text(encoding="utf-8")
    assert (found["tokenizer_class"], found["bos_token"]) == ("TokenizersBackend", "<|begin|>")
    assert (found["chat_template"], found["model_max_length"]) == (template, 128)
    assert {*found["additional_special_tokens"]} >= {"<|user|>", "<|assistant|>"}
    begin = session.tokenizer.token_id("<|begin|>") if session.tokenizer else None
    assert found["added_tokens_decoder"][str(begin)]["content"] == "<|begin|>"
    settings = json.loads((session.folder / "tokenizer_config.json").read_bytes())
    paths = dict.fromkeys(("name_or_path", "vocab_file", "errors", "auto_map"), "/home/me/model")
    altered = tmp_path / "tokenizer_config.json"
    altered.write_text(json.dumps({**settings, **paths, "padding_side": "left"}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "folder", tmp_path)
        several = {"default": "a", "rag": "b"}
        patch.setattr(session, "chat_template", ChatTemplate(several, {}))
        with running(engine) as url:
            found = get(url, "tokenizer_info")
    assert "/home" not in json.dumps(found)
    assert found["padding_side"] == "left"
    assert {one["name"]: one["template"] for one in found["chat_template"]} == several


def test_the_fields_of_an_invocation_select_its_endpoint(engine: Engine) -> None:
    fields = {"temperature": 0, "max_tokens": 4}
    with running(engine, api_keys=(KEY,)) as url:
        assert get(url, "ping") == {"status": "ok"}
        root, headers = url.removesuffix("/v1"), {"Authorization": f"Bearer {KEY}"}

        def send_request(path: str, body: Any) -> tuple[int, Any]:
            return post(root, path, json.dumps(body).encode(), **headers)

        for path, body in (
            ("v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], **fields}),
            ("v1/completions", {"prompt": PROMPT, **fields}),
            ("v1/responses", {"input": "a", "temperature": 0, "max_output_tokens": 4}),
        ):
            status, found = send_request("invocations", body)
            assert (status, found["object"]) == (200, send_request(path, body)[1]["object"])
            assert found["usage"] == send_request(path, body)[1]["usage"]
        for wrong in ({}, {"query": "a", "documents": ["b"]}, {"inputs": "a"}):
            status, refused = send_request("invocations", wrong)
            assert (status, refused["error"]["code"]) == (400, "invalid_body")
            assert "one of messages, prompt, input." in refused["error"]["message"]
        status, refused = send_request("invocations", {"prompt": "a", "temperature": 9})
        assert (status, refused["error"]["param"]) == (400, "temperature")
        assert send_request("invocations", {"prompt": "a", "model": "other"})[0] == 404
        assert send_request("invocations", [1])[0] == 400
        body = {"prompt": PROMPT, "stream": True, **fields}
        request = urllib.request.Request(
            f"{root}/invocations",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", **headers},
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            assert answer.read().endswith(b"data: [DONE]\n\n")


def test_the_openapi_document_describes_the_server(engine: Engine) -> None:
    """Requests drawn from the document itself: no failure of the server, and no undocumented form of a body."""
    app = serving.create_app(engine, name=MODEL, fingerprint="qz1-ab", request_log="none")
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    assert {"/v1/chat/completions", "/v1/completions", "/tokenize", "/v1/models"} <= {
        *schema.raw_schema["paths"]
    }
    assert {path for path in schema.raw_schema["paths"] if "{" not in path} <= known_paths()
    tried = set()
    for result in schema.get_all_operations():
        operation = result.ok()

        @settings(max_examples=6, database=None, suppress_health_check=[*HealthCheck])
        @given(operation.as_strategy())
        def request(case: Any) -> None:
            answer = case.call()
            assert answer.status_code < 500, answer.text
            if answer.status_code >= 400:
                assert "error" in answer.json()
            tried.add(case.operation.label)

        request()
    assert len(tried) > 6
