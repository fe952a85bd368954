# SPDX-License-Identifier: Apache-2.0
"""Options of a server, validated at construction."""

from dataclasses import dataclass

from qeff_zoo.errors import ServingError
from qeff_zoo.runtime.chat_output import check_parsers
from qeff_zoo.serving.adapters import Sources


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Options of a server.

    Args:
        name: Name of the model for clients.
        fingerprint: Build key of the package.
        api_key: Key that clients must send; None for none.
        max_queue: Maximum number of requests that wait for a batch slot.
        shutdown_timeout: Seconds for running requests to finish.
        prefill_from: Addresses of prefill servers, each `HOST:PORT`.
        image_hosts: Hosts from which images and videos are fetched for clients: `HOST` or `HOST:PORT`, at public
            addresses alone; none for no fetching.
        allow_adapters: Folders and Hub repositories that clients may load adapters from; none for no such endpoints.
        allowed_hosts: Names of the server for clients, besides `localhost` and its address, each `HOST` or
            `HOST:PORT`; `*` for any.
        allowed_origins: Origins of other web pages that may send requests, each as `https://HOST`; `*` for any.
        tool_parser: Name of the format of tool calls, "none", or None for the one of the chat template.
        reasoning_parser: Name of the format of reasoning, "none", or None for the one of the chat template.

    Raises:
        ServingError: A value is out of range.
    """

    name: str
    fingerprint: str
    api_key: str | None = None
    max_queue: int = 1024
    shutdown_timeout: float = 20.0
    prefill_from: tuple[str, ...] = ()
    image_hosts: tuple[str, ...] = ()
    allow_adapters: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    tool_parser: str | None = None
    reasoning_parser: str | None = None

    def __post_init__(self) -> None:
        check_parsers(self.tool_parser, self.reasoning_parser)
        Sources.of(self.allow_adapters)
        for name, value, fits, expected in (
            ("api_key", self.api_key, self.api_key != "", "at least one character, or no key"),
            ("max_queue", self.max_queue, self.max_queue >= 0, "0 or more"),
            ("shutdown_timeout", self.shutdown_timeout, self.shutdown_timeout >= 0, "0 or more"),
        ):
            if not fits:
                option = name.replace("_", "-")
                raise ServingError(
                    f"Cannot serve with {name} {value!r}; expected {expected}. Change --{option}."
                )
