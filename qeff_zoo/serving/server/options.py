# SPDX-License-Identifier: Apache-2.0
"""Options of a server, validated at construction."""

import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from qeff_zoo.errors import ServingError
from qeff_zoo.runtime.text.chat_output import check_parsers
from qeff_zoo.serving.apis.vllm.adapters import Sources
from qeff_zoo.serving.requests.tools import ChatFormats, ToolStrictLevel

if TYPE_CHECKING:
    from qeff_zoo.serving.monitoring.traces import Traces

#: Form of the lines of a request log.
RequestLog: TypeAlias = Literal["text", "json", "none"]


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Options of a server.

    Args:
        name: Name of the model for clients; empty for several models.
        aliases: Further names of the model.
        fingerprint: Build key of the package; empty for several models.
        api_keys: Keys, one of which clients must send; none for no key. Prefill servers get the first.
        max_queue: Maximum number of requests that wait for a batch slot.
        shutdown_timeout: Seconds for running requests to finish.
        prefill_from: Addresses of prefill servers, each `HOST:PORT`.
        generation_config: Whether the model's generation_config.json sets sampling defaults.
        image_hosts: Hosts from which images and videos are fetched for clients: `HOST` or `HOST:PORT`, at public
            addresses alone; none for no fetching.
        allow_adapters: Folders and Hub repositories that clients may load adapters from; none for no such endpoints.
        allowed_hosts: Names of the server for clients, besides `localhost` and its address, each `HOST` or
            `HOST:PORT`; `*` for any.
        memory_budget: Memory of all models of a server in bytes; None for the available memory.
        idle_timeout: Seconds without requests after which one of several models is unloaded; None for never.
        request_log: Form of the lines on stderr, one for each request; "none" for no lines.
        page: Whether the server has a page for people at `/`.
        tls: Files of the certificate chain and its private key; None for plain HTTP.
        allowed_origins: Origins of other web pages that may send requests, each as `https://HOST`; `*` for any.
        tool_parser: Name of the format of tool calls, "none", or None for the one of the chat template.
        reasoning_parser: Name of the format of reasoning, "none", or None for the one of the chat template.
        quiet_paths: Paths whose successful requests have no line in the log.
        keep_alive_timeout: Seconds until an idle connection ends.
        otlp_traces_endpoint: URL of a collector of traces, see `traces`; None for no traces.
        strict_parameters: Whether parameters and tools that change nothing are refused, see `leniency`.
        shares_prefixes: Whether clients with different keys share the prefix cache.
        tool_strict_level: Constraint of calls that are not required, see `tools`.
        disable_additional_properties: Whether objects of schemas without `additionalProperties` have no further keys.

    Raises:
        ServingError: A value is out of range.
    """

    name: str = ""
    fingerprint: str = ""
    aliases: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = ()
    max_queue: int = 1024
    shutdown_timeout: float = 20.0
    prefill_from: tuple[str, ...] = ()
    generation_config: bool = True
    image_hosts: tuple[str, ...] = ()
    allow_adapters: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    request_log: RequestLog = "text"
    memory_budget: int | None = None
    idle_timeout: float | None = None
    page: bool = True
    tls: tuple[str, str] | None = None
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    strict_parameters: bool = False
    shares_prefixes: bool = False
    tool_strict_level: ToolStrictLevel = "auto"
    disable_additional_properties: bool = False
    quiet_paths: tuple[str, ...] = ()
    keep_alive_timeout: float = 5.0
    otlp_traces_endpoint: str | None = None

    def __post_init__(self) -> None:
        check_parsers(self.tool_parser, self.reasoning_parser)
        Sources.of(self.allow_adapters)
        for name, value, fits, expected in (
            ("api_key", "", "" not in self.api_keys, "at least one character, or no key"),
            ("max_queue", self.max_queue, self.max_queue >= 0, "0 or more"),
            ("idle_timeout", self.idle_timeout, (self.idle_timeout or 0) >= 0, "0 or more"),
            ("memory_budget", self.memory_budget, self.memory_budget != 0, "1 byte or more"),
            (
                "keep_alive_timeout",
                self.keep_alive_timeout,
                self.keep_alive_timeout > 0,
                "more than 0",
            ),
            ("shutdown_timeout", self.shutdown_timeout, self.shutdown_timeout >= 0, "0 or more"),
        ):
            if not fits:
                option = name.replace("_", "-")
                raise ServingError(
                    f"Cannot serve with {name} {value!r}; expected {expected}. Change --{option}."
                )
        if self.tls is not None:
            _check_certificate(*self.tls)
        if self.otlp_traces_endpoint is not None:
            from qeff_zoo.serving.monitoring.traces import check_endpoint  # by the extra `otel`

            check_endpoint(self.otlp_traces_endpoint)

    @contextmanager
    def traces(self) -> "Iterator[Traces | None]":
        """Open the traces of a server; None without an endpoint. At the end, those that were not sent yet are sent."""
        if self.otlp_traces_endpoint is None:
            yield None
            return
        from qeff_zoo.serving.monitoring.traces import Traces

        with closing(Traces(self.otlp_traces_endpoint)) as traces:
            yield traces

    @property
    def formats(self) -> ChatFormats:
        """Formats of chats, and what holds for outputs in them."""
        return ChatFormats(
            self.tool_parser,
            self.reasoning_parser,
            self.tool_strict_level,
            self.disable_additional_properties,
        )

    @property
    def api_key(self) -> str | None:
        """First key; None for no key."""
        return self.api_keys[0] if self.api_keys else None


def _check_certificate(chain: str, key: str) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(chain, key, lambda: "")
    except (OSError, ValueError) as error:
        raise ServingError(
            f"Cannot serve with the certificate {chain!r} and the key {key!r}: {error}. Expected a chain in PEM, and "
            "its private key without a password. Change --ssl-certfile or --ssl-keyfile."
        ) from error
