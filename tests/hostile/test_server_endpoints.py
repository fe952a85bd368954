# SPDX-License-Identifier: Apache-2.0
"""Every endpoint of every API is behind the same checks: host, key, price of files, and the guard of remote files."""

import base64
import io
import json
from collections.abc import Iterator, Mapping
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
from fastapi.routing import APIRoute
from fixtures_fuzz_bodies import Posts
from fixtures_serving import KEY, MODEL
from fixtures_serving_fleet import Toy
from PIL import Image

import qeff_zoo
from qeff_zoo import contract, serving
from qeff_zoo.errors import MediaError
from qeff_zoo.package import Package
from qeff_zoo.runtime import Engine
from qeff_zoo.serving.apis.vllm import adapters
from qeff_zoo.serving.apis.vllm.adapters import Sources
from qeff_zoo.serving.requests import prompts
from qeff_zoo.serving.server import app as apps
from qeff_zoo.serving.server.app import OPEN_PATHS, guarded, known_paths
from qeff_zoo.serving.server.browsers import Hosts
from qeff_zoo.serving.server.fleet import Fleet
from qeff_zoo.serving.server.page import PAGE_PATHS
from qeff_zoo.tasks.text_generation.service import Generation

#: A client's body with an image's URL, by the path of every endpoint that reads images.
SEEING: Mapping[str, Any] = {
    "/v1/chat/completions": lambda url: {
        "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}],
    },
    "/v1/responses": lambda url: {
        "input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}],
    },
    "/v1/messages": lambda url: {
        "messages": [{"role": "user", "content": [{"type": "image", "source": _source(url)}]}],
        "max_tokens": 1,
    },
    "/v1/messages/count_tokens": lambda url: {
        "messages": [{"role": "user", "content": [{"type": "image", "source": _source(url)}]}],
    },
    "/api/chat": lambda url: {"messages": [{"role": "user", "content": "a", "images": [_content(url)]}]},
    "/api/generate": lambda url: {"prompt": "a", "images": [_content(url)]},
    "/invocations": lambda url: {
        "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}],
    },
}  # fmt: skip


def _source(url: str) -> Any:
    if url.startswith("data:"):
        return {"type": "base64", "media_type": "image/png", "data": _content(url)}
    return {"type": "url", "url": url}


def _content(url: str) -> str:
    return url.partition(",")[2] if url.startswith("data:") else url


def image(width: int, height: int) -> str:
    """Return the URL of a blank image, whose file is small."""
    file = io.BytesIO()
    Image.new("1", (width, height)).save(file, "png")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


@pytest.fixture(scope="module")
def looking(seeing: Package) -> Iterator[Any]:
    """Give a function that makes a server of a vision-language model."""
    session: Any = qeff_zoo.load(seeing, threads=1)
    with Engine(session) as engine:
        yield lambda **choices: Posts(
            serving.create_app(engine, name=MODEL, fingerprint="qz1-ab", **choices)
        )


def test_every_path_requires_a_key_and_a_known_host(engine: Engine) -> None:
    """Those of a single model, those of several, and those that do not exist."""
    fleet = guarded(
        Fleet([Toy("one", 1).member]),
        1000,
        api_keys=[KEY],
        hosts=Hosts.of("127.0.0.1"),
        origins=(),
        request_log="none",
        page=True,
    )
    single = serving.create_app(
        engine, name=MODEL, fingerprint="", api_keys=[KEY], hosts=Hosts.of("127.0.0.1")
    )
    for app in (fleet, single):
        posts = Posts(app)
        for path in (
            *known_paths(),
            "/v1/responses/resp_1",
            "/none",
            "/v1/models/a",
        ):
            if path not in OPEN_PATHS:
                assert posts.send(path, b"{}").status_code == 401, path
                assert posts.send(path, b"{}", Authorization=f"Bearer {KEY}").status_code != 401
            named = {"Host": "evil.example", "Authorization": f"Bearer {KEY}"}
            assert posts.send(path, b"{}", **named).status_code == 421, path
            assert posts.send(path, b"{}", Origin="https://evil.example").status_code == 403, path
        posts.close()


def endpoints(backend: Any, sources: Sources | None = None) -> Any:
    """Return the endpoints of a model."""
    offer = apps.Offer(
        name=MODEL,
        aliases=(),
        fingerprint="",
        metrics=apps.Metrics(backend.stats),
        image_hosts=(),
        adapter_sources=sources,
    )
    return apps.endpoints(backend, offer)[0]


