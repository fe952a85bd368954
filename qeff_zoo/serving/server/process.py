# SPDX-License-Identifier: Apache-2.0
"""A server process: a socket, a session, and a graceful shutdown."""

import asyncio
import ipaddress
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, cast

import uvicorn
from starlette.types import ASGIApp

from qeff_zoo.contract import find
from qeff_zoo.contract.commands import DISAGGREGATED
from qeff_zoo.errors import ServingError
from qeff_zoo.package import Package
from qeff_zoo.package.memory import needed_memory
from qeff_zoo.runtime import PrefillServer, TextGenerationSession
from qeff_zoo.runtime.memory import available_memory
from qeff_zoo.runtime.text.chat_output.chat_format import NONE
from qeff_zoo.runtime.text.chat_template import ChatTemplate
from qeff_zoo.serving.apis.openai.responses.store import ResponseStore
from qeff_zoo.serving.apis.vllm.adapters import Sources
from qeff_zoo.serving.monitoring.metrics import Metrics
from qeff_zoo.serving.queues.workers import shared
from qeff_zoo.serving.server.app import (
    MAX_MEDIA_BYTES,
    body_bytes_of,
    create_app,
    ctx_len_of,
    endpoints,
    guarded,
    known_paths,
    service_of,
)
from qeff_zoo.serving.server.browsers import Hosts
from qeff_zoo.serving.server.connection import Connection
from qeff_zoo.serving.server.fleet import Fleet, Loaded, Member, check_budget
from qeff_zoo.serving.server.interpreter import settle, tune
from qeff_zoo.serving.server.middleware import ResponseCount
from qeff_zoo.serving.server.options import ServerOptions
from qeff_zoo.serving.server.services import Offer
from qeff_zoo.sessions import Session

if TYPE_CHECKING:
    from qeff_zoo.serving.monitoring.traces import Traces

_LOOPBACK = "127.0.0.1"
_KEEPALIVE = (
    60  # seconds of silence until the first TCP keepalive probe, and until the client is dropped
)
_HANGUP = getattr(signal, "SIGHUP", None)  # absent on Windows
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
    for number in (signal.SIGINT, signal.SIGTERM, _HANGUP):
        if number and signal.getsignal(number) != signal.SIG_IGN:
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


@contextmanager
def bind_unix(path: Path) -> Iterator[socket.socket]:
    """Bind a Unix socket that only this user can connect to; it is removed at the end.

    Args:
        path: Path of the socket, which must not exist.

    Raises:
        ServingError: The path is taken, or cannot be a socket.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        except OSError as error:
            raise ServingError(
                f"Cannot listen at {str(path)!r}: {error}. Expected a path that is not taken, in a folder that exists. "
                "Choose another --uds, or remove the socket of a server that has ended."
            ) from error
        finally:
            os.umask(before)
        try:
            yield listener
        finally:
            path.unlink(missing_ok=True)


def url_of(listener: socket.socket, scheme: str = "http") -> str:
    """Return the `base_url` for clients on this machine; `unix:PATH` for a Unix socket."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # no client can use those
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/v1"


def is_local(listener: socket.socket) -> bool:
    """Return whether an address is reachable from this machine alone."""
    if listener.family == socket.AF_UNIX:
        return True
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def check_package(name: str, package: Package, choices: ServerOptions) -> None:
    """Check that a package can be served with the options of a server, before it is loaded.

    Args:
        name: Name of the model.
        package: The package.
        choices: Options of the server.

    Raises:
        ServingError: It exceeds the memory budget, or has no chat template for the format of tool calls.
    """
    check_budget(name, needed_memory(package.manifest), choices.memory_budget)
    if choices.tool_parser in (None, NONE):
        return
    template = ChatTemplate.find(package.path)
    if template is None or not template.takes_tools:
        raise ServingError(
            f"--tool-parser is {choices.tool_parser!r}, and model {name!r} has no chat template that renders tools; "
            "expected one. Leave the flag out, or serve another model."
        )


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
        ServingError: The session's task has no API, or no worker starts.
    """
    tune()
    shared().check()
    with choices.traces() as traces, service_of(session).open(session, choices) as backend:
        app = create_app(
            backend,
            name=choices.name,
            fingerprint=choices.fingerprint,
            aliases=choices.aliases,
            api_keys=choices.api_keys,
            image_hosts=choices.image_hosts,
            adapter_sources=Sources.of(choices.allow_adapters) if choices.allow_adapters else None,
            hosts=Hosts.of(_address(listener), choices.allowed_hosts),
            origins=choices.allowed_origins,
            request_log=choices.request_log,
            page=choices.page,
            formats=choices.formats,
            strict_parameters=choices.strict_parameters,
            shares_prefixes=choices.shares_prefixes,
            quiet_paths=choices.quiet_paths,
            traces=traces,
        )
        server = Server.of(choices, app, backend.close, announce)
        server.run([listener])


def _address(listener: socket.socket) -> str:
    is_unix = listener.family == socket.AF_UNIX
    return _LOOPBACK if is_unix else str(listener.getsockname()[0])


def serve_several(
    packages: Mapping[str, tuple[Package, Callable[[], Session]]],
    listener: socket.socket,
    choices: ServerOptions,
    announce: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve several packages until SIGINT or SIGTERM, see `Fleet`.

    Args:
        packages: A package by the name of its model, with a function that opens its session.
        listener: Socket from `bind`.
        choices: Options of the server; name and fingerprint are those of each package.
        announce: Callback with the URL of the ready server.

    Raises:
        ServingError: A package exceeds the memory budget, or no worker starts.
    """
    tune()
    shared().check()
    store = ResponseStore()

    with choices.traces() as traces:

        def member(name: str, package: Package, open_session: Callable[[], Session]) -> Member:
            own = replace(choices, name=name, fingerprint=package.build_key, aliases=())
            load = partial(_loaded, package, open_session, own, store, traces)
            return Member(name=name, nbytes=needed_memory(package.manifest), load=load)

        fleet = Fleet(
            [member(name, *one) for name, one in packages.items()],
            budget=available_memory() if choices.memory_budget is None else choices.memory_budget,
            idle_seconds=choices.idle_timeout,
            store=store,
        )
        app = guarded(
            fleet,
            MAX_MEDIA_BYTES,
            api_keys=choices.api_keys,
            hosts=Hosts.of(_address(listener), choices.allowed_hosts),
            origins=choices.allowed_origins,
            request_log=choices.request_log,
            page=choices.page,
            quiet_paths=choices.quiet_paths,
            traces=traces,
        )
        server = Server.of(choices, app, fleet.close, announce)
        server.run([listener])


