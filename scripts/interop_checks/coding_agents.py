# SPDX-License-Identifier: Apache-2.0
"""Flows of coding agents, run by their own command lines on the server of the scripted program."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interop_checks.recorder import Exchange, recording

KEY, MODEL = "sesame", "scripted"
#: npm packages of the agents in JavaScript and Rust, and the requirement of the one in Python.
PACKAGES = (
    *("@openai/codex", "@anthropic-ai/claude-code", "opencode-ai", "@qwen-code/qwen-code"),
    "@mariozechner/pi-coding-agent",
)
AIDER = ("aider-chat",)
_SECONDS = 120.0
_MADE = "made.txt"
#: Words of an answer that takes longer to generate than an agent waits before it is stopped.
_WORDS = 4000
#: Number of events of such an answer after which it is stopped.
_BEGUN = 16
#: Number of prompt tokens of a second turn that may be computed: the turns themselves, and the end of a block.
_COMPUTED = 1000


@dataclass(frozen=True, kw_only=True)
class Agent:
    """Command line of an agent.

    Args:
        program: Name of its executable.
        api: Path of its requests.
        command: Arguments before the prompt: of a new conversation, and of one that goes on.
        variables: Function that returns environment variables by the URL of the server, the folder of its
            configuration, and the API key.
        files: Function that returns its configuration files by the same arguments: text by path in the folder, or in
            the working folder if the path begins with `work/`.
        call: Step of a plan that writes a file with the agent's tool and prints `31`; empty if it has none.
        by_input: Whether the prompt is the standard input.
    """

    program: str
    api: str
    command: Callable[[str, bool], Sequence[str]]
    variables: Callable[[str, Path, str], Mapping[str, str]]
    files: Callable[[str, Path, str], Mapping[str, str]] = lambda *_: {}
    call: str = ""
    by_input: bool = False


def _shell(tool: str, argument: str, **more: str) -> str:
    """Return the step of a plan that calls a shell."""
    arguments = {argument: f"printf 31 > {_MADE}; cat {_MADE}", **more}
    return f"call {tool} {json.dumps(arguments)}"


def _codex(url: str, home: Path, key: str) -> dict[str, str]:
    return {
        "config.toml": f"""
