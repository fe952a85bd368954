# SPDX-License-Identifier: Apache-2.0
"""Requests that coding agents sent, replayed on a server with the scripted program: `scripts/interop` records them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from checkout import TESTS
from fixtures_serving import MODEL, post, running
from scripted_program import TEMPLATE, opening

from qeff_zoo.package import Package
from qeff_zoo.runtime import Engine
from qeff_zoo.runtime.text.chat_template import ChatTemplate
from qeff_zoo.sessions import open_session

pytestmark = pytest.mark.turns(3)

AGENTS = json.loads((TESTS / "agent_requests.json").read_bytes())
#: Prompt tokens of a next turn that may be computed: those of the turn, and of incomplete blocks.
COMPUTED = 600
#: Beginnings of templates that raise for messages as an agent sends them, by what they raise for.
STRICT = {
    "system messages between turns": (
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
        "{{ raise_exception('System message must be at the beginning.') }}{% endif %}{% endfor %}"
    ),
    "other roles": (
        "{% for m in messages %}{% if m.role not in ('system', 'user', 'assistant', 'tool') %}"
        "{{ raise_exception('Unexpected message role.') }}{% endif %}{% endfor %}"
    ),
    "system messages": (
        "{% for m in messages %}{% if m.role in ('system', 'developer') %}"
        "{{ raise_exception('System role not supported') }}{% endif %}{% endfor %}"
    ),
    "two turns of the user": (
        "{% for m in messages %}{% if not loop.first and m.role == 'user' "
        "and messages[loop.index0 - 1].role == 'user' %}"
        "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}{% endfor %}"
    ),
}
STRICT["all of these"] = "".join(STRICT.values())


@contextmanager
def serving(package: Package, template: str) -> Iterator[str]:
    """Serve the scripted program, with room for the prompts of agents; give the URL."""
    lengths = {"ctx_len": 1 << 15, "prefill_seq_len": 512}
    session: Any = open_session(package, opening=opening(package, **lengths))
    session.chat_template = ChatTemplate(template, {"bos_token": "<|begin|>"})
    with Engine(session) as engine, running(engine) as url:
        yield url.removesuffix("/v1")


@pytest.fixture(scope="module")
def scripted(trained: Package) -> Iterator[str]:
    """Give the URL of a server whose template takes all messages."""
    with serving(trained, TEMPLATE) as url:
        yield url


def send(url: str, agent: str, body: dict[str, Any]) -> dict[str, Any]:
    """Send a request of an agent for a reply that is not streamed."""
    body = {**body, "model": MODEL, "stream": False}
    body.pop("stream_options", None)
    status, reply = post(url, AGENTS[agent]["path"].removeprefix("/"), json.dumps(body).encode())
    assert status == 200, reply
    return reply  # type: ignore[no-any-return]


def bodies(agent: str) -> list[dict[str, Any]]:
    first, *changes = AGENTS[agent]["bodies"]
    return [{**first, **change} for change in ({}, *changes)]


def usage(reply: dict[str, Any]) -> tuple[int, int]:
    """Return the number of prompt tokens, and of those that were cached."""
    found = reply["usage"]
    if "cache_read_input_tokens" in found:
        cached = found["cache_read_input_tokens"]
        return found["input_tokens"] + cached, cached
    name = "prompt_tokens" if "prompt_tokens" in found else "input_tokens"
    return found[name], found[f"{name}_details"]["cached_tokens"]


@pytest.mark.parametrize("agent", AGENTS)
def test_the_requests_of_an_agent_are_served(scripted: str, agent: str) -> None:
    """The prompt of the last turn is cached but for its end; qwen-code's last one has other tools."""
    *_, before, last = replies = [send(scripted, agent, body) for body in bodies(agent)]
    shown = json.dumps(replies)
    assert "Goodbye now" in shown
    assert "printf 31" in shown or agent == "aider"
    assert (
        usage(last)[1] >= min(usage(before)[0], usage(last)[0]) - COMPUTED or agent == "qwen-code"
    )


@pytest.mark.parametrize("name", STRICT)
def test_the_requests_of_codex_are_served_by_a_strict_template(name: str, trained: Package) -> None:
    """The same answers, calls of tools among them, and a reminder of the system before the last message too."""
    first, called, last = bodies("codex")
    reminder = {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]}
    *before, question = last["input"]
    reminded = {**last, "input": [*before, reminder, question]}
    with serving(trained, STRICT[name] + TEMPLATE) as url:
        call, *texts = [send(url, "codex", one) for one in (first, called, last, reminded)]
    (item,) = [one for one in call["output"] if one["type"] == "function_call"]
    assert item["name"] == "exec_command"
    assert "printf 31" in item["arguments"]
    assert "It is " in json.dumps(texts[0])
    assert all("Goodbye now" in json.dumps(text) for text in texts[1:])


def test_codex_reads_why_a_template_takes_no_tools(trained: Package) -> None:
    raising = "{% if tools %}{{ raise_exception('Tools are not supported') }}{% endif %}"
    with serving(trained, raising + TEMPLATE) as url:
        body = {**bodies("codex")[0], "model": MODEL, "stream": False}
        status, refusal = post(url, "v1/responses", json.dumps(body).encode())
        assert status == 400
        assert "Tools are not supported" in refusal["error"]["message"]
        assert refusal["error"]["param"] == "tools"
        del body["tools"], body["tool_choice"]
        assert post(url, "v1/responses", json.dumps(body).encode())[0] == 200


@pytest.mark.parametrize("joined", [False, True], ids=["blocks", "text"])
def test_accounting_of_claude_code_costs_no_cache(scripted: str, joined: bool) -> None:
    """The accounting changes with each request; some routers send the system prompt as one text."""
    first = bodies("claude-code")[0]
    _, *blocks = first["system"]
    found = []
    for value in ("8e21f", "a07c4", None):
        line = f"x-anthropic-billing-header: cc_version=2.1.332.{value}; cc_entrypoint=cli; cch={value};"
        system = [*([{"type": "text", "text": line}] if value else []), *blocks]
        text = "\n".join(block["text"] for block in system)
        found.append(
            usage(send(scripted, "claude-code", {**first, "system": text if joined else system}))
        )
    (length, _), (second, cached), (plain, reused) = found
    assert length == second == plain
    assert min(cached, reused) > length - COMPUTED // 8