@contextmanager
def _loaded(
    package: Package,
    open_session: Callable[[], Session],
    choices: ServerOptions,
    store: ResponseStore,
    traces: "Traces | None",
) -> Iterator[Loaded]:
    """Load a package for a fleet, whose models share kept responses and traces."""
    session = open_session()
    with service_of(session).open(session, choices) as backend:
        metrics = Metrics(backend.stats, choices.name, ctx_len_of(backend), traces)
        offer = Offer(
            name=choices.name,
            aliases=(),
            fingerprint=choices.fingerprint,
            metrics=metrics,
            image_hosts=choices.image_hosts,
            adapter_sources=None,
            formats=choices.formats,
            store=store,
            strict_parameters=choices.strict_parameters,
            shares_prefixes=choices.shares_prefixes,
        )
        app, model = endpoints(backend, offer)
        yield Loaded(
            app=ResponseCount(app, metrics, known_paths()),
            model=model,
            metrics=metrics,
            max_body_bytes=body_bytes_of(session),
        )


class Server(uvicorn.Server):
    """uvicorn server with its own shutdown: running requests have a time limit, and get an error after it.

    Args:
        app: The served app.
        close: Function that cancels the running requests and waits for their end; called in a thread.
        patience: Time limit of running requests at shutdown, in seconds.
        announce: Callback with the URL of the ready server.
        tls: Files of the certificate chain and its private key; None for plain HTTP.
        keep_alive: Seconds until an idle connection ends.
    """

    def __init__(
        self,
        app: ASGIApp,
        close: Callable[[], object],
        patience: float,
        announce: Callable[[str], None],
        tls: tuple[str, str] | None = None,
        keep_alive: float = 5.0,
    ) -> None:
        chain, key = tls or (None, None)
        self._scheme = "https" if tls else "http"
        config = uvicorn.Config(
            app,
            http=Connection,
            lifespan="off",
            ws="none",
            log_config=None,  # warnings and errors go to stderr; stdout is the command's
            access_log=False,
            server_header=False,
            ssl_certfile=chain,
            ssl_keyfile=key,
            timeout_keep_alive=keep_alive,  # type: ignore[arg-type]  # any number of seconds
        )
        super().__init__(config)
        self._close, self._patience, self._announce = close, patience, announce
        self._hurry = False

    @classmethod
    def of(
        cls,
        choices: ServerOptions,
        app: ASGIApp,
        close: Callable[[], object],
        announce: Callable[[str], None],
    ) -> "Server":
        """Return the server of an app with options; for the arguments see the class."""
        patience, keep_alive = choices.shutdown_timeout, choices.keep_alive_timeout
        return cls(app, close, patience, announce, choices.tls, keep_alive)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and announce the URL."""
        for listener in sockets or ():
            try:
                listener.listen()
            except OSError as error:  # another server took the address since it was bound
                raise _taken(url_of(listener), error) from error
        await super().startup(sockets)
        settle()
        for listener in sockets or ():
            self._announce(url_of(listener, self._scheme))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse new requests, let running ones finish, and cancel them after the time limit."""
        closing = asyncio.create_task(self._close_in_time())
        await super().shutdown(sockets)
        closing.cancel()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Shut down on SIGHUP, too, unless it is ignored, as by `nohup`; the signal is not raised again at the end."""
        with super().capture_signals():
            is_main = threading.current_thread() is threading.main_thread()
            if (
                _HANGUP is None
                or not is_main
                or (before := signal.getsignal(_HANGUP)) == signal.SIG_IGN
            ):
                yield
                return
            signal.signal(_HANGUP, self.handle_exit)
            try:
                yield
            finally:
                signal.signal(_HANGUP, before)

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