model = "{MODEL}"
model_provider = "zoo"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.zoo]
name = "zoo"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "ZOO_KEY"
request_max_retries = 0
stream_max_retries = 0
"""
    }


def _opencode(url: str, home: Path, key: str) -> dict[str, str]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/v1", "apiKey": key},
        "models": {MODEL: {"limit": {"context": 200_000, "output": 4000}}},
    }
    settings = {
        "autoupdate": False,
        "share": "disabled",
        "enabled_providers": ["zoo"],
        "provider": {"zoo": provider},
        "permission": {"bash": "allow"},
    }
    return {"work/opencode.json": json.dumps(settings)}


def _pi(url: str, home: Path, key: str) -> dict[str, str]:
    model = {"id": MODEL, "input": ["text"], "contextWindow": 200_000, "maxTokens": 4000}
    zoo = {"baseUrl": f"{url}/v1", "api": "openai-completions", "apiKey": key, "models": [model]}
    return {
        "models.json": json.dumps({"providers": {"zoo": zoo}}),
        "settings.json": json.dumps({"retry": {"enabled": False}}),
    }


#: The agents by name.
AGENTS: Mapping[str, Agent] = {
    "codex": Agent(
        program="codex",
        api="/v1/responses",
        command=lambda prompt, goes_on: [
            "exec",
            *(("resume", "--last") if goes_on else ()),
            *("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", prompt),
        ],
        variables=lambda url, home, key: {"CODEX_HOME": str(home), "ZOO_KEY": key},
        files=_codex,
        call=_shell("exec_command", "cmd"),
    ),
    "claude-code": Agent(
        program="claude",
        api="/v1/messages",
        command=lambda prompt, goes_on: [
            *(("-c",) if goes_on else ()),
            *("-p", prompt, "--allowedTools", "Bash"),
        ],
        variables=lambda url, home, key: {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_AUTH_TOKEN": key,
            "ANTHROPIC_MODEL": MODEL,
            "ANTHROPIC_SMALL_FAST_MODEL": MODEL,
            "CLAUDE_CONFIG_DIR": str(home),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_RETRIES": "0",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "DISABLE_TELEMETRY": "1",
        },
        call=_shell("Bash", "command", description="Make a file"),
    ),
    "opencode": Agent(
        program="opencode",
        api="/v1/chat/completions",
        command=lambda prompt, goes_on: [
            *("run", "-m", f"zoo/{MODEL}"),
            *(("-c",) if goes_on else ()),
        ],
        variables=lambda url, home, key: {
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
        },
        files=_opencode,
        call=_shell("bash", "command", description="Make a file"),
        by_input=True,
    ),
    "qwen-code": Agent(
        program="qwen",
        api="/v1/chat/completions",
        command=lambda prompt, goes_on: [
            *(("-c",) if goes_on else ()),
            *("--auth-type", "openai", "--approval-mode", "yolo", "--chat-recording", "-p", prompt),
        ],
        variables=lambda url, home, key: {
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_KEY": key,
            "OPENAI_MODEL": MODEL,
            "QWEN_TELEMETRY_ENABLED": "0",
        },
        files=lambda *_: {
            ".qwen/settings.json": json.dumps(
                {
                    "general": {"disableAutoUpdate": True, "disableUpdateNag": True},
                    "privacy": {"usageStatisticsEnabled": False},
                    "model": {"generationConfig": {"maxRetries": 0}},
                }
            )
        },
        call=_shell("run_shell_command", "command", description="Make a file"),
    ),
    "pi": Agent(
        program="pi",
        api="/v1/chat/completions",
        command=lambda prompt, goes_on: [
            *(("-c",) if goes_on else ()),
            *("-p", "--provider", "zoo", "--model", MODEL, prompt),
        ],
        variables=lambda url, home, key: {"PI_CODING_AGENT_DIR": str(home), "PI_OFFLINE": "1"},
        files=_pi,
        call=_shell("bash", "command"),
    ),
    "aider": Agent(
        program="aider",
        api="/v1/chat/completions",
        command=lambda prompt, goes_on: [
            *(("--restore-chat-history",) if goes_on else ()),
            *("--model", f"openai/{MODEL}", "--edit-format", "whole", "--no-git", "--yes-always"),
            *("--no-show-model-warnings", "--no-check-update", "--analytics-disable"),
            *("--no-suggest-shell-commands", "--no-pretty", "--message", prompt),
        ],
        variables=lambda url, home, key: {
            "OPENAI_API_BASE": f"{url}/v1",
            "OPENAI_API_KEY": key,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
    ),
}


@dataclass(frozen=True, kw_only=True)
class Seat:
    """An agent in folders of its own, at a server.

    Args:
        agent: The agent.
        executable: Path of its program.
        folder: Folder of its configuration, and of its working folder `work`.
        url: URL of the server.
        exchanges: Exchanges with the server.
    """

    agent: Agent
    executable: Path
    folder: Path
    url: str
    exchanges: list[Exchange]

    @property
    def work(self) -> Path:
        """Working folder."""
        return self.folder / "work"

    def start(self, prompt: str, *, goes_on: bool = False, key: str = KEY) -> subprocess.Popen[str]:
        """Start the agent with a prompt.

        Args:
            prompt: The prompt.
            goes_on: Whether the last conversation goes on.
            key: API key.
        """
        agent = self.agent
        self.work.mkdir(parents=True, exist_ok=True)
        for name, text in agent.files(self.url, self.folder, key).items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        own = agent.variables(self.url, self.folder, key)
        beside = {"HOME": str(self.folder), "NO_PROXY": "*", "TERM": "dumb"}
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        given = prompt if agent.by_input else ""
        input_file = self.folder / "input.txt"
        input_file.write_text(given, encoding="utf-8")
        with input_file.open() as source:
            return subprocess.Popen(
                [str(self.executable), *agent.command(prompt, goes_on)],
                cwd=self.work,
                env={**kept, **beside, **own},
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    def run(self, prompt: str, **options: Any) -> str:
        """Run the agent with a prompt to its end; return what it prints."""
        process = self.start(prompt, **options)
        try:
            return process.communicate(timeout=_SECONDS)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise

    @property
    def turns(self) -> list[Exchange]:
        """Exchanges of the conversation: streams of the agent's API."""
        return [
            exchange
            for exchange in self.exchanges
            if exchange.path.startswith(self.agent.api) and _streams(exchange)
        ]


def _streams(exchange: Exchange) -> bool:
    return isinstance(exchange.body, dict) and exchange.body.get("stream") is True


def _tokens(exchange: Exchange) -> tuple[int, int]:
    """Return the number of prompt tokens of a streamed reply, and of those from the prefix cache."""

    def last(name: str) -> int:
        found = re.findall(rf'"{name}":\s*(\d+)', exchange.reply)
        return int(found[-1]) if found else 0

    if exchange.path.startswith("/v1/messages"):
        cached = last("cache_read_input_tokens")
        return last("input_tokens") + cached, cached
    return max(last("prompt_tokens"), last("input_tokens")), last("cached_tokens")