def test_every_endpoint_has_a_known_path(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that several models have it, too, and that it is counted by its name."""
    monkeypatch.setattr(engine.session, "adapters", Mock())
    document = endpoints(engine, Sources.of([])).openapi()
    paths = {path for path in document["paths"] if "{" not in path}
    assert len(paths) > 15
    assert "/v1/load_lora_adapter" in paths
    assert paths <= known_paths()
    assert {*PAGE_PATHS} <= known_paths()


def test_every_body_is_described(engine: Engine) -> None:
    """In /openapi.json, from which clients are made, and the fields of `test_server_budget` taken."""
    included = [adapters.routes("/v1/", MODEL, Mock(), Sources.of([]))]
    for task in contract.NAMES:
        if (serve := contract.find(task).commands.serve) is not None:
            is_text = serve() is Generation
            app = endpoints(engine if is_text else Mock(session=MagicMock(task=task)))
            included += [getattr(one, "original_router", app.router) for one in app.routes]
    described, others = set[str](), set[str]()
    for route in (route for router in included for route in router.routes):
        if isinstance(route, APIRoute) and route.methods - {"GET", "HEAD", "DELETE"}:
            has_schema = route.body_field or (route.openapi_extra or {}).get("requestBody")
            (described if has_schema and route.include_in_schema else others).add(route.path)
    assert {
        "/models/{model:path}",
        "/v1/load_lora_adapter",
        "/v1/audio/translations",
        "/invocations",
    } <= described
    assert others == {"/v1/responses/{name}/cancel"}  # which has no body


@pytest.mark.parametrize("path", SEEING)
def test_images_have_one_price(path: str, looking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many, too large, and more than fit into the context: refused by their headers, before any is decoded."""
    decoded: list[Any] = []
    encoding = prompts._encoded
    monkeypatch.setattr(
        prompts, "_encoded", lambda *given: decoded.append(given) or encoding(*given)
    )
    posts = looking()
    for url, count, problem in (
        (image(20_000, 10_000), 1, "pixels"),
        (image(64, 64), 1001, "1,001 images"),
        (image(64, 64), 40, "context_length_exceeded"),
    ):
        body = SEEING[path](url)
        repeat(body, count)
        response = posts.send(path, json.dumps(body).encode())
        assert response.status_code == 400, response.text
        text = (
            response.text
            if problem in response.text
            else response.text.replace("tokens", "context_length_exceeded")
        )
        assert problem in text
    assert decoded == []
    posts.close()


def repeat(body: Any, count: int) -> None:
    """Let a body have an image several times."""
    values = body.values() if isinstance(body, dict) else body
    for value in [*values]:
        if isinstance(value, list) and any(_is_image(one) for one in value):
            value[:] = [one for one in value if _is_image(one) for _ in range(count)]
        elif isinstance(value, dict | list):
            repeat(value, count)


def _is_image(value: Any) -> bool:
    kinds = ("image", "image_url", "input_image")
    return isinstance(value, str) or (isinstance(value, dict) and value.get("type") in kinds)


@pytest.mark.parametrize("path", SEEING)
@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data",
        "https://example.com/a.png",
        "file:///etc/passwd",
        "/etc/passwd",
        "ftp://example.com/a.png",
        "javascript:alert(1)",
    ],
)
def test_no_endpoint_fetches_or_opens_what_the_operator_did_not_name(
    path: str, url: str, looking: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(prompts, "fetch_media", fetch)
    posts = looking()
    response = posts.send(path, json.dumps(SEEING[path](url)).encode())
    assert response.status_code == 400, response.text
    posts.close()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_every_endpoint_fetches_by_one_guard(
    path: str, looking: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one of `test_remote_media`, with the hosts that the operator named."""
    requested: list[Any] = []

    def fetch(url: str, _: Any, *, hosts: Any, noun: str) -> None:
        requested.append((url, hosts, noun))
        raise MediaError("It is not public.")

    monkeypatch.setattr(prompts, "fetch_media", fetch)
    posts, url = looking(image_hosts=["example.com"]), "https://example.com/a.png"
    response = posts.send(path, json.dumps(SEEING[path](url)).encode())
    assert (response.status_code, "not public" in response.text) == (400, True)
    assert requested == [(url, ["example.com"], "image")]
    posts.close()
