# SPDX-License-Identifier: Apache-2.0
"""A server process: a socket, a session, and a graceful shutdown."""

import asyncio
import ipaddress
import signal
import socket
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from qeff_zoo.errors import ServingError
from qeff_zoo.runtime import (
    PrefillServer,
    Session,
    TextGenerationSession,
)
from qeff_zoo.serving.adapters import Sources
from qeff_zoo.serving.app import create_app, service_of
from qeff_zoo.serving.browsers import Hosts
from qeff_zoo.serving.connection import MAX_HEAD_BYTES, Connection
from qeff_zoo.serving.options import ServerOptions
from qeff_zoo.serving.tools import ChatFormats
from qeff_zoo.tasks import find
from qeff_zoo.tasks.commands import DISAGGREGATED

_KEEPALIVE = (
    60  # seconds of silence until the first TCP keepalive probe, and until the client is dropped
)
_SWITCH = 0.0005  # seconds that a thread may hold the GIL
_LAST_WORDS = 1  # second for clients to read why their request was cancelled


def serve_prefills(
    session: Session,
    listener: socket.socket,
    api_key: str | None,
    announce: Callable[[str], None],
) -> None:
    """Run prefill for decode servers until SIGINT or SIGTERM.

    Args:
        session: Session that the function owns.
        listener: Socket from `bind`.
        api_key: Key that decode servers must send; None for none.
        announce: Callback with the address of the ready server.

    Raises:
        ServingError: The session does not generate text.
    """
    if DISAGGREGATED[0] not in find(session.task).commands.serve_options:
        raise ServingError(
            f"Package {str(session.folder)!r} is for task {session.task!r}, which has no prompts to run; expected "
            "text-generation. Leave --role out."
        )
    server = PrefillServer(cast("TextGenerationSession", session), listener, api_key=api_key)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: server.close())
    host, port = listener.getsockname()[:2]
    listener.listen()
    announce(f"{f'[{host}]' if ':' in host else host}:{port}")
    server.serve()


def bind(host: str, port: int) -> socket.socket:
    """Bind an address, to detect a conflict before a model is loaded. Clients cannot connect yet.

    Args:
        host: An address or a host name of this machine.
        port: Port number; 0 for any free port.

    Raises:
        ServingError: The address is not available.
    """
    listener = None
    try:
        if not 0 <= port < 1 << 16:
            raise OverflowError("a port is a number below 65,536")  # noqa: TRY301
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # The option also applies to connections: clients on a failed machine would otherwise stay connected.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):  # where the system's own is two hours
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE // 4)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
        listener.bind(address)
    except (OSError, OverflowError) as error:
        if listener:
            listener.close()
        raise _taken(f"{host!r}, port {port}", error) from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the `base_url` for clients."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


def is_local(listener: socket.socket) -> bool:
    """Return whether an address is reachable from this machine alone."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def serve(
    session: Session,
    listener: socket.socket,
    choices: ServerOptions,
    announce: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve until SIGINT or SIGTERM; then finish the running requests, until a second signal or a timeout.

    Args:
        session: Session that the function owns.
        listener: Socket from `bind`.
        choices: Options of the server.
        announce: Callback with the URL of the ready server.

    Raises:
        ServingError: The session's task has no API.
    """
    sys.setswitchinterval(_SWITCH)
    with service_of(session).open(session, choices) as backend:
        app = create_app(
            backend,
            name=choices.name,
            fingerprint=choices.fingerprint,
            api_key=choices.api_key,
            image_hosts=choices.image_hosts,
            adapter_sources=Sources.of(choices.allow_adapters) if choices.allow_adapters else None,
            hosts=Hosts.of(listener.getsockname()[0], choices.allowed_hosts),
            origins=choices.allowed_origins,
            formats=ChatFormats(choices.tool_parser, choices.reasoning_parser),
        )
        Server(app, backend.close, choices.shutdown_timeout, announce).run([listener])


class Server(uvicorn.Server):
    """uvicorn server with its own shutdown: running requests have a time limit, and get an error after it.

    Args:
        app: The served app.
        close: Function that cancels the running requests and waits for their end; called in a thread.
        patience: Time limit of running requests at shutdown, in seconds.
        announce: Callback with the URL of the ready server.
    """

    def __init__(
        self,
        app: ASGIApp,
        close: Callable[[], object],
        patience: float,
        announce: Callable[[str], None],
    ) -> None:
        config = uvicorn.Config(
            app,
            http=Connection,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            lifespan="off",
            ws="none",
            log_config=None,  # warnings and errors go to stderr; stdout is the command's
            access_log=False,
            server_header=False,
        )
        super().__init__(config)
        self._close, self._patience, self._announce = close, patience, announce
        self._hurry = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and announce the URL."""
        for listener in sockets or ():
            try:
                listener.listen()
            except OSError as error:  # another server took the address since it was bound
                raise _taken(url_of(listener), error) from error
        await super().startup(sockets)
        for listener in sockets or ():
            self._announce(url_of(listener))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse new requests, let running ones finish, and cancel them after the time limit."""
        closing = asyncio.create_task(self._close_in_time())
        await super().shutdown(sockets)
        closing.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Shut down gracefully; on a second signal, cancel the running requests."""
        self._hurry = self.should_exit
        self.should_exit = True

    async def _close_in_time(self) -> None:
        end = time.monotonic() + self._patience
        while time.monotonic() < end and not self._hurry:
            await asyncio.sleep(0.1)
        await asyncio.to_thread(self._close)
        await asyncio.sleep(_LAST_WORDS)
        for connection in [*self.server_state.connections]:  # which neither send nor read
            connection.transport.abort()


def _taken(where: str, error: Exception) -> ServingError:
    return ServingError(
        f"Cannot listen at {where}: {error}. Expected an address of this machine and a free port. Choose "
        "another --host or --port."
    )
