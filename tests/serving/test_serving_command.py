# SPDX-License-Identifier: Apache-2.0
"""`qeff-zoo serve`: its address, its start, its signals, and the example of its documentation."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any

import openai
import pytest
from chat_templates import TEMPLATES
from checkout import TINY_LLAMA
from fixtures_serving import (
    KEY,
    MODEL,
    PROMPT,
    TIMEOUT,
    chat,
    complete,
    connect,
    dial,
    figures,
    post,
    running,
    send,
    wait_until,
)

import qeff_zoo
from qeff_zoo import cli, serving
from qeff_zoo.package import Package
from qeff_zoo.runtime import Engine
from qeff_zoo.runtime.text.chat_template import ChatTemplate
from qeff_zoo.serving.errors import ApiError
from qeff_zoo.serving.requests import chat_runs
from qeff_zoo.serving.server.process import url_of
from qeff_zoo.sessions import ImageClassificationSession

pytestmark = pytest.mark.turns(3)


def test_addresses() -> None:
    with serving.bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        assert url_of(taken) == f"http://127.0.0.1:{port}/v1"
        assert serving.is_local(taken)
        with pytest.raises(qeff_zoo.ZooError, match=r"Cannot listen at .*in use.*--port"):
            serving.bind("127.0.0.1", port)
    for host, port in (("127.0.0.1", 99999), ("no.such.host.invalid", 0), ("192.0.2.1", 0)):
        with pytest.raises(qeff_zoo.ZooError, match="Cannot listen at"):
            serving.bind(host, port)
    with serving.bind("0.0.0.0", 0) as public:
        assert not serving.is_local(public)
    if socket.has_ipv6:
        with serving.bind("::1", 0) as six:
            assert url_of(six).startswith("http://[::1]:")


# --- the command ----------------------------------------------------------------------------------


@contextmanager
def command(*arguments: object, **environment: str) -> "Iterator[subprocess.Popen[str]]":
    """Run `qeff-zoo serve` in a process of its own; it is gone afterwards."""
    argv = [
        sys.executable,
        "-m",
        "qeff_zoo",
        "serve",
        *map(str, arguments),
        "--request-log",
        "none",
    ]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        argv,
        stdout=pipe,
        stderr=pipe,
        text=True,
        env={**os.environ, **environment},
        preexec_fn=partial(signal.signal, signal.SIGHUP, signal.SIG_DFL),  # ignored under nohup
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_command_serves_until_a_signal(trained: Package, sent: int) -> None:
    """A stream that runs then is finished, and there is no traceback."""
    arguments = (trained.path, "--port", 0, "--threads", 1, "--json", "--model-name", MODEL)
    with command(*arguments, QEFF_ZOO_API_KEY=KEY) as process:
        assert process.stdout is not None
        announced = json.loads("".join(process.stdout.readline() for _ in range(4)))
        assert announced["model"] == MODEL
        assert announced["url"].startswith("http://127.0.0.1:")
        with (
            connect(announced["url"], "wrong") as stranger,
            pytest.raises(openai.AuthenticationError),
        ):
            complete(stranger)
        rebound = {"Host": "evil.example", "Authorization": f"Bearer {KEY}"}
        assert post(announced["url"], "completions", b"{}", **rebound)[0] == 421
        with connect(announced["url"]) as client:
            stream = complete(client, stream=True, max_tokens=100, extra_body={"ignore_eos": True})
            next(stream)
            process.send_signal(sent)
            assert len(list(stream)) > 50
        out, err = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, out) == (0, "")
    page = announced["url"].removesuffix("v1")
    assert err == f"Serving {MODEL}, with a page at {page}; Ctrl-C ends it.\n"


def test_a_second_signal_ends_the_server_at_once(trained: Package) -> None:
    """One client has not sent all of its body, another one does not read what comes."""
    arguments = (trained.path, "--port", 0, "--threads", 1, "--shutdown-timeout", TIMEOUT * 2)
    with command(*arguments) as process, ExitStack() as clients:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        slow, deaf = (clients.enter_context(closing(dial(url))) for _ in range(2))
        send(slow, "{}", length=9)
        body = {"model": "tiny-llama", "prompt": PROMPT, "max_tokens": 100, "stream": True}
        send(deaf, json.dumps({**body, "n": 50, "temperature": 0, "ignore_eos": True}))
        wait_until(lambda: figures(url)["requests_waiting"] > 0)
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: refuses(url))
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=TIMEOUT)
        deaf.settimeout(TIMEOUT)
        with deaf.makefile() as audio:
            assert '"code":"shutting_down"' in audio.read()
    assert process.returncode == 0
    assert "Traceback" not in err


def refuses(url: str) -> bool:
    try:
        dial(url).close()
    except ConnectionRefusedError:
        return True
    return False


def test_unservable_packages_are_refused_at_the_start(
    trained: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving.bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = str(taken.getsockname()[1])
        assert cli.main(["serve", str(trained.path), "--port", port]) == 1
        assert "Cannot listen at '127.0.0.1'" in capsys.readouterr().err
    classifier = object.__new__(ImageClassificationSession)
    classifier.folder = trained.path
    choices = serving.ServerOptions(name=MODEL, fingerprint="qz1-ab")
    with (
        serving.bind("127.0.0.1", 0) as listener,
        pytest.raises(
            qeff_zoo.ZooError, match="'image-classification', which OpenAI's API does not"
        ),
    ):
        serving.serve(classifier, listener, choices)
    for option, value in (("api-key", ""), ("max-queue", "-1"), ("shutdown-timeout", "-1")):
        assert cli.main(["serve", str(trained.path), f"--{option}", value]) == 1
        assert f"Change --{option}." in capsys.readouterr().err


def test_nothing_is_built_for_options_that_are_wrong(
    trained: Package, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    built = list[str]()
    monkeypatch.setattr("qeff_zoo.api.build", built.append)
    with serving.bind("127.0.0.1", 0) as taken:
        taken.listen()
        for option, value in (
            *(
                ("tool-parser", "frob"),
                ("memory-budget", "0"),
                ("api-key", ""),
                ("ssl-keyfile", "a"),
            ),
            ("port", taken.getsockname()[1]),
        ):
            for others in ([], [str(trained.path)]):
                argv = [str(TINY_LLAMA), *others, "--build", f"--{option}", str(value)]
                assert cli.main(["serve", *argv]) == 1
                assert f"--{option}" in capsys.readouterr().err
    assert built == []


def test_a_format_of_calls_requires_a_template_with_tools(
    trained: Package, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(trained.path)
    for packages in ([path], [f"a={path}", f"b={path}"]):
        assert cli.main(["serve", *packages, "--port", "0", "--tool-parser", "hermes"]) == 1
        assert "has no chat template that renders tools" in capsys.readouterr().err
    served = list[object]()
    monkeypatch.setattr(serving, "serve", lambda *given: served.append(given))
    assert cli.main(["serve", path, "--port", "0", "--tool-parser", "none"]) == 0
    tools = ChatTemplate(TEMPLATES["hermes"], {})
    monkeypatch.setattr(ChatTemplate, "find", lambda _: tools)
    assert cli.main(["serve", path, "--port", "0", "--tool-parser", "hermes"]) == 0
    assert len(served) == 2


def test_the_model_name_has_the_flag_of_vllm_too() -> None:
    arguments = cli.parser().parse_args(["serve", "a", "--served-model-name", "b", "c"])
    assert arguments.model_name == ["b", "c"]
    with pytest.raises(SystemExit, match="2"):
        cli.parser().parse_args(["serve", "a", "--model-name", ""])


def test_one_package_has_the_name_before_its_path(
    trained: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = list[str]()
    monkeypatch.setattr(
        serving, "serve", lambda _session, _listener, choices, _: names.append(choices.name)
    )
    for argv in ([f"own={trained.path}"], [f"own={trained.path}", "--model-name", "given"]):
        assert cli.main(["serve", *argv, "--port", "0"]) == 0
    assert names == ["own", "given"]


def test_images_are_fetched_from_the_hosts_of_the_flag(
    trained: Package,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    requested = list[serving.ServerOptions]()
    monkeypatch.setattr(
        serving, "serve", lambda _session, _listener, choices, _: requested.append(choices)
    )
    argv = ["serve", str(trained.path), "--port", "0", "--allow-image-url"]
    assert cli.main([*argv, "A.example, [::1]:80"]) == 1
    assert "--allow-image-url does not apply to text-generation" in capsys.readouterr().err
    monkeypatch.setattr("qeff_zoo.cli.running.refuse_inapplicable", lambda *_: ())
    assert cli.main([*argv, "A.example, [::1]:80"]) == 0
    for wrong in ("https://a.example", "a.example/photos", "*", ""):
        with pytest.raises(SystemExit, match="2"):
            cli.main([*argv, wrong])
        assert "is no host. Expected HOST or HOST:PORT" in capsys.readouterr().err

    def settings(*given: Any) -> Any:
        raise ApiError(400, f"hosts {given[4]}")

    monkeypatch.setattr(chat_runs, "prepare_chat", settings)
    with (
        running(engine, image_hosts=requested[0].image_hosts) as url,
        connect(url) as client,
        pytest.raises(openai.BadRequestError, match=r"hosts \('a.example', '\[::1\]:80'\)"),
    ):
        chat(client)


def test_the_example_of_the_documentation(url: str) -> None:
    page = (TINY_LLAMA.parents[1] / "docs" / "serving.md").read_text()
    shown, *_ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    code = shown.replace("http://127.0.0.1:8000/v1", url).replace('"tiny-llama"', f'"{MODEL}"')
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout) > 10
