# SPDX-License-Identifier: Apache-2.0
"""Flows of genuine clients on three servers: of several small packages, of the scripted program, and of embeddings."""

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from interop_checks import coding_agents
from interop_checks.packages import package
from interop_checks.reasons import FAILS, PASS

FOLDER = Path(__file__).parent
KEY = "sesame"
#: Python clients by environment: some need different major versions of `openai`.
ENVIRONMENTS = {
    "python": (
        "openai",
        "anthropic",
        "ollama",
        "langchain-openai",
        "openai-agents",
        "instructor",
        "llama-index-llms-openai-like",
    ),
    "python-more": (
        *("cohere", "huggingface_hub", "numpy", "pydantic-ai-slim[openai]"),
        *("langchain-anthropic", "langchain-ollama", "langchain-openai", "langgraph"),
        "smolagents[openai]",
    ),
    "python-litellm": ("litellm",),
}
NODE = (
    "ai",
    "@ai-sdk/openai-compatible",
    "@ai-sdk/openai",
    "ollama-ai-provider-v2",
    "openai",
    "zod",
    "@langchain/core",
    "@langchain/langgraph",
    "@langchain/openai",
)
_SERVED = ("reranker", "speech", "vision")


def run(cache: Path, only: Sequence[str]) -> list[dict[str, Any]]:
    """Run the flows; return a row for each.

    Args:
        cache: Folder of environments and packages.
        only: Texts, one of which the title of a flow has; empty for all.
    """
    trained = package("generator", cache).path
    several = [f"{name}={package(name, cache).path}" for name in _SERVED]
    embeddings = str(package("embeddings", cache).path)
    rows: list[dict[str, Any]] = []
    with (
        serving("-m", "qeff_zoo", "serve", f"trained={trained}", *several) as real,
        serving(
            "-m", "interop_checks.scripted_server", str(trained), "--model-name", "scripted"
        ) as scripted,
        serving("-m", "qeff_zoo", "serve", embeddings, "--model-name", "embeddings") as embedding,
    ):
        others = {"scripted": scripted, "embeddings": embedding}
        urls = json.dumps(dict.fromkeys(("trained", *_SERVED), real) | others)
        for name, clients in ENVIRONMENTS.items():
            python = environment(cache / name, clients)
            command = [str(python), "-W", "ignore", str(FOLDER / "flows.py"), urls]
            rows += _rows([*command, json.dumps([row["client"] for row in rows]), *only])
        modules = _node_modules(cache / "node", NODE)
        rows += _rows(["node", str(FOLDER / "flows.mjs"), str(modules), urls, *only])
        if not only or any(coding_agents.is_wanted(one) for one in only):
            rows += coding_agents.run(programs(cache), cache / "seats", scripted, only)
    date = datetime.now(UTC).date().isoformat()
    return [{"result": PASS if row.pop("passed") else FAILS, **row, "date": date} for row in rows]


@contextmanager
def serving(*command: str) -> Iterator[str]:
    """Run a server in a process; yield its base URL."""
    flags = ["--port", "0", "--api-key", KEY, "--threads", "1", "--request-log", "none"]
    whole = [sys.executable, "-W", "ignore", *command, *flags]
    with subprocess.Popen(whole, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            if not url:
                raise subprocess.CalledProcessError(process.wait(), whole)
            yield url
        finally:
            process.terminate()


def environment(folder: Path, clients: Sequence[str], *, has_own: bool = False) -> Path:
    """Return the interpreter of an environment with clients, made once.

    Args:
        folder: Folder of the environment.
        clients: Requirements of the clients.
        has_own: Whether it also has the packages of this environment.
    """
    python, done = folder / "bin" / "python", folder / "clients.json"
    if not done.exists() or json.loads(done.read_bytes()) != [*clients]:
        print(f"Installing {', '.join(clients)}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        if has_own:
            (packages,) = folder.glob("lib/python*/site-packages")
            (packages / "own.pth").write_text(sysconfig.get_path("purelib"))
        subprocess.run([str(python), "-m", "pip", "install", "-q", *clients], check=True)
        done.write_text(json.dumps(clients))
    return python


def programs(cache: Path) -> dict[str, tuple[Path, str]]:
    """Return the programs and the versions of the coding agents, installed once.

    Args:
        cache: Folder of environments and packages.
    """
    modules = _node_modules(cache / "agents", coding_agents.PACKAGES) / "node_modules"
    python = environment(cache / "aider", coding_agents.AIDER)
    shown = subprocess.run(
        [str(python), "-c", "from importlib.metadata import version; print(version('aider-chat'))"],
        check=True,
        capture_output=True,
        text=True,
    )
    found = {"aider": (python.with_name("aider"), shown.stdout.strip())}
    for name, package_name in zip(coding_agents.AGENTS, coding_agents.PACKAGES, strict=False):
        version = json.loads((modules / package_name / "package.json").read_bytes())["version"]
        found[name] = (modules / ".bin" / coding_agents.AGENTS[name].program, version)
    return found


def _node_modules(folder: Path, packages: Sequence[str]) -> Path:
    """Return a folder with npm packages, made once."""
    done = folder / "clients.json"
    if not done.exists() or json.loads(done.read_bytes()) != [*packages]:
        print(f"Installing {', '.join(packages)}", file=sys.stderr)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text("{}")
        command = ["npm", "install", "--no-fund", "--no-audit", *packages]
        subprocess.run(command, cwd=folder, check=True)
        done.write_text(json.dumps(packages))
    return folder


def _rows(command: Sequence[str]) -> list[dict[str, Any]]:
    """Run flows in a process, showing each as it ends."""
    rows = []
    quiet = {
        "HF_HUB_OFFLINE": "0",  # otherwise Hugging Face's client reaches no server at all
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "PYTHONPATH": str(FOLDER),
    }
    environment = {**os.environ, **quiet}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith('{"client"'):
                rows.append(json.loads(line))
                print(line, end="", file=sys.stderr)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return rows
