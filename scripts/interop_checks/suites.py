# SPDX-License-Identifier: Apache-2.0
"""Server tests of llama.cpp and vLLM, from their source distributions, on servers of this project."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interop_checks.reasons import result_of
from interop_checks.sources import unpacked

#: Modules that the suites import, and that the environment of this project lacks.
TOOLS = ("httpx", "httpcore", "pytest-asyncio", "tblib", "cloudpickle", "pybase64")


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Tests of another server.

    Args:
        name: Name of the server.
        distribution: Name of the source distribution in the package registry.
        members: Parts of the paths that are unpacked.
        folder: Folder in the distribution where pytest runs.
        plugin: Module of the pytest plugin that replaces the servers.
        tests: Files and folders of tests.
        options: Further arguments of pytest.
    """

    name: str
    distribution: str
    members: tuple[str, ...]
    folder: str
    plugin: str
    tests: tuple[str, ...]
    options: tuple[str, ...] = ()

    def run(self, cache: Path, only: Sequence[str]) -> list[dict[str, Any]]:
        """Run the tests; return a row for each, with those of the last whole run for the tests that do not run.

        Args:
            cache: Folder of the sources and packages.
            only: Files of tests; empty for all.
        """
        source = unpacked(self.distribution, self.members, cache / "sources") / self.folder
        outcomes = cache / f"{self.name}.part.jsonl"
        outcomes.unlink(missing_ok=True)
        paths = [os.environ.get("PYTHONPATH", ""), str(_tools(cache / "tools"))]
        environment = {
            **os.environ,
            "INTEROP_CACHE": str(cache),
            "INTEROP_OUTCOMES": str(outcomes),
            "PYTHONPATH": os.pathsep.join(paths),
        }
        # A build takes longer than the time of one test.
        building = [sys.executable, "-W", "ignore", "-m", "interop_checks.packages", str(cache)]
        subprocess.run(building, env=environment, check=True)
        plugins = [f"interop_checks.{self.plugin}", "interop_checks.outcomes", "no:cacheprovider"]
        command = [sys.executable, "-W", "ignore", "-m", "pytest", "-q", "--tb=line"]
        command += ["--continue-on-collection-errors", *self.options]
        command += [word for plugin in plugins for word in ("-p", plugin)]
        subprocess.run([*command, *(only or self.tests)], cwd=source, env=environment, check=False)
        found = _outcomes(outcomes)
        if only:
            found = {**_outcomes(self.whole(cache)), **found}
        if not only or self.whole(cache).exists():
            outcomes.write_text("".join(f"{json.dumps(row)}\n" for row in found.values()))
            outcomes.replace(self.whole(cache))
        return [_row(self.name, row) for row in found.values()]

    def whole(self, cache: Path) -> Path:
        """Return the file of the outcomes of all tests."""
        return cache / f"{self.name}.jsonl"


SUITES: Mapping[str, Suite] = {
    "llama.cpp": Suite(
        name="llama.cpp",
        distribution="llama-cpp-python",
        members=("/tools/server/tests/", "/models/templates/"),
        folder="vendor/llama.cpp/tools/server/tests",
        plugin="llama_cpp",
        tests=tuple(
            f"unit/test_{name}.py"
            for name in (
                *("basic", "chat_completion", "compat_anthropic", "compat_oai_responses"),
                *("completion", "embedding", "rerank", "security", "template", "tokenize"),
                *("tool_call", "ignore_eos", "infill", "metrics", "kv_keep_only_active"),
            )
        ),
    ),
    "vLLM": Suite(
        name="vLLM",
        distribution="vllm",
        members=("/tests/",),
        folder=".",
        plugin="vllm",
        tests=tuple(
            f"tests/entrypoints/{name}"
            for name in (
                *("openai", "anthropic", "serve/tokenize/test_tokenization.py"),
                *("serve/instrumentator/test_basic.py", "serve/instrumentator/test_metrics.py"),
                *("serve/middleware", "pooling", "speech_to_text/transcription"),
                *("speech_to_text/translation", "tool_parsers"),
            )
        ),
        options=(
            *("-c", os.devnull, "--rootdir", ".", "--confcutdir", "tests/entrypoints"),
            *("-p", "pytest_asyncio", "-p", "no:schemathesis", "-p", "no:hypothesispytest"),
        ),
    ),
}


def _outcomes(path: Path) -> dict[str, dict[str, str]]:
    """Return outcomes by test; none for a file that does not exist."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {row["test"]: row for row in map(json.loads, lines)}


def _row(suite: str, row: Mapping[str, str]) -> dict[str, str]:
    result, reason = result_of(suite, row)
    return {"result": result, "test": row["test"], "reason": reason}


def _tools(folder: Path) -> Path:
    """Return a folder with modules that the suites import, made once."""
    if not folder.exists():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps"]
        subprocess.run([*command, "--target", str(folder), *TOOLS], check=True)
    return folder
