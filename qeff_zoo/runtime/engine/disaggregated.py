# SPDX-License-Identifier: Apache-2.0
"""Handover of a prompt's states from the process that computed them to the one that decodes.

A `PrefillServer` runs prompts; the engine of another process sends requests through `Prefills`, writes the states
into a batch slot and continues from there. A reply has arrays whose sizes are known to both: the logits after the
prompt, and every state. Two processes on one machine pass them through a file in shared memory. Each message
identifies the model, the precision and the states; a mismatch is rejected. A connection begins with a greeting
(`qeff_zoo.runtime.engine.admission`).

The server encodes images if the client has no program for that: pixels go to the server, features come back. The
features are part of the prompt from then on, so that any server can run it, and both sides compute the same
positions.
"""

import hashlib
import json
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from qeff_zoo.errors import GenerationError, HandoffError, PackageError
from qeff_zoo.package.files import read_json
from qeff_zoo.runtime.caches.feature_cache import RemoteEncoder, digest_of
from qeff_zoo.runtime.decoding.decoder import Decoder
from qeff_zoo.runtime.decoding.multimodal_spans import Encoded, MultimodalSpans
from qeff_zoo.runtime.engine import wire
from qeff_zoo.runtime.engine.admission import PATIENCE, Door, greeting
from qeff_zoo.runtime.engine.answers import Handover
from qeff_zoo.runtime.engine.text_generation import TextGenerationSession
from qeff_zoo.runtime.program import Array

_VERSION = wire.VERSION
_CONNECT, _ANSWER = 5.0, 120.0  # seconds
_LOGITS = "logits"
_SHARED = Path("/dev/shm")
_ACCEPT = 0.2  # seconds between checks for the server's end
_MOST_CLIENTS = 256  # at a time, each with a thread
_LOG = logging.getLogger(__name__)
#: Allocates the arrays of a reply from the server's message.
_Room: TypeAlias = Callable[[Mapping[str, Any]], dict[str, Array]]


def terms_of(session: TextGenerationSession, *, reads: bool = False) -> dict[str, str]:
    """Return the terms of states: the model, its precision, and their layout, each as a digest.

    Packages may differ in the sizes of calls and of the context; a handover requires equal terms.

    Args:
        session: Session of the states.
        reads: Whether the states are read; else they are only written.

    Raises:
        HandoffError: If the device keeps the states, and the host cannot access them.
    """
    decoder = session.decoder
    if not decoder.movable and (reads or decoder.program.memory is None):
        raise HandoffError(
            f"Package {str(session.folder)!r} runs on a device that keeps its states; expected states that can be "
            f"{'read' if reads else 'written'}. Hand over between packages for target 'ort', or for 'qaic' from one of "
            "--prefill-only to one of --decode-only, without --mxint8-kv-cache."
        )
    manifest = read_json(session.folder / "manifest.json")
    numerics = manifest["programs"][0]["numerics"]  # of the language model
    layout = decoder.layout
    terms = {"model": manifest["spec"]["sources"], "precision": numerics, "layout": layout}
    return {
        name: hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
        for name, value in terms.items()
    }


