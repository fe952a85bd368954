# SPDX-License-Identifier: Apache-2.0
"""Messages between two processes: the length of a JSON in 8 bytes, the JSON, then arrays.

The sizes of some arrays are known to both sides; the JSON has those of others, under `arrays`.
"""

import json
import math
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qeff_zoo.errors import HandoffError
from qeff_zoo.runtime.program import Array

VERSION = 3
LENGTH = 8  # bytes of the JSON's length
_MOST_JSON = 8 << 20  # bytes: more tokens than any context has
_MOST_ARRAYS = 1 << 30  # bytes: more features, or pixels, than any prompt has
_MOST_IN_ALL, _MOST_AXES = 4096, 8  # arrays of a message, and axes of one
_NUMBERS = frozenset(
    {"bool", "float16", "float32", "float64"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)


def as_bytes(array: Array) -> memoryview:
    """Return the bytes of an array, without a copy if it is contiguous."""
    return memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def packed(message: Mapping[str, Any]) -> bytes:
    """Return the JSON of a message, preceded by its length."""
    text = json.dumps(message).encode()
    return len(text).to_bytes(LENGTH, "big") + text


def send(
    connection: socket.socket, message: Mapping[str, Any], arrays: Sequence[Array] = ()
) -> None:
    """Send a message."""
    connection.sendall(packed(message))
    for array in arrays:
        connection.sendall(as_bytes(array))


def receive(connection: socket.socket, until: float | None = None) -> dict[str, Any]:
    """Read the JSON of a message; its arrays follow.

    Args:
        connection: The sender's connection.
        until: The deadline, by `time.monotonic`; None for the connection's own timeout, again for each piece.

    Raises:
        HandoffError: If the bytes are not a message.
    """
    length = np.empty(LENGTH, np.uint8)
    fill(connection, length, until)
    text = np.empty(size_of(length.tobytes(), _MOST_JSON), np.uint8)
    fill(connection, text, until)
    return parsed(text.tobytes())


def size_of(length: bytes, most: int) -> int:
    """Return the number of JSON bytes in a message.

    Raises:
        HandoffError: If they are too many.
    """
    size = int.from_bytes(length, "big")
    if size > most:
        raise HandoffError(
            f"A message begins with {size:,} bytes of JSON; expected at most {most:,}. See what is at that port, and "
            "use the same qeff-zoo on both sides."
        )
    return size


def parsed(text: bytes) -> dict[str, Any]:
    """Parse the JSON of a message.

    Raises:
        HandoffError: If the JSON is not an object.
    """
    try:
        message = json.loads(text)
    except (RecursionError, ValueError) as error:
        raise HandoffError(
            f"A message is no JSON: {error}. Expected one of a hand-over. See what is at that port."
        ) from error
    if not isinstance(message, dict):
        raise HandoffError(
            f"A message is a JSON {type(message).__name__}; expected an object. See what is at that port."
        )
    return message


def require_version(message: Mapping[str, Any], who: str) -> None:
    """Reject a message of another version.

    Args:
        message: JSON of the message.
        who: The sender, for messages.

    Raises:
        HandoffError: If the version differs.
    """
    if message.get("version") != VERSION:
        raise HandoffError(
            f"{who} speaks version {str(message.get('version'))[:12]} of the hand-over; expected {VERSION}. Install "
            "the same qeff-zoo on both sides."
        )


def fill(connection: socket.socket, array: Array, until: float | None = None) -> None:
    """Read bytes into an array until it is full.

    Args:
        connection: The sender's connection.
        array: The array to fill.
        until: The deadline, as for `receive`.

    Raises:
        EOFError: If fewer bytes arrive.
        TimeoutError: If they do not arrive in time.
    """
    left = as_bytes(array)
    while left:
        if until is not None:
            connection.settimeout(max(until - time.monotonic(), 0.001))
        got = connection.recv_into(left)
        if not got:
            raise EOFError(f"{len(left):,} bytes are missing")
        left = left[got:]


def sizes_of(groups: Sequence[Mapping[str, Array]]) -> list[dict[str, list[Any]]]:
    """Return the types and shapes of arrays, for `room_for`."""
    return [
        {name: [str(value.dtype), [*value.shape]] for name, value in group.items()}
        for group in groups
    ]


def room_for(headers: Any) -> list[dict[str, Array]]:
    """Allocate arrays of a message's types and shapes.

    Raises:
        HandoffError: If there are none, or they are too large.
    """
    sizes = (
        [header.items() if isinstance(header, dict) else None for header in headers]
        if isinstance(headers, list)
        else [None]
    )
    every = [size for one in sizes for _, size in one or ()]
    if None in sizes or len(every) > _MOST_IN_ALL or not all(map(_is_size, every)):
        raise HandoffError(
            f"A message says of its arrays {str(headers)[:60]!r}; expected a type and a shape of each, and at most "
            f"{_MOST_IN_ALL:,}. Use the same qeff-zoo on both sides."
        )
    # An axis of length 0 counts as 1: numpy rejects a product that is too large beside it.
    bytes_ = sum(
        np.dtype(kind).itemsize * math.prod(axis or 1 for axis in shape) for kind, shape in every
    )
    if bytes_ > _MOST_ARRAYS:
        raise HandoffError(
            f"A message has arrays of {bytes_:,} bytes; expected at most {_MOST_ARRAYS:,}. Give the prompt fewer or "
            "smaller images."
        )
    return [{name: np.empty(shape, kind) for name, (kind, shape) in size or ()} for size in sizes]


def _is_size(size: Any) -> bool:
    """Return whether a value is the type and the shape of an array of numbers."""
    if not (isinstance(size, list) and len(size) == 2 and isinstance(size[1], list)):
        return False
    kind, shape = size
    axes = all(type(axis) is int and 0 <= axis <= _MOST_ARRAYS for axis in shape)
    return isinstance(kind, str) and kind in _NUMBERS and len(shape) <= _MOST_AXES and axes
