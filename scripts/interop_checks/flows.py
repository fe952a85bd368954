# SPDX-License-Identifier: Apache-2.0
"""Flows of genuine Python clients, run by the interpreter of their environment: `python flows.py URLS KNOWN [TEXT …]`.

URLS is a JSON object of base URLs. `trained` has a small trained model, `scripted` a model that follows the plan in the
user's message (`tests/helpers/scripted_program.py`), and the others have the models of their names. A line of JSON
comes out for each flow. A flow whose client is not installed here is left out: another environment has it. KNOWN is a
JSON list of the clients, with their versions, whose flows ran in another environment.
"""

import asyncio
import importlib.metadata
import importlib.util
import json
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

#: Modules with flows.
MODULES = (
    *("flows_openai", "flows_anthropic", "flows_ollama", "flows_cohere", "flows_huggingface"),
    *("flows_frameworks", "flows_langchain"),
)
FLOWS: list[tuple[str, str, Callable[[Any], object]]] = []
QUESTION = "What is collections.OrderedDict?"
CHAT = [{"role": "user", "content": QUESTION}]
CALL = 'call get_weather {"city": "Rome"}\nsay It is RESULT in Rome.'
ANSWER = "It is 31 C in Rome."
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION = {"name": "get_weather", "description": "Temperature of a city.", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}


def flow(client: str) -> Callable[[Callable[[Any], object]], Callable[[Any], object]]:
    """Register a flow.

    Args:
        client: Module of the client.
    """

    def register(function: Callable[[Any], object]) -> Callable[[Any], object]:
        FLOWS.append((client, function.__name__, function))
        return function

    return register


def get_weather(city: str) -> str:
    """Temperature of a city.

    Args:
        city: Name of the city.
    """
    assert city in ("Rome", "Oslo")
    return "31 C" if city == "Rome" else "3 C"


def _version(client: str) -> str:
    """Return the version of a module's distribution."""
    names = importlib.metadata.packages_distributions()[client]
    return importlib.metadata.version(min(names, key=len))


def main() -> None:
    """Run the flows whose client is installed and whose name has one of the texts."""
    urls = SimpleNamespace(**json.loads(sys.argv[1]))
    known, wanted = json.loads(sys.argv[2]), sys.argv[3:] or [""]
    for module in MODULES:
        importlib.import_module(module)
    for client, name, function in FLOWS:
        title = f"{client}: {name}"
        found = importlib.util.find_spec(client.partition(".")[0]) is not None
        if not found or not any(one in title for one in wanted):
            continue
        versioned = f"{client} {_version(client)}"
        if versioned in known:
            continue
        begun = time.monotonic()
        try:
            result = function(urls)
            if asyncio.iscoroutine(result):
                asyncio.run(result)
            reason = ""
        except Exception as error:  # a row of the table
            trace = traceback.extract_tb(error.__traceback__)
            ours = next((one for one in reversed(trace) if "flows_" in one.filename), trace[-1])
            shown = " ".join(str(error).split())[:300]
            reason = f"{type(error).__name__} at {Path(ours.filename).name}:{ours.lineno}: {shown}"
        row = {
            "client": versioned,
            "flow": name,
            "passed": not reason,
            "reason": reason,
        }
        row["seconds"] = round(time.monotonic() - begun, 1)
        print(f"\n{json.dumps(row)}", flush=True)  # a client may have left a line open


if __name__ == "__main__":
    sys.modules["flows"] = sys.modules["__main__"]
    main()