class PrefillServer:
    """Server that runs prompts for other processes, one after another.

    Args:
        session: Session that the server holds until `close`.
        listener: A bound socket that does not listen yet.
        api_key: Key that clients must send; None for no key.

    Raises:
        HandoffError: If the session's states cannot be read.
        GenerationError: If the session is in use.
    """

    def __init__(
        self, session: TextGenerationSession, listener: socket.socket, *, api_key: str | None = None
    ) -> None:
        self._session, self._listener, self._key = session, listener, api_key
        self._room = threading.BoundedSemaphore(_MOST_CLIENTS)
        self._terms = terms_of(session, reads=True)
        self._closing = threading.Event()
        self._computing = threading.Lock()
        self._lease = session.exclusively()
        self._scheduler = self._lease.__enter__()

    def serve(self) -> None:
        """Serve until `close`, with a separate thread for each client that has sent the key."""
        self._listener.listen()
        door = Door(self._listener, self._key)
        try:
            while not self._closing.is_set():
                for client in door.admitted(_ACCEPT):
                    if self._room.acquire(blocking=False):
                        threading.Thread(target=self._attend, args=(client,), daemon=True).start()
                    else:
                        door.refuse(
                            client,
                            HandoffError(
                                f"The prefill server answers {_MOST_CLIENTS} clients already; expected fewer. Ask "
                                "another one."
                            ),
                        )
        finally:
            door.close()
            with self._computing:
                self._lease.__exit__(None, None, None)

    def close(self) -> None:
        """End `serve` after the running prompt, from any thread."""
        self._closing.set()

    def _attend(self, client: socket.socket) -> None:
        with client:  # closed last: a client that sees the end finds room for its next connection
            try:
                with suppress(EOFError, OSError):  # the client has disconnected
                    self._answer(client, time.monotonic() + _ANSWER)
            finally:
                self._room.release()

    def _answer(self, client: socket.socket, until: float) -> None:
        try:
            request = wire.receive(client, until)
            _check(request, self._terms, "The client")
            groups = wire.room_for(request.get("arrays", []))
            for array in (value for group in groups for value in group.values()):
                wire.fill(client, array, until)
            reply, arrays = self._serve(request, groups)
        except GenerationError as error:
            client.settimeout(PATIENCE)
            wire.send(client, {"version": _VERSION, "error": str(error)})
            client.shutdown(socket.SHUT_WR)
            end = time.monotonic() + PATIENCE
            while client.recv(1 << 16) and time.monotonic() < end:
                pass  # closing while the client still sends would lose the error
            return
        client.settimeout(_ANSWER)
        self._pass_on(client, reply, arrays, shared=request.get("shared") is True)

    def _serve(
        self, request: Mapping[str, Any], groups: Sequence[Mapping[str, Array]]
    ) -> tuple[dict[str, Any], list[Array]]:
        """Encode an image, or run a prompt; return the reply and its arrays."""
        if "prompt" not in request:
            (prepared,) = groups or ({},)
            encoded = self._read(prepared)
            reply = {"grid": encoded.grid, "arrays": wire.sizes_of([encoded.features])}
            return reply, [*encoded.features.values()]
        handover = self._run(request["prompt"], request.get("grids", []), groups)
        return {}, [handover.logits, *(handover.states[name] for name in sorted(handover.states))]

    def _read(self, prepared: Mapping[str, Array]) -> Encoded:
        if self._session.reader is None:
            raise HandoffError(
                f"Package {str(self._session.folder)!r} reads no images; expected one that does. Serve a package of "
                "an image-text-to-text model with --role prefill."
            )
        try:
            encoded: Encoded = self._session.reader.look(prepared)
        except (PackageError, LookupError, TypeError, ValueError) as error:
            raise HandoffError(
                f"An image is {wire.sizes_of([prepared])[0]}, which cannot be read ({error}); expected what the "
                "checkpoint's own processor makes of one. Prepare it with that."
            ) from error
        return encoded

    def _run(self, prompt: Any, grids: Any, groups: Sequence[Mapping[str, Array]]) -> Handover:
        if not (isinstance(prompt, list) and all(type(token) is int for token in prompt)):
            raise HandoffError(
                f"A prompt is {type(prompt).__name__}; expected a list of token ids. Ask as `Prefills` does."
            )
        spans = None
        if groups and self._session.reader:
            parts = _parts(grids, groups)
            spans = self._session.request_of_parts(prompt, parts, generation_len=1).spans
        else:
            self._session.request(prompt, generation_len=1)
        with self._computing:
            if self._closing.is_set():
                raise HandoffError(
                    "The prefill server is closing; expected one that runs. Ask another one."
                )
            logits = self._scheduler.run_prompt(prompt, spans)
            return Handover(logits, self._session.decoder.save(0, 0, len(prompt)))

    def _pass_on(
        self,
        client: socket.socket,
        found: Mapping[str, Any],
        arrays: Sequence[Array],
        *,
        shared: bool,
    ) -> None:
        reply = {"version": _VERSION, "terms": self._terms, **found}
        if not (shared and _SHARED.is_dir()):
            wire.send(client, reply, arrays)
            return
        path = _SHARED / f"qeff-zoo-{secrets.token_hex(16)}"
        try:
            path.touch(0o600, exist_ok=False)
            with path.open("wb") as file:
                for array in arrays:
                    file.write(wire.as_bytes(array))
            wire.send(client, {**reply, "file": path.name})
            client.recv(1)  # the client has read the file, or has disconnected
        finally:
            path.unlink(missing_ok=True)


