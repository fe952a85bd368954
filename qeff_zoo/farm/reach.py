# SPDX-License-Identifier: Apache-2.0
"""Reach of a Ray that is started for one farm on this machine: set before ray is imported, which reads it then."""

import os
import secrets


def keep_local() -> None:
    """Let Ray's processes listen at the loopback address, and require a token of each other.

    By default they listen at all addresses on Linux. A mode of authentication that the user has set stays.
    """
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # for any system, despite its name
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
