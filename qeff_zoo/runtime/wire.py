# SPDX-License-Identifier: Apache-2.0
"""Messages between two processes: the length of a JSON in 8 bytes, the JSON, then arrays.

Of some arrays both sides know the sizes; of others the JSON says them, under `arrays`.
"""

import json
import math
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qeff_zoo.errors import HandoffError
from qeff_zoo.runtime.program import Array

_LENGTH = 8  # bytes that say how long the JSON is
_MOST_JSON = 8 << 20  # bytes: more tokens than any context has
_MOST_ARRAYS = 1 << 30  # bytes: more features, or pixels, than any prompt has


def as_bytes(array: Array) -> memoryview:
    """Return the bytes of an array; they are its own where it is contiguous."""
    return memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def send(connection: socket.socket, said: Mapping[str, Any], arrays: Sequence[Array] = ()) -> None:
    """Send a message."""
    text = json.dumps(said).encode()
    connection.sendall(len(text).to_bytes(_LENGTH, "big") + text)
    for array in arrays:
        connection.sendall(as_bytes(array))


def receive(connection: socket.socket) -> dict[str, Any]:
    """Read the JSON of a message; its arrays are still to come.

    Raises:
        HandoffError: It is none.
    """
    length = np.empty(_LENGTH, np.uint8)
    fill(connection, length)
    size = int.from_bytes(length.tobytes(), "big")
    if size > _MOST_JSON:
        raise HandoffError(
            f"A message begins with {size:,} bytes of JSON; expected at most {_MOST_JSON:,}. See what is at that port."
        )
    text = np.empty(size, np.uint8)
    fill(connection, text)
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


def fill(connection: socket.socket, array: Array) -> None:
    """Read as many bytes as an array has into it.

    Raises:
        EOFError: Fewer come.
    """
    left = as_bytes(array)
    while left:
        got = connection.recv_into(left)
        if not got:
            raise EOFError(f"{len(left):,} bytes are missing")
        left = left[got:]


def sizes_of(groups: Sequence[Mapping[str, Array]]) -> list[dict[str, list[Any]]]:
    """Say the type and the shape of arrays, for `room_for`."""
    return [
        {name: [str(one.dtype), [*one.shape]] for name, one in group.items()} for group in groups
    ]


def room_for(told: Any) -> list[dict[str, Array]]:
    """Make arrays of the types and shapes that a message says, to be filled.

    Raises:
        HandoffError: They are none, or too large.
    """
    try:
        sizes = [
            {
                str(name): (np.dtype(kind), tuple(map(int, shape)))
                for name, (kind, shape) in one.items()
            }
            for one in told
        ]
        every = [size for one in sizes for size in one.values()]
        numbers = all(dtype.kind in "biuf" for dtype, _ in every)
        least = min((axis for _, shape in every for axis in shape), default=0)
        bytes_ = sum(dtype.itemsize * math.prod(shape) for dtype, shape in every)
    except (AttributeError, TypeError, ValueError) as error:
        raise HandoffError(
            f"A message says of its arrays {str(told)[:60]!r}; expected a type and a shape of each. Use the same "
            "qeff-zoo on both sides."
        ) from error
    if not numbers or least < 0 or bytes_ > _MOST_ARRAYS:
        raise HandoffError(
            f"A message has arrays of {bytes_:,} bytes; expected numbers, and at most {_MOST_ARRAYS:,} bytes. Give "
            "the prompt fewer or smaller pictures."
        )
    return [{name: np.empty(shape, dtype) for name, (dtype, shape) in one.items()} for one in sizes]