class Prefills:
    """Prefill servers, used round-robin until `close`.

    Args:
        session: Session that continues the prompts.
        addresses: Addresses of the servers, each `HOST:PORT`.
        api_key: Key of the servers.

    Raises:
        HandoffError: If there is no server, an address is invalid, or the session's states cannot be written.
    """

    def __init__(
        self,
        session: TextGenerationSession,
        addresses: Sequence[str],
        *,
        api_key: str | None = None,
    ) -> None:
        if not addresses:
            raise HandoffError(
                "No prefill server is named; expected the address of at least one. Give --prefill-from HOST:PORT."
            )
        self.addresses = [_address(address) for address in addresses]
        self._decoder, self._terms, self._key = session.decoder, terms_of(session), api_key
        if isinstance(session.reader, RemoteEncoder):
            session.reader.request_features = self.read
        self._turns = count()
        self._changed, self._connections, self._closed = (
            threading.Lock(),
            set[socket.socket](),
            False,
        )

    def close(self) -> None:
        """Cancel pending requests, from any thread, and send no more."""
        with self._changed:
            self._closed = True
            for connection in self._connections:
                with suppress(OSError):  # the server has disconnected already
                    connection.shutdown(socket.SHUT_RDWR)

    def run(self, prompt: Sequence[int], spans: MultimodalSpans | None = None) -> Handover:
        """Run a prompt on one of the servers; after a failure on the next one.

        Args:
            prompt: Token ids that fit the context.
            spans: Images or audio of the prompt.

        Raises:
            HandoffError: If all servers failed; the message is that of the last.
        """
        parts = spans.parts if spans else ()
        features = [part.features for part in parts]
        request = {
            "prompt": [int(token) for token in prompt],
            "grids": [part.grid for part in parts],
            "arrays": wire.sizes_of(features),
        }
        sizes = dict(sorted(_sizes(self._decoder, len(prompt))))

        def room(_: Mapping[str, Any]) -> dict[str, Array]:
            logits = np.empty(self._decoder.vocab_size, np.float32)
            return {_LOGITS: logits, **{name: np.empty(*size) for name, size in sizes.items()}}

        what = (
            f"the states of {len(prompt):,} tokens. See whether it runs; the prompt is computed here "
            "meanwhile"
        )
        _, handover = self._in_turns(
            request, [value for part in features for value in part.values()], room, what
        )
        return Handover(handover.pop(_LOGITS), handover)

    def read(self, prepared: Mapping[str, Array]) -> tuple[tuple[int, int, int], dict[str, Array]]:
        """Encode an image on one of the servers; after a failure on the next one.

        Args:
            prepared: Output of the image processor.

        Returns:
            The grid of its features, and the features, as in `Encoded`.

        Raises:
            HandoffError: If all servers failed; the message is that of the last.
        """

        def room(reply: Mapping[str, Any]) -> dict[str, Array]:
            (arrays,) = wire.room_for(reply.get("arrays")) or ({},)
            return arrays

        what = "what it reads of an image. See whether it runs, and ask again"
        request = {"arrays": wire.sizes_of([prepared])}
        reply, features = self._in_turns(request, [*prepared.values()], room, what)
        (part,) = _parts([reply.get("grid")], [features])
        return part.grid, features

    def _in_turns(
        self, request: Mapping[str, Any], given: Sequence[Array], room: _Room, what: str
    ) -> tuple[dict[str, Any], dict[str, Array]]:
        first, most = next(self._turns), len(self.addresses)
        for number in range(most):
            address = self.addresses[(first + number) % most]
            try:
                return self._exchange(address, request, given, room, what)
            except HandoffError as error:
                last = error
                if self._closed:
                    break
                _LOG.warning("%s", error)
        raise last

    def _exchange(
        self,
        address: tuple[str, int],
        request: Mapping[str, Any],
        given: Sequence[Array],
        room: _Room,
        what: str,
    ) -> tuple[dict[str, Any], dict[str, Array]]:
        """Send a request to one server; return its reply, and its arrays, by name in their order."""
        server = f"Prefill server {address[0]}:{address[1]}"
        message = {"version": _VERSION, "terms": self._terms, **request}
        try:
            with (
                socket.create_connection(address, _CONNECT) as connection,
                self._until_closed(connection),
            ):
                connection.settimeout(_ANSWER)
                here, there = (end()[0] for end in (connection.getsockname, connection.getpeername))
                wire.send(connection, greeting(self._key))
                wire.send(connection, {**message, "shared": here == there}, given)
                reply = wire.receive(connection)
                if "error" in reply:
                    raise HandoffError(f"{server} refuses: {reply['error']}")
                _check(reply, self._terms, server)
                arrays = room(reply)
                _take(connection, reply.get("file"), [*arrays.values()])
                return reply, arrays
        except (OSError, EOFError) as error:
            raise HandoffError(
                f"{server} broke off: {error or type(error).__name__}; expected {what}."
            ) from error

    @contextmanager
    def _until_closed(self, connection: socket.socket) -> Iterator[None]:
        """Register a connection that `close` shuts down."""
        with self._changed:
            if self._closed:
                raise ConnectionAbortedError("this side is closed")
            self._connections.add(connection)
        try:
            yield
        finally:
            with self._changed:
                self._connections.discard(connection)