def turn(seat: Seat) -> None:
    """A turn, whose answer is streamed."""
    printed = seat.run("say Hello there")
    assert "Hello there" in printed, printed[-300:]
    assert [one.status for one in seat.turns] == [200] * len(seat.turns)
    assert seat.turns, "no stream was requested"


def tool_call(seat: Seat) -> None:
    """A call of a tool, whose result returns to the model."""
    if seat.agent.call:
        printed = seat.run(f"{seat.agent.call}\nsay It is RESULT in Rome.")
        assert re.search(r"It is .*31.*in Rome", printed, re.DOTALL), printed[-300:]
    else:  # an agent that edits by text
        printed = seat.run(f"say {_MADE}\\n```\\n31\\n```")
    assert (seat.work / _MADE).read_text().strip() == "31"


def second_turn(seat: Seat) -> None:
    """A second turn, whose prompt but for its end comes from the prefix cache."""
    seat.run("say Hello there")
    before = len(seat.turns)
    printed = seat.run("say Goodbye now", goes_on=True)
    assert "Goodbye now" in printed, printed[-300:]
    (first, _), (second, cached) = _tokens(seat.turns[before - 1]), _tokens(seat.turns[-1])
    assert second > first - _COMPUTED
    assert cached >= first - _COMPUTED, f"{cached} of {second} tokens after {first} were cached"


def refusal(seat: Seat) -> None:
    """A refusal of the server, which the agent shows."""
    printed = seat.run("say Hello there", key="wrong")
    assert "Hello there" not in printed.replace("say Hello there", ""), printed[-300:]
    assert any(exchange.status == 401 for exchange in seat.exchanges)
    assert re.search("401|key|auth", printed, re.IGNORECASE), printed[-300:]


def cancelled(seat: Seat) -> None:
    """A long answer, whose generation ends when its agent is stopped."""
    process = seat.start(f"say {'word ' * _WORDS}")
    try:
        _wait(lambda: any(one.reply.count("delta") > _BEGUN for one in seat.turns))
        assert _running(seat) > 0
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=_SECONDS)
    _wait(lambda: not _running(seat))
    assert max(one.reply.count("delta") for one in seat.turns) < _WORDS


def _running(seat: Seat) -> float:
    request = urllib.request.Request(
        f"{seat.url}/metrics", headers={"Authorization": f"Bearer {KEY}"}
    )
    with urllib.request.urlopen(request) as response:
        found = re.search(r"^qeff_zoo_requests_running\S* (\S+)$", response.read().decode(), re.M)
    assert found
    return float(found[1])


def _wait(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _SECONDS
    while not holds():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.1)


FLOWS = (turn, tool_call, second_turn, refusal, cancelled)


@contextmanager
def seated(agent: Agent, executable: Path, folder: Path, url: str) -> Iterator[Seat]:
    """Give an agent its folders, and a server.

    Args:
        agent: The agent.
        executable: Path of its program.
        folder: Its folder, which is emptied first.
        url: Base URL of the server.
    """
    shutil.rmtree(folder, ignore_errors=True)
    with recording(url) as (proxy, exchanges):
        yield Seat(
            agent=agent, executable=executable, folder=folder, url=proxy, exchanges=exchanges
        )


def is_wanted(text: str) -> bool:
    """Return whether the title of a flow of an agent has a text."""
    return any(text in f"{name}: {flow.__name__}" for name in AGENTS for flow in FLOWS)


def run(
    executables: Mapping[str, tuple[Path, str]], folder: Path, url: str, only: Sequence[str]
) -> list[dict[str, Any]]:
    """Run the flows of all agents; return a row for each.

    Args:
        executables: Path of the program and version by agent.
        folder: Folder for their folders.
        url: Base URL of the server of the scripted program.
        only: Texts, one of which the title of a flow has; empty for all.
    """
    rows = []
    for name, agent in AGENTS.items():
        executable, version = executables[name]
        for flow in FLOWS:
            title = f"{name}: {flow.__name__}"
            if only and not any(one in title for one in only):
                continue
            begun, reason = time.monotonic(), ""
            with seated(agent, executable, folder / name, url) as seat:
                try:
                    flow(seat)
                except Exception as error:  # a row of the table
                    line = traceback.extract_tb(error.__traceback__)[-1].lineno
                    shown = " ".join(str(error).split())[-300:]
                    reason = f"{type(error).__name__} at coding_agents.py:{line}: {shown}"
            row = {"client": f"{name} {version}", "flow": flow.__name__, "passed": not reason}
            rows.append({**row, "reason": reason, "seconds": round(time.monotonic() - begun, 1)})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows
