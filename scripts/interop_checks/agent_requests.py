# SPDX-License-Identifier: Apache-2.0
"""Requests of coding agents for the tests: recorded from a tool call and a second turn, without identifiers."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from interop_checks.agents import AGENTS, seated, tool_call

REQUESTS = Path(__file__).parents[2] / "tests" / "agent_requests.json"
#: Longest text that is kept whole, and length of the beginning of a longer one.
_LONGEST, _KEPT = 220, 100
#: Identifiers: UUIDs, random parts of names, and digests.
_IDS = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}|(?<=_)[0-9A-Za-z]{20,}|[0-9a-f]{32,}")


def record(executables: Mapping[str, tuple[Path, str]], folder: Path, url: str) -> None:
    """Write the requests of all agents.

    Args:
        executables: Path of the program and version by agent.
        folder: Folder for their folders.
        url: Base URL of the server of the scripted program.
    """
    found = json.loads(REQUESTS.read_bytes()) if REQUESTS.exists() else {}
    for name, (executable, version) in executables.items():
        agent = AGENTS[name]
        with seated(agent, executable, folder / name, url) as seat:
            tool_call(seat)
            seat.run("say Goodbye now", goes_on=True)
            bodies = [scrubbed(one.body, str(seat.folder)) for one in seat.turns]
        found[name] = {"version": version, "path": agent.api, "bodies": bodies}
    REQUESTS.write_text(f"{json.dumps(found, indent=1, ensure_ascii=False)}\n", encoding="utf-8")


def scrubbed(value: Any, folder: str) -> Any:
    """Return a part of a request with short texts, and without identifiers and paths.

    Args:
        value: The part.
        folder: Folder of the agent.
    """
    if isinstance(value, dict):
        return {key: scrubbed(one, folder) for key, one in value.items()}
    if isinstance(value, list):
        return [scrubbed(one, folder) for one in value]
    if not isinstance(value, str):
        return value
    text = _IDS.sub("0", value.replace(folder, "/home/user"))
    return text if len(text) <= _LONGEST else f"{text[:_KEPT]} …"
