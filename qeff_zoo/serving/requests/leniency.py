# SPDX-License-Identifier: Apache-2.0
"""Parameters and tools that clients send by default and that change no output: ignored, counted, logged once a kind.

Agents and desktop clients send hints to other services, and tools that those run themselves. One unknown key must not
end every request of such a client; a server that runs with `--strict-parameters` refuses them by name.
"""

import logging
import re
from collections.abc import Callable, Collection
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from qeff_zoo.serving.errors import brief, unknown_parameter

_log = logging.getLogger(__name__)

#: Parameters that change no output of any model here: names of conversations, hints to caches, regions and speeds.
HARMLESS = frozenset(
    {
        "anthropic_beta", "betas", "cache_control", "chat_id", "client_metadata", "dynatemp_exponent",
        "guided_decoding_backend", "id_slot", "inference_geo", "keep_alive", "max_tool_calls", "models", "moderation",
        "n_discard", "n_keep", "parent_id", "prediction", "provider", "reasoning_summary", "return_progress", "route",
        "session_id", "slot_id", "speculative.n_max", "speculative.n_min", "speculative.p_min", "speed",
        "timings_per_token", "trace_id", "ttl", "usage", "verbosity", "web_search_options",
    }
)  # fmt: skip
#: Keys beside a function, and kinds of tools, that have a count of their own; what clients invent is counted together.
_COUNTED = frozenset(
    {
        *HARMLESS, "truncation",
        *("n_indent", "response_fields", "samplers", "t_max_predict_ms", "t_max_prompt_ms"),
        *(f"tools.{name}" for name in (
            "allowed_callers", "annotations", "cache_control", "defer_loading", "eager_input_streaming", "examples",
            "input_examples", "output_schema", "return", "strict", "title",
        )),
        *(f"tools.type={name}" for name in (
            "apply_patch", "bash", "code_execution", "code_interpreter", "computer", "computer_use_preview", "custom",
            "file_search", "image_generation", "local_shell", "mcp", "memory", "shell", "str_replace_based_edit_tool",
            "text_editor", "tool_search", "web_fetch", "web_search", "web_search_preview",
        )),
        *(f"input.type={name}" for name in (
            "code_interpreter_call", "file_search_call", "image_generation_call", "mcp_approval_request",
            "mcp_approval_response", "mcp_list_tools", "web_search_call",
        )),
        *(f"messages.type={name}" for name in (
            "bash_code_execution_tool_result", "code_execution_tool_result", "mcp_tool_result", "mcp_tool_use",
            "server_tool_use", "tool_reference", "web_fetch_tool_result", "web_search_tool_result",
        )),
    }
)  # fmt: skip
#: Date of a version, as in `web_search_20250305` and `web_search_preview_2025_03_11`.
_VERSION = re.compile(r"_20\d\d_?\d\d_?\d\d$")


@dataclass(frozen=True)
class Leniency:
    """Treatment of parameters and tools that change nothing.

    Args:
        count: Function that counts an ignored parameter by its label.
        strict: Whether such parameters are refused instead.
    """

    count: Callable[[str], object] = lambda _: None
    strict: bool = False
    _logged: set[str] = field(default_factory=set)

    def ignore(self, name: str, value: object) -> None:
        """Ignore a parameter; `tools.type=KIND` for a tool that the server does not run.

        Raises:
            ApiError: The server refuses such parameters.
        """
        if self.strict:
            refusal = unknown_parameter(name, value)
            refusal.param = name.partition(".")[0]
            raise refusal
        known = _VERSION.sub("", name)
        label = known if known in _COUNTED else f"{name.partition('=')[0].partition('.')[0]}.other"
        self.count(label)
        if label not in self._logged:
            self._logged.add(label)
            _log.warning(
                "Ignored %s of a request, which this server does not use. Others of that kind are ignored too, and "
                "counted as %s in qeff_zoo_ignored_parameters_total; --strict-parameters refuses them.",
                brief(name),
                label,
            )


_current: ContextVar[Leniency] = ContextVar("leniency", default=Leniency())  # noqa: B039 -- replaced, never changed


class Lenient:
    """Middleware that sets the leniency of requests.

    Args:
        app: Wrapped application.
        leniency: Leniency of the server.
    """

    def __init__(self, app: ASGIApp, leniency: Leniency) -> None:
        self._app, self._leniency = app, leniency

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        token = _current.set(self._leniency)
        try:
            await self._app(scope, receive, send)
        finally:
            _current.reset(token)


def ignore(name: str, value: object) -> None:
    """Ignore a parameter of the current request, see `Leniency.ignore`.

    Raises:
        ApiError: The server refuses such parameters.
    """
    _current.get().ignore(name, value)


def without_hints(values: Any, known: Collection[str]) -> Any:
    """Return a part of a tool's definition without keys that are not in `known`; values that are no object as they are.

    Raises:
        ApiError: It has such keys, and the server refuses them.
    """
    if not isinstance(values, dict):
        return values
    kept = {}
    for name, value in values.items():
        if name in known:
            kept[name] = value
        elif value is not None:
            ignore(f"tools.{name}", value)
    return kept


def callable_tools(tools: Any, kinds: Collection[str]) -> Any:
    """Return the tools of a request that a model calls and its client runs; a value that is no list as it is.

    Args:
        tools: The tools.
        kinds: Kinds of tools that the API of the request has calls of.

    Raises:
        ApiError: There are other tools, and the server refuses them.
    """
    if not isinstance(tools, list):
        return tools
    kept = []
    for tool in tools:
        kind = tool.get("type") if isinstance(tool, dict) else None
        if not isinstance(kind, str) or kind in kinds:
            kept.append(tool)
        else:
            ignore(f"tools.type={kind}", tool)
    return kept
