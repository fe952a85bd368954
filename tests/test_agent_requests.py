# SPDX-License-Identifier: Apache-2.0
"""Requests that coding agents sent, replayed on a server with the scripted program: `scripts/interop` records them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures_serving import MODEL, post, running
from scripted_program import TEMPLATE, opening

from qeff_zoo.package import Package
from qeff_zoo.runtime import Engine, open_session
from qeff_zoo.runtime.chat_template import ChatTemplate

AGENTS = json.loads(Path(__file__).with_name("agent_requests.json").read_bytes())
#: Prompt tokens of a next turn that may be computed: those of the turn, and of incomplete blocks.
COMPUTED = 600


@pytest.fixture(scope="module")
def scripted(trained: Package) -> Iterator[str]:
    """Give the URL of a server with the scripted program, and room for the prompts of agents."""
    lengths = {"ctx_len": 1 << 15, "prefill_seq_len": 512}
    session: Any = open_session(trained, opening=opening(trained, **lengths))
    session.chat_template = ChatTemplate(TEMPLATE, {"bos_token": "<|begin|>"})
    with Engine(session) as engine, running(engine) as url:
        yield url.removesuffix("/v1")


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
