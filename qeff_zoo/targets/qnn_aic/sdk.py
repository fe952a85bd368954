# SPDX-License-Identifier: Apache-2.0
"""The QNN SDK of this machine: its tools and its version."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from qeff_zoo.targets.base import Finding

#: Variable with the folder of the SDK.
VARIABLE = "QNN_SDK_ROOT"
#: The SDK's name of the platform of its tools.
HOST = "x86_64-linux-clang"
CONVERTER, GENERATOR = "qairt-converter", "qnn-context-binary-generator"
_VERSION = re.compile(r"""^version: *["']?([0-9A-Za-z._-]+)""", re.MULTILINE)


def root(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder of the SDK; None if no variable names it.

    Args:
        environment: Environment variables.
    """
    named = environment.get(VARIABLE)
    return Path(named) if named else None


def lacking(environment: Mapping[str, str] = os.environ) -> str | None:
    """Explain why the SDK cannot be used; None if it can."""
    sdk = root(environment)
    if sdk is None:
        return f"{VARIABLE} is not set"
    for tool in (CONVERTER, GENERATOR):
        if not os.access(sdk / "bin" / HOST / tool, os.X_OK):
            return f"there is no {tool} in {str(sdk / 'bin' / HOST)!r}"
    return None


def installed(environment: Mapping[str, str] = os.environ) -> str:
    """Return the version of the SDK, "absent", or "unknown"."""
    sdk = root(environment)
    try:
        text = (sdk / "sdk.yaml").read_text(encoding="utf-8") if sdk else None
    except FileNotFoundError:
        text = None
    except (OSError, UnicodeDecodeError):
        return "unknown"
    if text is None:
        return "absent"
    match = _VERSION.search(text)
    return match[1] if match else "unknown"


def examine() -> Finding:
    """Look for the SDK, for `doctor`."""
    name, problem = "QNN SDK", lacking()
    if problem is None:
        return Finding(name=name, status="ok", detail=f"{root()}, version {installed()}")
    advice = f"Install the QNN SDK and set {VARIABLE} to compile packages for target qnn-aic here."
    return Finding(name=name, status="warn" if root() else "missing", detail=problem, advice=advice)
