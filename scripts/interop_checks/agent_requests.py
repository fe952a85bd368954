# SPDX-License-Identifier: Apache-2.0
"""Requests of coding agents for the tests, short and without identifiers: those of a call of a tool and a second turn.

Of the bodies of an agent the first is whole, and the others have the fields that differ from it.
"""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from interop_checks.clients import programs, serving
from interop_checks.coding_agents import AGENTS, MODEL, seated, tool_call
from interop_checks.packages import package

REQUESTS = Path(__file__).parents[2] / "tests" / "agent_requests.json"
#: Longest text that is kept whole, and length of the beginning of a longer one.
_LONGEST, _KEPT = 220, 100
#: Number of characters of a description.
_DESCRIBED = 40
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
            first, *others = [scrubbed(turn.body, str(seat.folder)) for turn in seat.turns]
        changes = [
            {key: value for key, value in body.items() if first.get(key) != value}
            for body in others
        ]
        found[name] = {"version": version, "path": agent.api, "bodies": [first, *changes]}
    REQUESTS.write_text(written(found), encoding="utf-8")


def written(found: Mapping[str, Any]) -> str:
    """Return the text of the file, with a line for each body.

    Args:
        found: Version, path and bodies by agent.
    """
    agents = []
    for name, one in found.items():
        bodies = ",\n  ".join(json.dumps(body, ensure_ascii=False) for body in one["bodies"])
        head = json.dumps({key: one[key] for key in ("version", "path")})[:-1]
        agents.append(f'{json.dumps(name)}: {head}, "bodies": [\n  {bodies}\n ]}}')
    separator = ",\n "
    return f"{{\n {separator.join(agents)}\n}}\n"


def scrubbed(value: Any, folder: str) -> Any:
    """Return a part of a request with short texts, and without identifiers, paths and descriptions of arguments.

    Args:
        value: The part.
        folder: Folder of the agent.
    """
    if isinstance(value, dict):
        is_argument = isinstance(value.get("type"), str | list) and not value.keys() & {"name"}
        return {
            key: scrubbed(
                entry[:_DESCRIBED] if key == "description" and isinstance(entry, str) else entry,
                folder,
            )
            for key, entry in value.items()
            if not (is_argument and key == "description" and isinstance(entry, str))
        }
    if isinstance(value, list):
        return [scrubbed(item, folder) for item in value]
    if not isinstance(value, str):
        return value
    text = value.replace(folder, "/home/user").replace(folder.replace("/", "-"), "-home-user")
    text = _IDS.sub("0", text)
    blanks = text[len(text.rstrip()) :]
    return text if len(text) <= _LONGEST else f"{text[:_KEPT]} …{blanks}"


if __name__ == "__main__":
    cache = Path(sys.argv[1]).absolute()
    model = str(package("generator", cache).path)
    with serving("-m", "interop_checks.scripted_server", model, "--model-name", MODEL) as server:
        record(programs(cache), cache / "seats", server)
