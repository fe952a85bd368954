# SPDX-License-Identifier: Apache-2.0
"""Whether the Hub may see the user's token: never where anybody on the way can read it.

In: `HF_ENDPOINT`. Out: what every call of huggingface_hub is given as its `token`.
"""

from typing import Literal
from urllib.parse import urlsplit

#: Hosts that are this machine: what goes there by plain HTTP passes nobody.
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def is_open(url: str) -> bool:
    """Whether traffic to a server is readable on the way: plain HTTP, and not to this machine.

    Args:
        url: URL of the server.
    """
    parts = urlsplit(url)
    return parts.scheme == "http" and parts.hostname not in LOOPBACK


def hub_token() -> Literal[False] | None:
    """Return the `token` for a call of huggingface_hub: None for the user's, False for none."""
    from huggingface_hub import constants

    return False if is_open(constants.ENDPOINT) else None
