# SPDX-License-Identifier: Apache-2.0
"""Whether the Hub may receive the user's token: never over an unencrypted connection.

Input: `HF_ENDPOINT`. Output: the `token` of every call of huggingface_hub.
"""

from typing import Literal
from urllib.parse import urlsplit

#: Names of this machine, to which plain HTTP is safe.
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def is_open(url: str) -> bool:
    """Whether traffic to a server is readable on its way: plain HTTP to another machine.

    Args:
        url: URL of the server.
    """
    parts = urlsplit(url)
    return parts.scheme == "http" and parts.hostname not in LOOPBACK


def hub_token(given: str | None = None) -> str | Literal[False] | None:
    """Return the `token` for a call of huggingface_hub: None for the user's, False for no token.

    Args:
        given: Token in place of the user's.
    """
    from huggingface_hub import constants

    return False if is_open(constants.ENDPOINT) else given or None