def _take(connection: socket.socket, name: object, arrays: Sequence[Array]) -> None:
    """Fill arrays with those of a server."""
    if name is None:
        for array in arrays:
            wire.fill(connection, array)
        return
    if Path(str(name)).name != name or not str(name).startswith("qeff-zoo-"):
        raise HandoffError(
            f"A prefill server names the file {name!r}; expected one of shared memory. Use a server of this version."
        )
    with (_SHARED / str(name)).open("rb") as file:
        for array in arrays:
            if file.readinto(wire.as_bytes(array)) != array.nbytes:
                raise EOFError("the file is too short")
    connection.sendall(b"\0")


def _parts(grids: Any, groups: Sequence[Mapping[str, Array]]) -> list[Encoded]:
    """Return images that another process encoded, identified by their features alone."""
    fits = isinstance(grids, list) and len(grids) == len(groups)
    for grid, features in zip(grids, groups, strict=True) if fits else ():
        rows = {len(array) if array.ndim == 2 else 0 for array in features.values()}
        sizes = (
            isinstance(grid, list)
            and len(grid) == 3
            and all(type(coordinate) is int for coordinate in grid)
        )
        fits = fits and sizes and min(grid) > 0 and len(rows) == 1 and 0 not in rows
    if not fits:
        raise HandoffError(
            f"Images lie as {str(grids)[:60]!r}; expected three sizes of each, and as many images as there are "
            "features of. Use the same qeff-zoo on both sides."
        )
    return [
        Encoded(digest=digest_of(features), features=features, grid=(grid[0], grid[1], grid[2]))
        for grid, features in zip(grids, groups, strict=True)
    ]


def _sizes(decoder: Decoder, tokens: int) -> Iterator[tuple[str, tuple[tuple[int, ...], Any]]]:
    """Yield the shape and type of a slot's states for a number of tokens, by name."""
    growing = {state.name for state in decoder.program.states if state.grows}
    for name, state in decoder.states.items():
        heads, *rest = state.shape[1:]
        rest = [tokens, *rest[1:]] if name in growing else rest
        yield name, ((heads, *rest), state.dtype)


def _check(message: Mapping[str, Any], terms: Mapping[str, str], who: str) -> None:
    """Reject a message with other terms."""
    wire.require_version(message, who)
    sent = message.get("terms")
    sent = sent if isinstance(sent, dict) else {}
    for what, digest in terms.items():
        if sent.get(what) != digest:
            raise HandoffError(
                f"{who} has another {what}, {str(sent.get(what))[:12]!r}; expected {digest[:12]!r}. Build both "
                "packages of one checkpoint, with the same target and weights."
            )


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise HandoffError(
            f"Cannot reach a prefill server at {text!r}; expected HOST:PORT. Correct --prefill-from."
        )
    return host.strip("[]"), int(port)
