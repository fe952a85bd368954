# SPDX-License-Identifier: Apache-2.0
"""Takes the place of Python, see `warm`: the server runs a program, and this process ends as the program does.

The server is sent arguments, environment, folder and files; the program ends when this process is killed. Hundreds of
these are started, so only what is compiled into Python is imported: `socket` and `json` take longer than all else.
"""

import _socket
import array
import marshal
import os
import sys

LARGEST = 1 << 18  # bytes of arguments and environment


def main(server_folder: str, arguments: list[str]) -> None:
    """Have the server run a program, and end as it does."""
    request = {
        "argv": arguments,
        "environment": dict(os.environ),
        "folder": os.getcwd(),  # noqa: PTH109
        "executable": f"{server_folder}/python",
    }
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    server.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDBUF, 2 * LARGEST)
    server.connect(f"{server_folder}/socket")
    files = array.array("i", [0, 1, 2])
    server.sendmsg([marshal.dumps(request)], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)])
    if (code := int(server.recv(16) or -9)) < 0:
        _die(-code)
    os._exit(code)


def _die(number: int) -> None:
    """End by a signal, as the program did."""
    import signal

    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
