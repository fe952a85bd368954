# SPDX-License-Identifier: Apache-2.0
"""`qeff-zoo serve --config FILE`, and the flags of a server's chat template and operation."""

import argparse
import json
import re
from pathlib import Path
from typing import Any

import pytest
from fixtures_serving import MODEL, QUESTION, post, running

from qeff_zoo import cli
from qeff_zoo.cli.running import _set_template
from qeff_zoo.errors import GenerationError, ServingError
from qeff_zoo.runtime import Engine
from qeff_zoo.serving import ServerOptions, create_app
from qeff_zoo.serving.server.process import Server

CONFIG = """
package = ["one", "two=folder"]
port = 9000
model-name = ["first", "second"]
api-key = ["a", "b"]
no-page = true
build = false
allowed-hosts = ["api.example", "vllm"]
default-chat-template-kwargs = '{"enable_thinking": false}'
shutdown-timeout = 1.5
prefix-cache-answers = false
"""


def parsed(*argv: str) -> argparse.Namespace:
    return cli.parser().parse_args(["serve", *argv])


def test_keys_of_a_file_are_flags_and_flags_precede_it(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(CONFIG)
    found = parsed("--config", str(file), "--port", "1", "--api-key=c")
    assert (found.package, found.others) == ("one", ["two=folder"])
    assert (found.port, found.api_key) == (1, ["a", "b", "c"])
    assert (found.no_page, found.build, found.prefix_cache_answers) == (True, False, False)
    assert found.model_name == ["first", "second"]
    assert found.allowed_hosts == ("api.example", "vllm")
    assert found.default_chat_template_kwargs == {"enable_thinking": False}
    assert found.shutdown_timeout == 1.5
    file.write_text('model-name = ["first"]')  # the list of names ends before the package
    assert parsed(f"--config={file}", "package").package == "package"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("max-qeue = 3", r"key 'max-qeue'.*Did you mean 'max-queue'\?"),
        ("max_queue = 3", r"Did you mean 'max-queue'\?"),
        ("config = 'other.toml'", r"key 'config'"),
        ("port = 'many'", "invalid int value: 'many'"),
        ("port = [1]", r"sets 'port' to \[1\]; expected a text, a number"),
        ("no-page = 'yes'", "expected true or false"),
        ("role = 'decod'", r"Did you mean 'decode'\?"),
        ("package = 3", "expected a text or a list of texts"),
        ("port = ", "Cannot read the configuration file"),
    ],
)
def test_a_wrong_file_is_refused(
    content: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(content)
    with pytest.raises(SystemExit) as caught:
        parsed("package", "--config", str(file))
    assert caught.value.code == 2
    assert re.search(problem, capsys.readouterr().err)


def test_a_chat_template_and_its_default_variables(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    session = engine.session
    monkeypatch.setattr(session, "chat_template", session.chat_template)
    file = tmp_path / "own.jinja"
    file.write_text("{{ bos_token }}{{ mood }}: {{ messages[0].content }}")
    given = argparse.Namespace(
        chat_template=str(file), default_chat_template_kwargs={"mood": "calm"}
    )
    _set_template(session, given)
    with running(engine) as url:
        root = url.removesuffix("/v1")
        body: dict[str, Any] = {"messages": QUESTION}
        _, usual = post(root, "apply-template", json.dumps(body).encode())
        body["chat_template_kwargs"] = {"mood": "glad"}
        _, own = post(root, "apply-template", json.dumps(body).encode())
    text = QUESTION[0]["content"]
    assert usual["prompt"].endswith(f"calm: {text}")
    assert own["prompt"].endswith(f"glad: {text}")
    _set_template(
        session, argparse.Namespace(chat_template="default", default_chat_template_kwargs=None)
    )
    for template, variables, error in (
        ("none", None, ServingError),
        (None, {"messages": []}, GenerationError),
    ):
        wrong = argparse.Namespace(chat_template=template, default_chat_template_kwargs=variables)
        with pytest.raises(error):
            _set_template(session, wrong)


def test_an_idle_connection_ends_after_its_time(engine: Engine) -> None:
    choices = ServerOptions(keep_alive_timeout=0.2)
    app = create_app(engine, name=MODEL, fingerprint="qz1-ab")
    server = Server.of(choices, app, lambda: None, lambda _: None)
    assert server.config.timeout_keep_alive == 0.2
    with pytest.raises(ServingError, match="keep-alive-timeout"):
        ServerOptions(keep_alive_timeout=0)
