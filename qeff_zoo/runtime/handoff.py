# SPDX-License-Identifier: Apache-2.0
"""A prompt's states, handed from the process that computed them to the one that decodes.

A `PrefillServer` runs prompts; the engine of another process asks it through `Prefills`, writes what it gets into a row
and goes on from there. A message is the length of its JSON in 8 bytes, the JSON, then arrays, whose sizes both know:
the logits after the prompt, and every state. Two processes of one machine pass the arrays by a file in shared memory.
Each message says which model, which precision and which states it is about, and another one is refused.
"""

import hashlib
import hmac
import json
import logging
import secrets
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from qeff_zoo.errors import GenerationError, HandoffError
from qeff_zoo.runtime.answers import Handover
from qeff_zoo.runtime.decoder import Decoder
from qeff_zoo.runtime.program import Array
from qeff_zoo.runtime.text_generation import TextGenerationSession
from qeff_zoo.runtime.tokenizer import read_json

_VERSION = 1
_LENGTH = 8  # bytes that say how long the JSON is
_MOST_JSON = 8 << 20  # bytes: more tokens than any context has
_CONNECT, _ANSWER = 5.0, 120.0  # seconds
_LOGITS = "logits"
_SHARED = Path("/dev/shm")
_ACCEPT = 0.2  # seconds between looks at whether a server is to end
_LOG = logging.getLogger(__name__)


def terms_of(session: TextGenerationSession, *, reads: bool = False) -> dict[str, str]:
    """Say what states are of: the model, its precision, and their layout, each as a digest.

    Packages that differ in sizes of calls and of the context can hand over to each other; what differs in any of these
    cannot.

    Args:
        session: Whose states.
        reads: Whether they are to be read; else they are written alone.

    Raises:
        HandoffError: Its device keeps the states, where nobody can reach them.
    """
    decoder = session.decoder
    if not decoder.movable and (reads or decoder.program.memory is None):
        raise HandoffError(
            f"Package {str(session.folder)!r} runs on a device that keeps its states; expected states that can be "
            f"{'read' if reads else 'written'}. Hand over between packages for target 'ort', or for 'qaic' from one of "
            "--prefill-only to one of --decode-only, without --mxint8-kv-cache."
        )
    manifest = read_json(session.folder / "manifest.json")
    numerics = [program["numerics"] for program in manifest["programs"]]
    layout = decoder.layout
    told = {"model": manifest["spec"]["sources"], "precision": numerics, "layout": layout}
    return {
        name: hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
        for name, value in told.items()
    }


class PrefillServer:
    """Runs prompts for other processes, one after another.

    Args:
        session: Its own until `close`.
        listener: Bound, and not yet listening.
        api_key: That clients must send; None for none.

    Raises:
        HandoffError: The session's states cannot be read.
        GenerationError: The session is in use.
    """

    def __init__(
        self, session: TextGenerationSession, listener: socket.socket, *, api_key: str | None = None
    ) -> None:
        self._session, self._listener, self._key = session, listener, api_key
        self._terms = terms_of(session, reads=True)
        self._closing = threading.Event()
        self._computing = threading.Lock()
        self._lease = session.exclusively()
        self._scheduler = self._lease.__enter__()

    def serve(self) -> None:
        """Answer until `close`, each client in a thread of its own."""
        self._listener.listen()
        self._listener.settimeout(_ACCEPT)
        try:
            while not self._closing.is_set():
                with suppress(TimeoutError):
                    client, _ = self._listener.accept()
                    threading.Thread(target=self._answer, args=(client,), daemon=True).start()
        finally:
            with self._computing:
                self._lease.__exit__(None, None, None)

    def close(self) -> None:
        """End `serve`, from any thread, once the prompt that runs has ended."""
        self._closing.set()

    def _answer(self, client: socket.socket) -> None:
        with client, suppress(OSError):  # a client that has gone is no matter of ours
            client.settimeout(_ANSWER)
            try:
                asked = _receive(client)
                _check(asked, self._terms, "The client")
                if self._key is not None and not hmac.compare_digest(
                    str(asked.get("key")).encode(), self._key.encode()
                ):
                    raise HandoffError(
                        "The client has another API key; expected that of the prefill server. Give both the same "
                        "--api-key."
                    )
                handover = self._run(asked.get("prompt"))
            except GenerationError as error:
                _send(client, {"version": _VERSION, "error": str(error)})
                return
            arrays = [handover.logits, *(handover.states[name] for name in sorted(handover.states))]
            self._pass_on(client, arrays, shared=asked.get("shared") is True)

    def _run(self, prompt: Any) -> Handover:
        if not (isinstance(prompt, list) and all(type(token) is int for token in prompt)):
            raise HandoffError(
                f"A prompt is {type(prompt).__name__}; expected a list of token ids. Ask as `Prefills` does."
            )
        self._session.request(prompt, generation_len=1)
        with self._computing:
            if self._closing.is_set():
                raise HandoffError(
                    "The prefill server is closing; expected one that runs. Ask another one."
                )
            logits = self._scheduler.run_prompt(prompt)
            return Handover(logits, self._session.decoder.save(0, 0, len(prompt)))

    def _pass_on(self, client: socket.socket, arrays: Sequence[Array], *, shared: bool) -> None:
        said = {"version": _VERSION, "terms": self._terms}
        if not (shared and _SHARED.is_dir()):
            _send(client, said, arrays)
            return
        path = _SHARED / f"qeff-zoo-{secrets.token_hex(16)}"
        try:
            path.touch(0o600, exist_ok=False)
            with path.open("wb") as file:
                for array in arrays:
                    file.write(_bytes(array))
            _send(client, {**said, "file": path.name})
            client.recv(1)  # it has read the file, or has gone
        finally:
            path.unlink(missing_ok=True)


class Prefills:
    """Prefill servers, asked in turns until `close`.

    Args:
        session: That goes on with the prompts.
        addresses: Of the servers, each `HOST:PORT`.
        api_key: Of the servers.

    Raises:
        HandoffError: There is none, an address is none, or the session's states cannot be written.
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
        self.addresses = [_address(one) for one in addresses]
        self._decoder, self._terms, self._key = session.decoder, terms_of(session), api_key
        self._turns = count()
        self._changed, self._asked, self._closed = threading.Lock(), set[socket.socket](), False

    def close(self) -> None:
        """Break off what is asked, from any thread, and ask no more."""
        with self._changed:
            self._closed = True
            for connection in self._asked:
                with suppress(OSError):  # the server has gone already
                    connection.shutdown(socket.SHUT_RDWR)

    def run(self, prompt: Sequence[int]) -> Handover:
        """Let one of the servers run a prompt; where it fails, the next one.

        Args:
            prompt: Token ids that fit into the context.

        Raises:
            HandoffError: All of them failed; the message is that of the last.
        """
        first, most = next(self._turns), len(self.addresses)
        for number in range(most):
            address = self.addresses[(first + number) % most]
            try:
                return self._ask(address, prompt)
            except HandoffError as error:
                last = error
                if self._closed:
                    break
                _LOG.warning("%s", error)
        raise last

    def _ask(self, address: tuple[str, int], prompt: Sequence[int]) -> Handover:
        server = f"Prefill server {address[0]}:{address[1]}"
        asked: dict[str, Any] = {
            "version": _VERSION,
            "terms": self._terms,
            "key": self._key,
            "prompt": [int(token) for token in prompt],
        }
        try:
            with (
                socket.create_connection(address, _CONNECT) as connection,
                self._until_closed(connection),
            ):
                connection.settimeout(_ANSWER)
                here, there = (end()[0] for end in (connection.getsockname, connection.getpeername))
                _send(connection, {**asked, "shared": here == there})
                said = _receive(connection)
                if "error" in said:
                    raise HandoffError(f"{server} refuses: {said['error']}")
                _check(said, self._terms, server)
                return self._arrays(connection, said.get("file"), len(prompt))
        except (OSError, EOFError) as error:
            raise HandoffError(
                f"{server} broke off: {error or type(error).__name__}; expected the states of {len(prompt):,} tokens. "
                "See whether it runs; the prompt is computed here meanwhile."
            ) from error

    @contextmanager
    def _until_closed(self, connection: socket.socket) -> Iterator[None]:
        """Let `close` break a connection off."""
        with self._changed:
            if self._closed:
                raise ConnectionAbortedError("this side is closed")
            self._asked.add(connection)
        try:
            yield
        finally:
            with self._changed:
                self._asked.discard(connection)

    def _arrays(self, connection: socket.socket, name: object, tokens: int) -> Handover:
        """Read the arrays, of sizes that this side knows."""
        arrays = {
            _LOGITS: np.empty(self._decoder.vocab_size, np.float32),
            **{state: np.empty(*one) for state, one in sorted(_sizes(self._decoder, tokens))},
        }
        if name is None:
            for array in arrays.values():
                _fill(connection, array)
        else:
            if Path(str(name)).name != name or not str(name).startswith("qeff-zoo-"):
                raise HandoffError(
                    f"A prefill server names the file {name!r}; expected one of shared memory. Use a server of this "
                    "version."
                )
            with (_SHARED / str(name)).open("rb") as file:
                for array in arrays.values():
                    if file.readinto(_bytes(array)) != array.nbytes:
                        raise EOFError("the file is too short")
            connection.sendall(b"\0")
        return Handover(arrays.pop(_LOGITS), arrays)


def _sizes(decoder: Decoder, tokens: int) -> Iterator[tuple[str, tuple[tuple[int, ...], Any]]]:
    """Yield shape and type of what a row retains of that many tokens, by state."""
    growing = {state.name for state in decoder.program.states if state.grows}
    for name, state in decoder.states.items():
        heads, *rest = state.shape[1:]
        rest = [tokens, *rest[1:]] if name in growing else rest
        yield name, ((heads, *rest), state.dtype)


def _check(said: Mapping[str, Any], terms: Mapping[str, str], who: str) -> None:
    """Refuse a message about other states."""
    if said.get("version") != _VERSION:
        raise HandoffError(
            f"{who} speaks version {said.get('version')!r} of the hand-over; expected {_VERSION}. Install the same "
            "qeff-zoo on both sides."
        )
    theirs = said.get("terms")
    theirs = theirs if isinstance(theirs, dict) else {}
    for what, digest in terms.items():
        if theirs.get(what) != digest:
            raise HandoffError(
                f"{who} has another {what}, {str(theirs.get(what))[:12]!r}; expected {digest[:12]!r}. Build both "
                "packages of one checkpoint, with the same target and weights."
            )


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise HandoffError(
            f"Cannot reach a prefill server at {text!r}; expected HOST:PORT. Correct --prefill-from."
        )
    return host.strip("[]"), int(port)


def _bytes(array: Array) -> memoryview:
    return memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _send(connection: socket.socket, said: Mapping[str, Any], arrays: Sequence[Array] = ()) -> None:
    text = json.dumps(said).encode()
    connection.sendall(len(text).to_bytes(_LENGTH, "big") + text)
    for array in arrays:
        connection.sendall(_bytes(array))


def _receive(connection: socket.socket) -> dict[str, Any]:
    length = np.empty(_LENGTH, np.uint8)
    _fill(connection, length)
    size = int.from_bytes(length.tobytes(), "big")
    if size > _MOST_JSON:
        raise HandoffError(
            f"A message begins with {size:,} bytes of JSON; expected at most {_MOST_JSON:,}. See what is at that port."
        )
    text = np.empty(size, np.uint8)
    _fill(connection, text)
    try:
        said = json.loads(text.tobytes())
    except ValueError as error:
        raise HandoffError(
            f"A message is no JSON: {error}. Expected one of a hand-over. See what is at that port."
        ) from error
    if not isinstance(said, dict):
        raise HandoffError(
            f"A message is a JSON {type(said).__name__}; expected an object. See what is at that port."
        )
    return said


def _fill(connection: socket.socket, array: Array) -> None:
    """Read as many bytes as an array has into it."""
    left = _bytes(array)
    while left:
        got = connection.recv_into(left)
        if not got:
            raise EOFError(f"{len(left):,} bytes are missing")
        left = left[got:]
