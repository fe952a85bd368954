# SPDX-License-Identifier: Apache-2.0
"""What several tests of server connections and others use."""

import socket

from fixtures_serving import TIMEOUT


def rest(opened: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    opened.settimeout(TIMEOUT)
    found = b""
    try:
        while data := opened.recv(1 << 16):
            found += data
    except ConnectionResetError:  # it closed before it had read everything
        pass
    return found
